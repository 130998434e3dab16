"""Finished runs measured at any lengths, with other encodings in the place of the trained one.

>>> from pe_lab.evaluation.evaluate import evaluate
>>> frame = evaluate(["runs/text/rope/seed0-0123abcd"], ["pi", "rerope:window=64:logn=test"],
...                  lengths=[128, 256, 512])
>>> frame.group_by("encoding", "length", maintain_order=True).agg(pl.mean("error"))

A split at a length is ``task.split(split).at_length(length)``, drawn from the split's own stream:
the same sequences for every run and encoding. At its own length it is what the run's closing
measurement read.
"""

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import torch

from pe_lab.common.errors import UsageError
from pe_lab.common.metrics import GENERATED, generated_metrics
from pe_lab.common.signals import StopOnSignal, stopping
from pe_lab.common.task import Batch
from pe_lab.config.schema import plain, validated
from pe_lab.evaluation.cells import Cell, cells, check_memory
from pe_lab.evaluation.record import FACTS, MEASURED, Evaluations
from pe_lab.evaluation.swap_encoding import Yamls, asked
from pe_lab.evaluation.targets import Sequences
from pe_lab.experiment.load_run import Trained, load
from pe_lab.experiment.machine import environment, prepare
from pe_lab.training.generate import generated
from pe_lab.training.measure import answer, fixed_positions


def evaluate(
    runs: Sequence[str | Path],
    encodings: Sequence[str] = (),
    splits: Sequence[str] = ("in_domain",),
    lengths: Sequence[int] | None = None,
    *,
    k: float | None = None,
    sequences: int | None = None,
    generate: bool = False,
    force: bool = False,
    device: str = "auto",
    threads: int = 1,
    config_dir: str | None = None,
    shown: Callable[[int, int], None] = lambda done, of: None,
) -> pl.DataFrame:
    """Measure each run with each encoding, the trained one first, on each split at each length.

    Each number is recorded in its run's evaluations.jsonl as soon as it is measured. What is
    there already is not measured again.

    Args:
        runs: folders of finished runs.
        encodings: ``NAME`` or ``NAME:key=value:..``; a key that both have keeps the value it was
            trained with, unless it is given.
        lengths: tokens of a sequence, or the nearest number below that the task has; None: each
            split's own.
        k: the scale of all encodings that have one; None: test length / trained length, in
            tokens.
        sequences: of the training length, fewer of longer ones; None: the run's eval.sequences.
        generate: also let the model write the answers by itself.
        force: measure again what is recorded.
        config_dir: a folder with yamls of encodings of one's own.
        shown: called with the number of cells that are done, and of all.

    Returns:
        ``path``, ``task``, ``pe`` (trained), ``seed``, ``setting``, ``encoding`` (as given;
        "trained"), ``k`` (null where it has none), ``split``, ``length`` (as given, else
        ``tokens``), ``tokens`` (read), ``error``, ``error_low``, ``error_high``, ``error_seq``,
        ``loss``, ``n``, ``n_seq``, ``guess``, ``seconds``, with ``generate`` ``error_generated``
        and so on, ``left_out`` (trained parameters that the encoding does not read), ``message``
        (why there are no numbers), ``earlier`` (whether they were there before).

    Raises:
        UsageError: something asked for cannot be done; nothing was measured.
        RunError: a folder cannot be written, or was changed meanwhile.
        Interrupted: a signal came; what was measured is recorded.
    """
    _check_sizes(lengths, k=k, sequences=sequences, threads=threads)
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"device={device} is not allowed: set it to auto, cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("device=cuda is not allowed: there is no GPU here; set device=auto")
    wanted = cells(
        [Path(run) for run in runs],
        asked(",".join(encodings)) if encodings else [],
        list(dict.fromkeys(splits)),
        None if lengths is None else list(dict.fromkeys(lengths)),
        yamls=Yamls(config_dir),
        k=k,
        sequences=sequences,
        generate=generate,
    )
    records = {path: Evaluations(path) for path in {cell.path for cell in wanted}}
    rows = {
        number: row
        for number, cell in enumerate(wanted)
        if not force
        and cell.message is None
        and (row := records[cell.path].found(cell.measurement))
    }
    left = [n for n, cell in enumerate(wanted) if cell.message is None and n not in rows]
    check_memory([wanted[n] for n in left], device != "cpu" and torch.cuda.is_available())
    earlier, sequences_of = set(rows), Sequences()
    data = {number: sequences_of.of(wanted[number].plan, wanted[number].target) for number in left}
    with StopOnSignal():
        measuring = _Measuring(device, threads)
        for done, number in enumerate(left):
            shown(done, len(left))
            cell = wanted[number]
            facts = measuring.measured(cell, data[number], sequences_of.reference(cell.plan))
            rows[number] = records[cell.path].add(cell.measurement, facts)
        shown(len(left), len(left))
    return _frame(wanted, rows, earlier, generate)


