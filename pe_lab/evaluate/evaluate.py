"""Finished runs measured at any length, also with other encodings than the trained one.

>>> from pe_lab.evaluate.evaluate import evaluate
>>> frame = evaluate(["runs/text/rope/seed0-0123abcd"], ["pi", "rerope:window=64:logn=test"],
...                  lengths=[128, 256, 512])
>>> frame.group_by("encoding", "length", maintain_order=True).agg(pl.mean("error"))

A split at a length is ``task.split(split).at_length(length)``, drawn from the split's random
stream: the same sequences for every run and encoding. At the split's configured length these are
the sequences of the run's final evaluation.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import polars as pl
import torch

from pe_lab.core.errors import PeLabError, RunError, UsageError, is_out_of_memory
from pe_lab.core.metrics import GENERATED, generated_metrics
from pe_lab.core.task import Batch
from pe_lab.evaluate.cells import Cell, EvaluationData, cells
from pe_lab.evaluate.record import (
    CELL_COLUMNS,
    METRIC_COLUMNS,
    NOT_FINITE,
    Evaluations,
    not_finite,
)
from pe_lab.evaluate.swap_encoding import EncodingConfigs, parse_encodings
from pe_lab.experiment.environment import environment, prepare
from pe_lab.experiment.load_run import LoadedRun, load
from pe_lab.experiment.signals import stop_on_signal, stopping
from pe_lab.models.base import Model
from pe_lab.train.measure import Evaluator

T = TypeVar("T")


class DoesNotFit(Exception):  # noqa: N818
    """Memory ran out with a single sequence."""


def halve_until_it_fits(run: Callable[[int], T], rows: int) -> tuple[T, int]:
    """The result of ``run(rows)``, with ``rows`` halved each time memory runs out, and the rows.

    Raises:
        DoesNotFit: memory runs out with one row.
    """
    while True:
        try:
            return run(rows), rows
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        # Outside of the handler, whose traceback holds on to tensors.
        if rows == 1:
            raise DoesNotFit
        rows //= 2
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


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
    left_out: Callable[[PeLabError], None] | None = None,
) -> pl.DataFrame:
    """Measure each run with each encoding, the trained one first, on each split at each length.

    Each measurement is added to its run's evaluations.jsonl at once, and is not repeated when the
    same evaluation is started again.

    Args:
        runs: folders of finished runs.
        encodings: ``NAME`` or ``NAME:key=value:..``; a key that both encodings have keeps its
            trained value unless it is overridden.
        lengths: tokens per sequence, or the nearest smaller number that the task allows; None:
            the length of each split.
        k: the scale of all encodings that have one; None: test length / trained length, in
            tokens.
        sequences: how many of the training length, fewer if they are longer; None: the run's
            eval.sequences.
        generate: also let the model generate the answers itself.
        force: repeat measurements that are recorded.
        config_dir: a folder with yamls of further encodings, and of those that the runs were
            trained with if they are not of pe_lab.
        left_out: called with the error of each run that cannot be loaded; None: it is raised, and
            nothing is measured.

    Returns:
        ``path``, ``task``, ``pe`` (trained), ``seed``, ``setting``, ``encoding``
        (as specified, or "trained"), ``k`` (null if it has none), ``split``, ``length``
        (requested, else ``tokens``), ``tokens`` (read), ``error``, ``error_low``,
        ``error_high``, ``error_seq``, ``loss``, ``n``, ``n_seq``, ``guess``, ``seconds``, with
        ``generate`` ``error_generated`` and so on, ``left_out`` (the number of trained
        parameters that the encoding does not read), ``message`` (why there are no numbers),
        ``earlier`` (whether the row was recorded before), ``not_finite`` (the metrics that were
        infinite or NaN, separated by blanks).

    Raises:
        UsageError: the evaluation is impossible; nothing was measured.
        DamagedError: a run cannot be loaded; nothing was measured.
        RunError: a folder cannot be written or was changed meanwhile, or memory ran out with a
            single sequence; earlier measurements are recorded.
        Interrupted: stopped by a signal; earlier measurements are recorded.
    """
    _check_sizes(lengths, k=k, sequences=sequences, threads=threads)
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"device={device} is not allowed: set it to auto, cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("device=cuda is not allowed: there is no GPU here; set device=auto")
    records: dict[Path, Evaluations] = {}
    table = cells(
        _loaded(map(Path, runs), records, left_out),
        parse_encodings(",".join(encodings)) if encodings else [],
        list(dict.fromkeys(splits)),
        None if lengths is None else list(dict.fromkeys(lengths)),
        configs=EncodingConfigs(config_dir),
        k=k,
        sequences=sequences,
        generate=generate,
    )
    rows = {
        n: row
        for n, cell in enumerate(table)
        if not force and cell.message is None and (row := records[cell.path].find(cell.measurement))
    }
    remaining = [n for n, cell in enumerate(table) if cell.message is None and n not in rows]
    earlier, drawn = set(rows), EvaluationData()
    data = {n: drawn.of(table[n].plan, table[n].target) for n in remaining}
    with stop_on_signal():
        measurer = CellMeasurer(device, threads)
        for n in remaining:
            cell = table[n]
            facts = measurer.measure(cell, data[n], drawn.reference(cell.plan))
            rows[n] = records[cell.path].add(cell.measurement, facts)
    return _frame(table, rows, earlier, generate)


def _loaded(
    paths: Iterable[Path],
    records: dict[Path, Evaluations],
    left_out: Callable[[PeLabError], None] | None,
) -> Iterator[LoadedRun]:
    """The runs that can be loaded; their records are put into ``records``."""
    for path in paths:
        try:
            run = load(path)
            if not os.access(path, os.W_OK):
                raise RunError(f"{path} cannot be written, and holds the record: make it writable")
            records[path] = Evaluations(path)
        except PeLabError as error:
            if left_out is None:
                raise
            left_out(error)
        else:
            yield run


def _frame(
    table: Sequence[Cell], rows: dict[int, dict[str, Any]], earlier: set[int], generate: bool
) -> pl.DataFrame:
    metrics = dict(METRIC_COLUMNS)
    if generate:
        metrics |= dict.fromkeys(GENERATED, pl.Float64)
    values = []
    for number, cell in enumerate(table):
        row, target, names = rows.get(number, {}), cell.target, cell.trained.names
        values.append(
            [
                *(str(cell.path), names["task"], names["pe"], cell.trained.seed),
                *(cell.setting, cell.encoding),
                *(cell.scale, target.split, target.length, target.tokens),
                *(row.get(name) for name in metrics),
                *(cell.left_out, cell.message, number in earlier, not_finite(row)),
            ]
        )
    last = {"left_out": pl.Int64, "message": pl.String, "earlier": pl.Boolean}
    last[NOT_FINITE] = pl.String
    return pl.DataFrame(values, {**CELL_COLUMNS, **metrics, **last}, orient="row")


def _check_sizes(lengths: Sequence[int] | None, **sizes: float | None) -> None:
    if lengths is not None and not lengths:
        raise UsageError("lengths= names none: give whole numbers of tokens, lengths=128,256")
    for length in lengths or ():
        if length < 1:
            raise UsageError(f"lengths={length} is not allowed: give lengths of at least 1 token")
    for name, size in sizes.items():
        if size is not None and not 0 < size < float("inf"):
            raise UsageError(f"{name}={size} is not allowed: give a number greater than 0")


logger = logging.getLogger("pe_lab")


class CellMeasurer:
    """Measures one cell after another; consecutive cells of a run share its loaded model."""

    def __init__(self, device: str, threads: int) -> None:
        self.device, self.threads = device, threads
        self.run: LoadedRun | None = None
        self.provenance: dict[str, Any] | None = None
        self.max_tokens: int | None = None

    def measure(self, cell: Cell, data: Batch, reference: Batch) -> dict[str, Any]:
        """The columns of a row other than its measurement.

        Args:
            reference: in-domain sequences, from which the error of guessing is computed.
        """
        _poll()
        began = perf_counter()
        if self.run is None or self.run.path != cell.path:
            self.run = load(cell.path)
        run = self.run
        changes = {"device": self.device, "threads": self.threads}
        device = prepare(replace(run.plan.config, **changes))  # type: ignore[type-var]
        numbers = self._numbers(cell, cell.model(run).to(device), data)
        numbers["guess"] = cell.target.task.guess(reference, data)
        seconds = perf_counter() - began
        encoding = {"encoding": cell.encoding, "k": cell.scale}
        return {**encoding, **numbers, "seconds": seconds, **self._provenance(device)}

    def _numbers(self, cell: Cell, model: Model, data: Batch) -> dict[str, Any]:
        """The metrics, measured in smaller batches if memory runs out, here and afterwards."""
        sequences, tokens = data.tokens.shape
        batch_tokens, split = cell.plan.config.eval.batch_tokens, cell.target.split

        def measure(rows: int) -> dict[str, Any]:
            evaluator = Evaluator(cell.plan, model, {split: data}, _poll, rows * tokens)
            found: dict[str, Any] = evaluator.answers(split).measured()
            if cell.measurement.generated:
                found |= generated_metrics(evaluator.generated(split).measured())
            return found

        rows = max(1, min(batch_tokens, self.max_tokens or batch_tokens) // tokens)
        rows = min(rows, sequences)
        try:
            numbers, fitting = halve_until_it_fits(measure, rows)
        except DoesNotFit:
            raise RunError(
                f"out of memory: one sequence of {tokens} tokens of {cell.target.split} with "
                f"pe={cell.encoding} does not fit; give shorter lengths= (what was measured "
                "before is recorded)"
            ) from None
        if fitting < rows:
            self.max_tokens = fitting * tokens
            logger.warning(
                "out of memory with %d sequences of %d tokens at once: continuing with %d",
                rows, tokens, fitting,
            )  # fmt: skip
        return numbers

    def _provenance(self, device: torch.device) -> dict[str, Any]:
        if self.provenance is None:
            facts = environment(self.threads, device.type, device.index)
            self.provenance = {
                "version": facts["versions"]["pe-lab"],
                "git_revision": facts["git_revision"],
                "git_changed": facts["git_dirty"],
                **{name: facts[name] for name in ("device", "threads", "host")},
            }
        return {
            **self.provenance,
            "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        }


def _poll() -> None:
    if (stop := stopping()) is not None:
        raise stop
