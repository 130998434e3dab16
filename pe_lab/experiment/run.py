"""Executes one run, from its plan to its summary."""

import logging
import math
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Column, Table

from pe_lab.core.console import LINE_INTERVAL_S, StepProgress, busy, console, logger, percent
from pe_lab.core.errors import Interrupted, MachineError, RunError, UsageError, by_machine, sentence
from pe_lab.core.metrics import (
    ENDINGS,
    IN_DOMAIN,
    METRICS,
    SHARES,
    compute_metrics,
    generated_metrics,
    metric_name,
    metric_prefix,
)
from pe_lab.core.task import Batch
from pe_lab.core.tracker import TrackedRun
from pe_lab.experiment.environment import (
    prepare_process,
    record_start,
    set_threads,
    warnings_about,
)
from pe_lab.experiment.load_run import load_origin
from pe_lab.experiment.signals import get_interrupt, raise_interrupt, stop_on_signal
from pe_lab.experiment.tracking import Tracking
from pe_lab.store.run_folder import RunFolder, find_edited, seal_object
from pe_lab.store.run_id import identity
from pe_lab.train.batches import evaluation_set
from pe_lab.train.plan import Plan
from pe_lab.train.trainer import Trainer


@dataclass(frozen=True)
class SweepPlace:
    """A run's place in a sweep.

    Args:
        name: of the run with its number, which begins its log lines.
        sweep: name of the sweep.
    """

    name: str
    sweep: str


