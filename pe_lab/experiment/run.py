"""One run, from its plan to its summary."""

import logging
import math
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from pe_lab.config.schema import plain
from pe_lab.core.console import StepProgress, busy, console, logger, percent
from pe_lab.core.errors import Interrupted, RunError, UsageError, by_machine, sentence
from pe_lab.core.files import no_link
from pe_lab.core.memory import is_out_of_memory
from pe_lab.core.metrics import (
    IN_DOMAIN,
    METRICS,
    generated_metrics,
    is_share,
    metric_names,
    metric_prefix,
)
from pe_lab.core.signals import StopOnSignal, stopping
from pe_lab.core.task import Batch
from pe_lab.experiment.begin import begin
from pe_lab.experiment.provenance import (
    changed_code,
    made_otherwise,
    prepare,
    record_start,
    set_threads,
    unchanged,
    without_effect,
)
from pe_lab.experiment.tracking import Tracking, track_rest, tracked_run
from pe_lab.store.metrics_log import MetricsLog
from pe_lab.store.run_folder import RunFolder
from pe_lab.store.run_id import identity
from pe_lab.store.schema import sealed
from pe_lab.train.batches import evaluation_set
from pe_lab.train.plan import Plan
from pe_lab.train.trainer import Trainer


class RunLog(logging.Handler):
    """Appends log records to a file; a record that cannot be written is dropped silently."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError), open(self.path, "a", opener=no_link, encoding="utf-8") as file:
            file.write(self.format(record) + "\n")


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Also write every log record, tracebacks included, to a run's file."""
    handler = RunLog(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@dataclass(frozen=True)
class SweepPlace:
    """A run's place in a sweep.

    Args:
        name: of the run, shown with its progress.
        sweep: name of the sweep.
        number: of the run in it; runs take the GPUs in turn by it.
        line_every: seconds between lines of progress; None: a progress bar.
    """

    name: str
    sweep: str
    number: int
    line_every: float | None = None


def run_alone(plan: Plan, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """``run``, and print its table and where its files are."""
    folder, config = folder_of(plan), plan.config
    found = not config.force and folder.summary() is not None
    summary = run(plan, overrides)
    out = console()
    out.print(split_table(summary))
    out.print(f"{'found in' if found else 'written to':11} {folder.path}", soft_wrap=True)
    look_at(folder, config.runs_dir)
    if (folder.path / "wandb").is_dir():
        out.print(f"            wandb leet {folder.path / 'wandb'}", soft_wrap=True)
    return summary


def look_at(folder: RunFolder, runs_dir: str) -> None:
    """Print the commands that show this run and those beside it, one a line to be copied."""
    where = [] if runs_dir == "runs" else [f"runs_dir={runs_dir}"]
    commands = [["results", *where], ["report", *where], ["inspect", f"run={folder.path}"]]
    for words, label in zip(commands, ("look at it:", "", ""), strict=True):
        console().print(f"{label:11} {shlex.join(['pe-lab', *words])}", soft_wrap=True)


def folder_of(plan: Plan) -> RunFolder:
    config, names = plan.config, plan.config.names
    run_id = identity(plain(plan.resolved), plan.task.contents())
    return RunFolder.of(config.runs_dir, names["task"], names["pe"], config.seed, run_id)


def run(
    plan: Plan, overrides: Sequence[str] = (), place: SweepPlace | None = None
) -> dict[str, Any]:
    """Do the run, or what is left of it, and return its summary.

    Args:
        overrides: of the command line, recorded with the run.
        place: in a sweep; None: a run by itself.

    Raises:
        HeldError: another process is at it.
        PeLabError: it failed; the folder's status says so.
        Interrupted: a signal came; the checkpoint is written.
    """
    folder = folder_of(plan)
    with folder.lock():
        if plan.config.force and (aside := folder.set_aside()):
            logger.info("force=true: what was there is now %s", aside)
        summary = folder.summary()
        if summary is None:
            return _execute(plan, folder, list(overrides), place)
        found = f"{folder.path} is finished already"
        if otherwise := made_otherwise(folder, plan.config):
            found += f", made with {otherwise}, so the last digits may differ"
        if ignored := unchanged(summary["config"], plan.resolved):
            found += f", {ignored}"
        if changed := changed_code(folder, plan.resolved):
            found += f", before the file of {changed} changed: its numbers are those of that code"
        logger.info("%s; force=true runs it again", found)
    track_rest(plan, folder)
    return summary


def _execute(
    plan: Plan, folder: RunFolder, overrides: list[str], place: SweepPlace | None
) -> dict[str, Any]:
    config = plan.config
    device = prepare(config, place.number if place else 0)
    sets = evaluation_sets(plan)
    folder.make()
    with logging_to(folder.log), StopOnSignal():
        trainer = Trainer(plan, device, folder, sets, stopping)
        try:
            if resumed := trainer.resume():
                logger.info("resuming from step %d, %s", trainer.step, folder.path)
            lineage = [] if resumed else begin(trainer.model, plan)
            # A sweep says it once, for all of its runs.
            if place is None:
                for message in without_effect(plan, overrides):
                    logger.warning("%s", message)
            set_threads(trainer, swept=place is not None)
            record_start(trainer, overrides, lineage)
            folder.set_status("running", trainer.step, config.train.steps)
            summary = _train_and_evaluate(trainer, overrides, place)
        except Interrupted:
            folder.set_status("interrupted", trainer.step, config.train.steps)
            command = "the same command without force=true" if config.force else "the same command"
            logger.warning("stopped by a signal; run %s to continue %s", command, folder.path)
            raise
        except (Exception, SystemExit) as error:
            logger.debug("the run failed", exc_info=True)
            failure: BaseException = error
            if isinstance(error, SystemExit):
                # It would end the whole sweep, with exit code 0 even as a success.
                failure = RunError(f"the run called sys.exit({error.code}), see {folder.log}")
            # A full disk refuses this too; the first failure is the one to report.
            with suppress(RunError):
                folder.set_status(
                    "failed",
                    trainer.step,
                    config.train.steps,
                    sentence(failure),
                    by_machine=by_machine(error) or is_out_of_memory(error),
                )
            if failure is error:
                raise
            raise failure from error
        # A signal that came too late to stop this run still stops the sweep.
        late = stopping()
    if late is not None:
        raise late
    return summary


def _train_and_evaluate(
    trainer: Trainer, overrides: list[str], place: SweepPlace | None
) -> dict[str, Any]:
    folder, config = trainer.folder, trainer.plan.config
    log = MetricsLog(folder.metrics, *trainer.metrics_mark)
    sweep = place.sweep if place else None
    # A sweep shows lines instead.
    waiting = nullcontext() if place else busy(f"starting {config.names.get('tracker', 'tracker')}")
    with waiting:
        tracking = Tracking(config.tracker, tracked_run(trainer.plan, folder, overrides, sweep))
    log.listener = tracking.log
    names, exit_code, summary = config.names, 1, None
    name = place.name if place else f"{names['task']} {names['pe']} seed {config.seed}"
    line_every = place.line_every if place else None
    progress = StepProgress(name, config.train.steps, trainer.step, line_every)
    try:
        with progress:
            trainer.fit(log, progress.step)
            progress.doing("measuring")
            summary = summarize(trainer, overrides)
        log.sync()
        folder.set_status("finished", trainer.step, config.train.steps)
        folder.write_text("summary.json", sealed(summary))
        exit_code = 0
    finally:
        log.close()
        tracking.finish(summary if exit_code == 0 else None, exit_code)
    return summary


def evaluation_sets(planned: Plan) -> dict[str, Batch]:
    """The sequences of every measured split, the same for every seed.

    Raises:
        UsageError: the first sequences of a split have nothing to score.
    """
    sizes = planned.config.eval
    sets = {}
    for split in planned.splits:
        n, quick = (planned.sequences(split, m) for m in (sizes.sequences, sizes.quick_sequences))
        sets[split] = evaluation_set(planned.task, split, n)
        if not sets[split].scored[:quick].any():
            raise UsageError(
                f"the split {split} has nothing to score in its first {quick} sequences: raise "
                f"eval.quick_sequences={sizes.quick_sequences}, or change task.splits.{split}"
            )
    return sets


def summarize(trainer: Trainer, overrides: list[str]) -> dict[str, Any]:
    """Evaluate the trained model on every split; returns the content of summary.json."""
    planned, config, began = trainer.plan, trainer.plan.config, time.perf_counter()
    reference = trainer.evaluator.sets[IN_DOMAIN]
    metrics: dict[str, float] = {}
    by: dict[str, Any] = {}
    for split, data in trainer.evaluator.sets.items():
        answers = trainer.evaluator.answers(split)
        numbers = answers.measured()
        numbers["guess"] = planned.task.split(split).guess(reference, data)
        by[split] = answers.breakdown(planned.task.exact_tags)
        if config.eval.generate:
            numbers |= generated_metrics(trainer.evaluator.generated(split).measured())
        metrics |= metric_names(split, numbers)
    encoding = {id(p): p for e in trainer.model.encodings for p in e.parameters()}
    metrics |= {
        "params/total": sum(p.numel() for p in trainer.model.parameters()),
        "params/encoding": sum(p.numel() for p in encoding.values()),
        "time/train_s": trainer.seconds,
        "time/measure_s": time.perf_counter() - began,
    }
    resolved = plain(planned.resolved)
    names = resolved.pop("names")
    return {
        "task": names["task"],
        "pe": names["pe"],
        "seed": config.seed,
        "run_id": trainer.folder.run_id,
        "identity": trainer.folder.identity,
        "digests": {
            "checkpoint.pt": trainer.checkpoint_digest,
            "metrics.jsonl": trainer.log.mark[1],
            **trainer.folder.digests(),
        },
        "steps": trainer.step,
        "names": names,
        "overrides": overrides,
        "splits": {s: metric_prefix(s) for s in planned.splits} | dict.fromkeys(planned.too_long),
        "too_long": planned.too_long,
        # JSON has no nan, which a loss out of domain may be.
        "metrics": {k: v if math.isfinite(v) else None for k, v in metrics.items()},
        "by": by,
        "config": resolved,
        "null_keys": sorted(planned.null_values),
        "contents": planned.task.contents(),
        **({"lineage": trainer.folder.starts()[-1]["lineage"]} if planned.origin else {}),
    }


def split_table(summary: dict[str, Any]) -> Table:
    """One row per split of a finished run."""
    metrics = summary["metrics"]
    shown = [(metric.column, metric.name) for metric in METRICS if metric.column]
    if any(key.endswith("/error_generated") for key in metrics):
        shown.insert(3, ("written", "error_generated"))
    title = f"{summary['task']}, {summary['pe']}, seed {summary['seed']}: error in %"
    table = Table(title=title, title_justify="left")
    table.add_column("split")
    for column, _ in shown:
        table.add_column(column, justify="right")
    for split, prefix in summary["splits"].items():
        if prefix is None:
            reason = f"needs {summary['too_long'][split]} positions"
            table.add_row(split, "not applicable", reason, *[""] * (len(shown) - 2))
        else:
            table.add_row(split, *(_cell(metrics, prefix, name) for _, name in shown))
    return table


def _cell(metrics: dict[str, Any], prefix: str, name: str) -> str:
    value = metrics.get(f"{prefix}/{name}")
    if name == "error_low":
        return f"{percent(value)} .. {percent(metrics[f'{prefix}/error_high'])}"
    if value is None:
        return "not finite" if f"{prefix}/{name}" in metrics else "-"
    if is_share(name):
        return percent(value)
    return str(value) if isinstance(value, int) else f"{value:.4f}"