class _Measuring:
    """Measures one cell after another; a run is loaded once for all that follow each other."""

    def __init__(self, device: str, threads: int) -> None:
        self.device, self.threads = device, threads
        self.trained: Trained | None = None
        self.made_by: dict[str, Any] | None = None

    def measured(self, cell: Cell, data: Batch, reference: Batch) -> dict[str, Any]:
        """What a row of the record holds besides the cell itself.

        Args:
            reference: in-domain sequences, for guessing.
        """
        _poll()
        began = time.perf_counter()
        trained = self._loaded(cell.path)
        config = trained.plan.config
        here = {**plain(config), "device": self.device, "threads": self.threads}
        device = prepare(validated(here))
        model = cell.model(trained).to(device)
        moved = Trained(trained.path, trained.summary, cell.plan, model)
        positions = fixed_positions(trained.plan.positions, cell.target.split, *data.tokens.shape)
        how: dict[str, Any] = {
            "batch_tokens": config.eval.batch_tokens,
            "autocast": moved.autocast,
            "poll": _poll,
        }
        task = cell.target.task
        found: dict[str, Any] = answer(model, task, data, positions, **how).measured()
        found["guess"] = task.guess(reference, data)
        if cell.measurement.generated:
            found |= generated_metrics(generated(model, data, positions, **how).measured())
        seconds = time.perf_counter() - began
        encoding = {"encoding": cell.encoding, "k": cell.scale}
        return {**encoding, **found, "seconds": seconds, **self._made_by(device)}

    def _loaded(self, path: Path) -> Trained:
        if self.trained is None or self.trained.path != path:
            self.trained = load(path)
        return self.trained

    def _made_by(self, device: torch.device) -> dict[str, Any]:
        if self.made_by is None:
            facts, changed = environment(self.threads, device.type, device.index)
            self.made_by = {
                "version": facts["versions"]["pe-lab"],
                "git_revision": facts["git_revision"],
                "git_changed": bool(changed),
                **{name: facts[name] for name in ("device", "threads", "host")},
            }
        return {**self.made_by, "time": datetime.now().astimezone().isoformat(timespec="seconds")}


def _poll() -> None:
    if (stop := stopping()) is not None:
        raise stop


def _frame(
    wanted: Sequence[Cell], rows: dict[int, dict[str, Any]], earlier: set[int], generate: bool
) -> pl.DataFrame:
    measured = dict(MEASURED)
    if generate:
        measured |= dict.fromkeys(GENERATED, pl.Float64)
    table = []
    for number, cell in enumerate(wanted):
        row = rows.get(number, {})
        target = cell.target
        table.append(
            [
                *(str(cell.path), cell.task_name, cell.pe, cell.seed, cell.setting, cell.encoding),
                *(cell.scale, target.split, target.length, target.tokens),
                *(row.get(name) for name in measured),
                *(cell.left_out, cell.message, number in earlier),
            ]
        )
    last = {"left_out": pl.Int64, "message": pl.String, "earlier": pl.Boolean}
    return pl.DataFrame(table, {**FACTS, **measured, **last}, orient="row")


def _check_sizes(lengths: Sequence[int] | None, **sizes: float | None) -> None:
    if lengths is not None and not lengths:
        raise UsageError("lengths= names none: give whole numbers of tokens, lengths=128,256")
    for length in lengths or ():
        if length < 1:
            raise UsageError(f"lengths={length} is not allowed: give lengths of at least 1 token")
    for name, size in sizes.items():
        if size is not None and not 0 < size < float("inf"):
            raise UsageError(f"{name}={size} is not allowed: give a number greater than 0")