def run_and_print(plan: Plan, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """``run``, and print its table and where its files are."""
    folder, config = find_folder(plan), plan.config
    summary = run(plan, overrides)
    console().print(split_table(summary))
    console().print(f"written to  {folder.path}", soft_wrap=True)
    print_next_commands(folder, config.runs_dir)
    return summary


def print_next_commands(folder: RunFolder, runs_dir: str) -> None:
    """Print the commands that show this run and those beside it, one a line to be copied."""
    where = [] if runs_dir == "runs" else [f"runs_dir={runs_dir}"]
    commands = [["results", *where], ["report", *where], ["inspect", f"run={folder.path}"]]
    for words, label in zip(commands, ("look at it:", "", ""), strict=True):
        console().print(f"{label:11} {shlex.join(['pe-lab', *words])}", soft_wrap=True)


def find_folder(plan: Plan) -> RunFolder:
    config, names = plan.config, plan.config.names
    run_id = identity(plan.resolved, plan.task.contents())
    return RunFolder.of(config.runs_dir, names["task"], names["pe"], config.seed, run_id)


def run(
    plan: Plan,
    overrides: Sequence[str] = (),
    place: SweepPlace | None = None,
) -> dict[str, Any]:
    """Do the run, or what is left of it, and return its summary.

    Args:
        overrides: of the command line, recorded with the run.
        place: in a sweep; None: a run by itself.

    Raises:
        HeldError: another process is writing it.
        PeLabError: it failed; the folder's status says so.
        Interrupted: a signal came; the checkpoint is written.
    """
    folder = find_folder(plan)
    with folder.lock():
        if plan.config.force and (aside := folder.set_aside()):
            logger.info("force=true: what was there is now %s", aside)
        summary = folder.summary()
        if summary is None:
            return _execute(plan, folder, list(overrides), place)
        if place is None:  # in a sweep, the worker that finished the run has reported it
            edited = find_edited(summary.get("sources", {}))
            logger.info(
                "%s is finished already%s; force=true runs it again",
                folder.path,
                f", by the code of {' + '.join(edited)} before an edit" if edited else "",
            )
        return summary


def _execute(
    plan: Plan, folder: RunFolder, overrides: list[str], place: SweepPlace | None
) -> dict[str, Any]:
    """Train and measure; the status of the folder says how it ended."""
    device = prepare_process(plan.config)
    sets, steps = draw_evaluation_sets(plan), plan.config.train.steps
    folder.make()
    with log_to_file(folder.path / "log.txt"), stop_on_signal():
        trainer = Trainer(plan, device, folder, sets, get_interrupt)
        try:
            _start(trainer, overrides, place)
            summary = _train_and_measure(trainer, overrides, place)
        except Interrupted:
            folder.set_status("interrupted", trainer.step, steps)
            command = "the same command" + " without force=true" * plan.config.force
            logger.warning("stopped by a signal; run %s to continue %s", command, folder.path)
            raise
        except (Exception, SystemExit) as error:
            if not folder.path.exists():
                raise MachineError(
                    f"{folder.path} was removed while the run was made, and nothing of it is "
                    "left: the same command begins it anew"
                ) from error
            logger.debug("the run failed", exc_info=True)
            # SystemExit would end the whole sweep, with exit code 0 even as a success.
            message = f"the run called sys.exit({error})"
            failure = error if isinstance(error, Exception) else RunError(message)
            # A full disk refuses this too; the first failure is the one to report.
            with suppress(RunError):
                folder.set_status(
                    "failed", trainer.step, steps, sentence(failure), by_machine(failure)
                )
            raise failure from error.__cause__
        # A signal that came too late to stop this run still stops the sweep.
        raise_interrupt()
    return summary


def _start(trainer: Trainer, overrides: list[str], place: SweepPlace | None) -> None:
    """Resume from the checkpoint or begin, and record the start."""
    lineage: list[dict[str, str]] = []
    if trainer.resume():
        logger.info("resuming from step %d, %s", trainer.step, trainer.folder.path)
    else:
        lineage = load_origin(trainer.model, trainer.plan)
    # A sweep says it once, for all of its runs.
    for message in warnings_about(trainer.plan) if place is None else ():
        logger.warning("%s", message)
    set_threads(trainer, swept=place is not None)
    record_start(trainer, overrides, lineage, place.sweep if place else None)
    trainer.folder.set_status("running", trainer.step, trainer.config.steps)


def _train_and_measure(
    trainer: Trainer, overrides: list[str], place: SweepPlace | None
) -> dict[str, Any]:
    folder, config, plan = trainer.folder, trainer.plan.config, trainer.plan
    tracked = TrackedRun(
        folder.path.absolute(), folder.run_id, plan.resolved, overrides,
        folder.starts()[-1], folder.rows(), plan.task.evaluated(),
    )  # fmt: skip
    # A sweep shows lines instead.
    with nullcontext() if place else busy(f"starting {config.names.get('tracker', 'tracker')}"):
        tracking = Tracking(config.tracker, tracked)

    def log(row: dict[str, Any]) -> None:
        folder.add_row(row)
        tracking.log(row)

    names, summary = config.names, None
    name = place.name if place else f"{names['task']} {names['pe']} seed {config.seed}"
    # A sweep has lines of many runs.
    interval = 6 * LINE_INTERVAL_S if place else LINE_INTERVAL_S
    try:
        progress = StepProgress(name, config.train.steps, trainer.step, interval)
        trainer.fit(log, progress.step)
        result = summarize(trainer, overrides)
        folder.set_status("finished", trainer.step, config.train.steps)
        folder.write("summary.json", seal_object(result))
        if not plan.config.keep_checkpoint:
            folder.checkpoint.unlink()
        summary = result
    finally:
        tracking.finish(summary, exit_code=int(summary is None))
    return summary


@contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Also write every log record, tracebacks included, to a run's file."""
    handler = logging.FileHandler(path, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    # A record that cannot be written is dropped silently.
    handler.handleError = lambda record: None  # type: ignore[method-assign]
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        with suppress(OSError):
            handler.close()


def draw_evaluation_sets(plan: Plan) -> dict[str, Batch]:
    """Return the sequences of every measured split, the same for every seed.

    Raises:
        UsageError: the first sequences of a split have nothing to score.
    """
    sizes, sets = plan.config.eval, {}
    for split in plan.splits:
        n, quick = (plan.sequences(split, m) for m in (sizes.sequences, sizes.quick_sequences))
        sets[split] = evaluation_set(plan.task, split, n)
        if not sets[split].scored[:quick].any():
            raise UsageError(
                f"the split {split} has nothing to score in its first {quick} sequences: raise "
                f"eval.quick_sequences={sizes.quick_sequences}, or change the keys of the task"
            )
    return sets


def summarize(trainer: Trainer, overrides: list[str]) -> dict[str, Any]:
    """Evaluate the trained model on every split; returns the content of summary.json."""
    plan, folder, began = trainer.plan, trainer.folder, time.perf_counter()
    reference = trainer.evaluator.sets[IN_DOMAIN]
    metrics: dict[str, float] = {}
    by: dict[str, Any] = {}
    for split, data in trainer.evaluator.sets.items():
        answers = trainer.evaluator.answers(split)
        numbers = compute_metrics(answers)
        numbers["guess"] = plan.task.split(split).guess(reference, data)
        by[split] = answers.breakdown(plan.task.exact_tags)
        if plan.config.eval.generate:
            numbers |= generated_metrics(trainer.evaluator.generated(split))
        metrics |= {metric_name(split, name): value for name, value in numbers.items()}
    encoding = {id(p): p for e in trainer.model.encodings for p in e.parameters()}
    metrics |= {
        "params/total": sum(p.numel() for p in trainer.model.parameters()),
        "params/encoding": sum(p.numel() for p in encoding.values()),
        "time/train_s": trainer.seconds,
        "time/measure_s": time.perf_counter() - began,
    }
    resolved = dict(plan.resolved)
    names = resolved.pop("names")
    weights = {"checkpoint.pt": trainer.checkpoint_digest} if plan.config.keep_checkpoint else {}
    return {
        "task": names["task"],
        "pe": names["pe"],
        "seed": plan.config.seed,
        "run_id": folder.run_id,
        "identity": folder.identity,
        "digests": folder.digests() | weights,
        "steps": trainer.step,
        "names": names,
        "overrides": overrides,
        "splits": {s: metric_prefix(s) for s in plan.splits} | dict.fromkeys(plan.too_long),
        "too_long": plan.too_long,
        # JSON has no nan, which a loss out of domain may be.
        "metrics": {k: v if math.isfinite(v) else None for k, v in metrics.items()},
        "by": by,
        "config": resolved,
        "null_keys": sorted(plan.null_values),
        "contents": plan.task.contents(),
        "lineage": folder.starts()[-1]["lineage"],
        "sources": folder.starts()[-1]["sources"],
    }


def split_table(summary: dict[str, Any]) -> Table:
    """Return a table with one row per split of a finished run."""
    metrics = summary["metrics"]
    columns = {metric.column: metric.name for metric in METRICS if metric.column}
    if any(key.endswith("/error_generated") for key in metrics):
        columns["written"] = "error_generated"
    columns |= {
        name.replace("_", " "): name for name in ENDINGS if f"{IN_DOMAIN}/{name}" in metrics
    }
    headings = (Column(heading, justify="right") for heading in columns)
    title = f"{summary['task']}, {summary['pe']}, seed {summary['seed']}: error in %"
    table = Table("split", *headings, title=title, title_justify="left")
    for split, prefix in summary["splits"].items():
        if prefix is None:
            table.add_row(split, "too long", f"needs {summary['too_long'][split]} positions")
        else:
            table.add_row(split, *(_cell(metrics, prefix, name) for name in columns.values()))
    return table


def _cell(metrics: dict[str, Any], prefix: str, name: str) -> str:
    value = metrics.get(f"{prefix}/{name}")
    if name == "error_low":
        return f"{percent(value)} .. {percent(metrics[f'{prefix}/error_high'])}"
    if name in SHARES:
        return percent(value)
    if value is None:
        return "not finite"
    return str(value) if isinstance(value, int) else f"{value:.4f}"
