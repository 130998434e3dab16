"""Finished runs measured at any length, also with other encodings than the trained one.

>>> from pe_lab.evaluate.evaluate import evaluate
>>> frame = evaluate(["runs/text/rope/seed0-0123abcd"], ["pi", "rerope:window=64:logn=test"],
...                  lengths=[128, 256, 512])
>>> frame.group_by("encoding", "length", maintain_order=True).agg(pl.mean("error"))

A split at a length is ``task.split(split).at_length(length)``, drawn from the split's random
stream: the same sequences for every run and encoding. At the split's configured length these are
the sequences of the run's final evaluation.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import polars as pl
import torch

from pe_lab.config.schema import Config, to_dict
from pe_lab.core.console import logger
from pe_lab.core.errors import PeLabError, RunError, UsageError, check_known, is_out_of_memory
from pe_lab.core.metrics import (
    ENDINGS,
    GENERATED,
    IN_DOMAIN,
    NOT_FINITE,
    compute_metrics,
    generated_metrics,
)
from pe_lab.core.task import Batch, Task
from pe_lab.evaluate.record import (
    CELL_COLUMNS,
    METRIC_COLUMNS,
    TRAINED,
    Evaluations,
    Measurement,
)
from pe_lab.evaluate.swap_encoding import (
    MissingWeightsError,
    split_encodings,
    swap_encoding,
    transfer_weights,
)
from pe_lab.experiment.environment import describe_environment, prepare_process
from pe_lab.experiment.load_run import LoadedRun, load
from pe_lab.experiment.signals import raise_interrupt, stop_on_signal
from pe_lab.models.base import Model
from pe_lab.pe.rope import stretch_factor
from pe_lab.store.run_id import drop_seed, identity
from pe_lab.train.batches import check_memory, evaluation_set
from pe_lab.train.measure import Evaluator
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
        ``generate`` ``error_generated`` and so on and ``right``, ``too_early``, ``endless``
        (null where the task has no ``end``), ``left_out`` (the number of trained
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
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("device=cuda is not allowed: there is no GPU here; set device=auto")
    others = split_encodings(",".join(encodings)) if encodings else []
    if k and not others:
        raise UsageError(f"k={k:g} scales the encodings of pe=: give pe=NAME, or leave k out")
    table, records = [], {}
    for path in map(Path, runs):
        try:
            run, record = load(path), Evaluations(path)
        except PeLabError as error:
            if left_out is None:
                raise
            left_out(error)
            continue
        table += make_cells(run, others, splits, lengths, k, sequences, generate, config_dir)
        records[path] = record
    measurer, rows = Measurer(device, threads), []
    with stop_on_signal():
        for cell in table:
            record = records[cell.path]
            row = None if force or cell.message else record.find(cell.measurement)
            earlier = row is not None
            if row is None and cell.message is None:
                row = record.add(cell.measurement, measurer.measure(cell))
            rows.append(_row(cell, row or {}, earlier))
    written = (*GENERATED, *ENDINGS) if generate else ()
    columns = CELL_COLUMNS | METRIC_COLUMNS | dict.fromkeys(written, pl.Float64)
    columns |= {"left_out": pl.Int64, "message": pl.String, "earlier": pl.Boolean}
    return pl.DataFrame(rows, {**columns, NOT_FINITE: pl.String}, orient="row")


def _row(cell: Cell, row: dict[str, Any], earlier: bool) -> dict[str, Any]:
    names, what, metrics = cell.trained.names, cell.measurement, (*METRIC_COLUMNS, *GENERATED)
    return {
        **row,
        **{"path": str(cell.path), "task": names["task"], "pe": names["pe"]},
        **{"seed": cell.trained.seed, "setting": cell.setting, "encoding": cell.encoding},
        **{"k": cell.scale, "split": what.split, "length": cell.length, "tokens": what.tokens},
        **{"left_out": cell.left_out, "message": cell.message, "earlier": earlier},
        # Null in a row, where others are absent.
        NOT_FINITE: " ".join(name for name in metrics if name in row and row[name] is None),
    }


def make_cells(
    run: LoadedRun,
    encodings: Sequence[str],
    splits: Sequence[str],
    lengths: Sequence[int] | None = None,
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
    swapped = {text: swap_encoding(config, text, k, config_dir) for text in encodings}
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


class Measurer:
    """Measures one cell after another. Cells of a run share its model, and cells of a split its
    sequences."""

    def __init__(self, device: str, threads: int) -> None:
        self.device, self.threads = device, threads
        self.run: LoadedRun | None = None
        self.sequences: dict[str, Batch] = {}

    def measure(self, cell: Cell) -> dict[str, Any]:
        """Return the columns of a row other than its measurement."""
        began, config, what = perf_counter(), cell.trained, cell.measurement
        if self.run is None or self.run.path != cell.path:
            self.run = load(cell.path)
        changes = {"device": self.device, "threads": self.threads}
        device = prepare_process(replace(config, **changes))  # type: ignore[type-var]
        data = self._sequences(cell, what.split, cell.task, what.sequences)
        if not data.scored.any():
            raise UsageError(
                f"the split {what.split} has nothing to score in its first {what.sequences} "
                f"sequences of {what.tokens} tokens: raise sequences=, or give other lengths"
            )
        n = cell.plan.sequences(IN_DOMAIN, config.eval.sequences)
        reference = self._sequences(cell, IN_DOMAIN, cell.plan.task.split(IN_DOMAIN), n)
        numbers = _numbers(cell, transfer_weights(self.run.model, cell.plan).to(device), data)
        facts = describe_environment(self.threads, device.type, device.index)
        return {
            **{"encoding": cell.encoding, "k": cell.scale, **numbers},
            "guess": cell.task.guess(reference, data),
            "seconds": perf_counter() - began,
            "version": facts["versions"]["pe-lab"],
            **{"git_revision": facts["git_revision"], "git_changed": facts["git_dirty"]},
            **{name: facts[name] for name in ("device", "threads", "host")},
            "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        }

    def _sequences(self, cell: Cell, split: str, task: Task, n: int) -> Batch:
        key = json.dumps([cell.trained.task, split, task.n_tokens, n], sort_keys=True)
        if key not in self.sequences:
            usual = task.n_tokens == cell.plan.task.split(split).n_tokens
            changed = None if usual else task
            self.sequences[key] = evaluation_set(cell.plan.task, split, n, changed)
        return self.sequences[key]


def _numbers(cell: Cell, model: Model, data: Batch) -> dict[str, Any]:
    """Return the metrics; the batch is halved while memory runs out."""
    tokens, split = data.tokens.shape[1], cell.measurement.split
    rows = max(1, min(len(data), cell.plan.config.eval.batch_tokens // tokens))
    while True:
        evaluator = Evaluator(cell.plan, model, {split: data}, raise_interrupt, rows * tokens)
        try:
            numbers: dict[str, Any] = compute_metrics(evaluator.answers(split))
            if cell.measurement.generated:
                numbers |= generated_metrics(evaluator.generated(split))
            return numbers
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        # Outside of the handler, whose traceback holds on to tensors.
        if rows == 1:
            raise RunError(
                f"out of memory: one sequence of {tokens} tokens does not fit: give shorter lengths"
            )
        rows //= 2
        torch.cuda.empty_cache()
        logger.warning("out of memory: continuing with %d sequences at once", rows)
