"""One run, from a checked configuration to its summary.

A run is a generator that yields its trainer before each step (``stepwise``). Most are simply
gone through to their end; where several take turns in one process, each keeps its lock, its
files, its dashboard and its way of failing, and only the step is taken for all at once.
"""

import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from pe_lab.common.console import StepProgress, console, split_table
from pe_lab.common.errors import Interrupted, RunError, sentence
from pe_lab.common.run_log import RunLog, logging_to
from pe_lab.common.signals import StopOnSignal, stopping
from pe_lab.common.task import Batch
from pe_lab.config.schema import Config, plain
from pe_lab.experiment.machine import prepare
from pe_lab.experiment.provenance import record_start
from pe_lab.experiment.summary import evaluation_sets, measured_summary
from pe_lab.experiment.wandb_labels import labels
from pe_lab.experiment.wandb_run import Wandb
from pe_lab.pe.positions import Sequential
from pe_lab.store.metrics_log import MetricsLog
from pe_lab.store.run_folder import RunFolder
from pe_lab.store.run_id import identity
from pe_lab.training.plan import Plan, plan
from pe_lab.training.threads import set_threads
from pe_lab.training.trainer import Taken, Trainer

logger = logging.getLogger("pe_lab")

Run = Generator[Trainer, Taken | None, dict[str, Any]]
"""A run on its way to its summary: it yields its trainer before each step, and takes what became
of the step; sent None, it takes the step itself."""


@dataclass(frozen=True)
class Shown:
    """How a run is shown, and where it stands in a sweep.

    Args:
        name: what its progress is told under.
        line_every: seconds between lines of progress (inf: none); None: a bar on a terminal.
        number: among the jobs of a sweep; those share the GPUs by it.
        together: whether its steps are taken with those of others, without kernels.
    """

    name: str
    line_every: float | None = None
    number: int = 0
    together: bool = False


