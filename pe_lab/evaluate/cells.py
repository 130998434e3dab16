"""What an evaluation measures: run x encoding x split x length, checked before any work."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pe_lab.config.schema import Config, to_dict
from pe_lab.core.errors import UsageError, check_known
from pe_lab.core.task import Task
from pe_lab.evaluate.record import TRAINED, Measurement
from pe_lab.evaluate.swap_encoding import (
    EncodingSpec,
    MissingWeightsError,
    swap_encoding,
    transfer_weights,
)
from pe_lab.experiment.load_run import LoadedRun
from pe_lab.models.base import Model
from pe_lab.pe.rope import stretch_factor
from pe_lab.store.run_id import drop_seed, identity
from pe_lab.train.batches import check_memory
from pe_lab.train.plan import Plan, count_sequences, usage_errors


@dataclass(frozen=True)
class Cell:
    """One split of a run at one length with one encoding.

    Args:
        trained: the configuration of the run.
        setting: the identity that runs have in common which differ in the seed alone.
        length: the requested length, or the configured one.
        task: the split's task at that length.
        plan: of the run, with the encoding replaced.
        scale: the encoding's k; None: it has none.
        left_out: the number of trained parameters that the encoding does not read.
        message: why it cannot be measured; None if it can.
    """

    path: Path
    trained: Config
    setting: str
    encoding: str
    length: int
    task: Task
    plan: Plan
    measurement: Measurement
    scale: float | None
    left_out: int
    message: str | None


def make_cells(
    run: LoadedRun,
    encodings: Sequence[EncodingSpec],
    splits: Sequence[str],
    lengths: Sequence[int] | None = None,
    *,
    k: float | None = None,
    sequences: int | None = None,
    generate: bool = False,
    config_dir: str | None = None,
) -> list[Cell]:
    """Return the cells of a run, by encoding (the trained one first), split and length; the
    arguments are those of ``evaluate``.

    Raises:
        UsageError: the run cannot be evaluated in this way.
    """
    config = run.plan.config
    swapped = {spec.text: swap_encoding(config, spec, k, config_dir) for spec in encodings}
    tasks = [
        (split, length, _task_at_length(run, split, length))
        for split in dict.fromkeys(splits)
        for length in (dict.fromkeys(lengths) if lengths else [None])
    ]
    most = config.eval.sequences if sequences is None else sequences
    return [
        _cell(run, encoding, changed, split, length or task.n_tokens, task, most, generate)
        for encoding, changed in {TRAINED: config, **swapped}.items()
        for split, length, task in tasks
    ]


def _task_at_length(run: LoadedRun, split: str, length: int | None) -> Task:
    check_known("splits={} is not a split of this run", [split], run.plan.task.evaluated())
    task = run.plan.task.split(split)
    with usage_errors(f"lengths={length}: "):
        changed = task if length is None else task.at_length(length)
    if changed.n_tokens == task.n_tokens:
        return task
    if split in run.plan.task.contents() and changed.stored(split) is None:
        raise UsageError(
            f"lengths={length}: the split {split} of {run.path} is read from a file, "
            f"whose sequences have {task.n_tokens} tokens: give that length, or another split"
        )
    return changed


def _cell(
    run: LoadedRun,
    encoding: str,
    config: Config,
    split: str,
    length: int,
    task: Task,
    most: int,
    generate: bool,
) -> Cell:
    tokens, message, positions = task.n_tokens, None, None
    n = count_sequences(most, tokens, run.plan.dims.train_len)
    remedy = "give shorter lengths or fewer sequences"
    check_memory(f"lengths={length}", [(tokens, n)], run.plan.dims.d_model, remedy)
    try:
        positions = run.plan.positions.limit_for(task, training=False)
    except ValueError as error:
        message = str(error)
    plan = run.plan if encoding == TRAINED else _plan_at(run, config, positions or tokens, tokens)
    model = transfer_weights(run.model, plan)
    if generate:
        if not task.generates:
            raise UsageError("generate=true: the task's answers are not one run at the end")
        with usage_errors(f"generate=true with pe={encoding}: "):
            model.empty_cache()
    table = min((e.max_len for e in model.encodings if e.max_len is not None), default=None)
    if positions is not None and table is not None and positions > table:
        message = f"it encodes {table} positions, {positions} are needed"
    measurement = Measurement(
        encoding == TRAINED,
        to_dict(plan.config)["pe"],
        plan.dims.max_len,
        split,
        tokens,
        n,
        generate,
    )
    read = dict(model.named_parameters())
    left_out = sum(p.numel() for name, p in run.model.named_parameters() if name not in read)
    setting = identity(drop_seed(run.summary["config"]), run.plan.task.contents())
    return Cell(
        run.path, run.plan.config, setting, encoding, length, task, plan, measurement,
        _scale(plan, model), left_out, message,
    )  # fmt: skip


def _plan_at(run: LoadedRun, config: Config, positions: int, tokens: int) -> Plan:
    """Return the plan with another encoding. One whose parameters depend on the length, such as a
    table of positions, is built for the length of training."""
    dims = replace(run.plan.dims, max_len=positions, test_len=tokens)
    at_length = replace(run.plan, config=config, dims=dims)
    try:
        transfer_weights(run.model, at_length)
    except MissingWeightsError:
        # In a combination, another part may depend on the test length on purpose.
        return at_length if "parts" in config.pe else replace(run.plan, config=config)
    return at_length


def _scale(plan: Plan, model: Model) -> float | None:
    """Return the encoding's k; None where it has none, or more than one."""
    pe, whole = plan.config.pe, any(encoding.whole_sequence for encoding in model.encodings)
    # A factor makes a different scale of k (dynamic_ntk), and random positions one per sequence.
    random = whole and plan.dims.longest != plan.dims.max_len
    fixed = "k" in pe and pe.get("factor", 1) == 1 and not random
    return stretch_factor(plan.dims, pe["k"]) if fixed else None
