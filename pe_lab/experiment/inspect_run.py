"""The inspection of one sequence of a finished run."""

from pathlib import Path

from pe_lab.common.errors import UsageError
from pe_lab.experiment.load_run import load
from pe_lab.inspection.data import Inspection, Source
from pe_lab.inspection.inspect import inspect
from pe_lab.models.transformer import Decoder


def inspect_run(
    path: str | Path, split: str = "in_domain", sample: int = 0, query: int | None = None
) -> Inspection:
    """Load a finished run and inspect one of the sequences that it was evaluated on.

    Args:
        sample: the number of the sequence within the split, from 0.
        query: a position whose row is kept whatever the length of the sequence.

    Raises:
        UsageError: no finished run, no such split, sequence or query, or no such model.
    """
    run = load(path)
    if not isinstance(run.model, Decoder):
        raise UsageError(
            f"run={path} has no layers of attention from each token to those before: give a run "
            f"of model=transformer, not of model={run.summary['names'].get('model')}"
        )
    data, positions = run.sequences(split)
    facts = {key: run.summary[key] for key in ("task", "pe", "seed")}
    source = Source(path=Path(path), split=split, **facts)
    task = run.plan.task.split(split)
    return inspect(run.model, source, task, data, positions, sample, query, run.autocast)