def run_alone(config: Config, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """``run`` with its table and where its files are, for the terminal."""
    planned = plan(config)
    folder = folder_of(planned)
    summary = _to_its_end(stepwise(planned, folder, overrides))
    out = console()
    out.print(split_table(summary))
    out.print(f"written to  {folder.path}", soft_wrap=True)
    out.print(f"look at it: pe-lab results runs_dir={config.runs_dir}", soft_wrap=True)
    if (folder.path / "wandb").is_dir():
        out.print(f"            wandb leet {folder.path / 'wandb'}", soft_wrap=True)
    return summary


def folder_of(planned: Plan) -> RunFolder:
    """The folder that a run's numbers belong in."""
    config = planned.config
    known_by = identity(plain(config), planned.task.contents())
    names = config.names
    return RunFolder.of(config.runs_dir, names["task"], names["pe"], config.seed, known_by)


def run(
    config: Config,
    overrides: Sequence[str] = (),
    sweep: str | None = None,
    shown: Shown | None = None,
) -> dict[str, Any]:
    """Do the run, or what is left of it, and return its summary.

    Args:
        overrides: the command line's words, for the record.
        sweep: name of the sweep that the run belongs to.

    Raises:
        Held: another process is at it.
        PeLabError: it could not be done; the folder's status says so.
        Interrupted: a signal came; the checkpoint is written.
    """
    planned = plan(config)
    return _to_its_end(stepwise(planned, folder_of(planned), overrides, sweep, shown))


def _to_its_end(run: Run) -> dict[str, Any]:
    while True:
        try:
            next(run)
        except StopIteration as end:
            summary: dict[str, Any] = end.value
            return summary


def stepwise(
    planned: Plan,
    folder: RunFolder,
    overrides: Sequence[str],
    sweep: str | None = None,
    shown: Shown | None = None,
    sets: Callable[[], dict[str, Batch]] | None = None,
) -> Run:
    """``run``, step by step.

    Args:
        folder: the one of ``folder_of``.
        sets: makes the evaluation sets, for runs that share them.
    """
    config, names = planned.config, planned.config.names
    shown = shown or Shown(f"{names['task']} {names['pe']} seed {config.seed}")
    sets = sets or partial(evaluation_sets, planned)
    with folder.lock():
        if config.force and (aside := folder.set_aside()):
            logger.info("force=true: what was there is now %s", aside)
        summary = folder.summary()
        if summary is None:
            summary = yield from _execute(planned, folder, list(overrides), sweep, shown, sets)
        else:
            logger.info("%s is finished already; force=true runs it again", folder.path)
    return summary


def _execute(
    planned: Plan,
    folder: RunFolder,
    overrides: list[str],
    sweep: str | None,
    shown: Shown,
    make_sets: Callable[[], dict[str, Batch]],
) -> Run:
    config = planned.config
    device = prepare(config, shown.number)
    sets = make_sets()
    folder.make()
    with logging_to(folder.log) as said, StopOnSignal():
        trainer = Trainer(planned, device, folder, sets, stopping)
        try:
            if trainer.resume():
                logger.info("going on from step %d, %s", trainer.step, folder.path)
            _tell_without_effect(trainer)
            set_threads(trainer, swept=sweep is not None)
            record_start(trainer, overrides, together=shown.together)
            folder.set_status("running", trainer.step, config.train.steps)
            log = MetricsLog(folder.metrics, trainer.metrics_bytes)
            wandb = Wandb(
                config.tracker.wandb,
                folder.path,
                labels(config, folder.run_id, sweep, overrides),
                log.cut,
            )
            summary = yield from _train_and_measure(trainer, log, wandb, overrides, shown, said)
        except Interrupted:
            folder.set_status("interrupted", trainer.step, config.train.steps)
            line = "the same line without force=true" if config.force else "the same line"
            logger.warning("stopped by a signal; %s goes on with %s", line, folder.path)
            raise
        except (Exception, SystemExit) as error:
            logger.debug("the run failed", exc_info=True)
            told: BaseException = error
            if isinstance(error, SystemExit):
                # It would end the whole sweep, as if all were done where its code is 0.
                told = RunError(f"the run called sys.exit({error.code}), see {folder.log}")
            # A full disk refuses this too; what failed first is what is told.
            with suppress(RunError):
                folder.set_status("failed", trainer.step, config.train.steps, sentence(told))
            if told is error:
                raise
            raise told from error
        # A signal that came too late to stop this run is still meant for the sweep.
        late = stopping()
    if late is not None:
        raise late
    return summary


def _tell_without_effect(trainer: Trainer) -> None:
    """What was asked for that changes nothing."""
    planned, cfg = trainer.plan, trainer.config
    if cfg.warmup >= cfg.steps:
        logger.warning(
            "train.warmup=%d is not over at the last step, %d: the rate never gets to train.lr",
            cfg.warmup, cfg.steps,
        )  # fmt: skip
    read = any(encoding.reads_positions for encoding in trainer.model.encodings)
    if not read and not isinstance(planned.positions, Sequential):
        names = planned.config.names
        logger.warning(
            "positions=%s has no effect on pe=%s, which reads no positions",
            names.get("positions"), names["pe"],
        )  # fmt: skip


class _Rows:
    """Rows go to the file first, then to the dashboard."""

    def __init__(self, log: MetricsLog, wandb: Wandb) -> None:
        self.log, self.wandb = log, wandb

    @property
    def size(self) -> int:
        return self.log.size

    def sync(self) -> None:
        self.log.sync()

    def write(self, row: dict[str, Any]) -> None:
        self.log.write(row)
        self.wandb.log(row)


def _train_and_measure(
    trainer: Trainer,
    log: MetricsLog,
    wandb: Wandb,
    overrides: list[str],
    shown: Shown,
    said: RunLog,
) -> Run:
    folder, config = trainer.folder, trainer.plan.config
    exit_code, summary = 1, None
    progress = StepProgress(shown.name, config.train.steps, trainer.step, shown.line_every)
    try:
        with progress:
            yield from _in_turn(trainer.stepwise(_Rows(log, wandb), progress.step), said)
            progress.doing("measuring")
            summary = measured_summary(trainer, overrides)
        log.sync()
        folder.set_status("finished", trainer.step, config.train.steps)
        folder.write_json("summary.json", summary)
        exit_code = 0
    finally:
        log.close()
        wandb.finish(summary if exit_code == 0 else None, exit_code)
    return summary


def _in_turn(
    steps: Generator[Trainer, Taken | None, None], said: RunLog
) -> Generator[Trainer, Taken | None, None]:
    """The steps; what is said between them is not this run's."""
    taken = None
    while True:
        try:
            trainer = steps.send(taken)
        except StopIteration:
            return
        with said.pause():
            taken = yield trainer
