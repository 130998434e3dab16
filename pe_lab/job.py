"""One run, from a checked configuration to its summary."""

import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from pe_lab.build import Plan, plan
from pe_lab.config import Config, plain
from pe_lab.console import StepProgress, console, split_table
from pe_lab.data import evaluation_set
from pe_lab.errors import Interrupted, RunError, UsageError, sentence
from pe_lab.identity import identity
from pe_lab.machine import environment, prepare
from pe_lab.measure import place
from pe_lab.metrics_log import MetricsLog
from pe_lab.positions import Sequential
from pe_lab.runs import RunFolder
from pe_lab.signals import StopOnSignal, stopping
from pe_lab.task import IN_DOMAIN, Batch
from pe_lab.tracking.labels import labels
from pe_lab.tracking.run import Wandb
from pe_lab.train import Trainer

logger = logging.getLogger("pe_lab")


@dataclass(frozen=True)
class Shown:
    """How a run is shown, and where it stands in a sweep.

    Args:
        name: what its progress is told under.
        line_every: seconds between lines of progress; None: a bar on a terminal.
        number: among the jobs of a sweep; those share the GPUs by it.
    """

    name: str
    line_every: float | None = None
    number: int = 0


def run_alone(config: Config, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """``run`` with its table and where its files are, for the terminal."""
    folder, summary = _run(config, overrides, None, None)
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
    return _run(config, overrides, sweep, shown)[1]


def _run(
    config: Config, overrides: Sequence[str], sweep: str | None, shown: Shown | None
) -> tuple[RunFolder, dict[str, Any]]:
    planned = plan(config)
    names = config.names
    shown = shown or Shown(f"{names['task']} {names['pe']} seed {config.seed}")
    folder = folder_of(planned)
    with folder.lock():
        if config.force and (aside := folder.set_aside()):
            logger.info("force=true: what was there is now %s", aside)
        summary = folder.summary()
        if summary is None:
            summary = _execute(planned, folder, list(overrides), sweep, shown)
        else:
            logger.info("%s is finished already; force=true runs it again", folder.path)
    return folder, summary


def _execute(
    planned: Plan, folder: RunFolder, overrides: list[str], sweep: str | None, shown: Shown
) -> dict[str, Any]:
    config = planned.config
    device = prepare(config, shown.number)
    sets = _evaluation_sets(planned)
    folder.make()
    with _logging_to(folder.log), StopOnSignal():
        trainer = Trainer(planned, device, folder, sets, stopping)
        try:
            if trainer.resume():
                logger.info("going on from step %d, %s", trainer.step, folder.path)
            if config.train.warmup >= config.train.steps:
                logger.warning(
                    "train.warmup=%d is not over at the last step, %d: the rate never gets to "
                    "train.lr", config.train.warmup, config.train.steps,
                )  # fmt: skip
            read = any(encoding.reads_positions for encoding in trainer.model.encodings)
            if not read and not isinstance(planned.positions, Sequential):
                logger.warning(
                    "positions=%s has no effect on pe=%s, which reads no positions",
                    config.names.get("positions"), config.names["pe"],
                )  # fmt: skip
            _record_start(folder, config, overrides, device)
            folder.set_status("running", trainer.step, config.train.steps)
            log = MetricsLog(folder.metrics, trainer.metrics_bytes)
            wandb = Wandb(
                config.tracker.wandb,
                folder.path,
                labels(config, folder.run_id, sweep, overrides),
                log.cut,
            )
            summary = _train_and_measure(trainer, log, wandb, overrides, shown)
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
    trainer: Trainer, log: MetricsLog, wandb: Wandb, overrides: list[str], shown: Shown
) -> dict[str, Any]:
    folder, config = trainer.folder, trainer.plan.config
    exit_code, summary = 1, None
    progress = StepProgress(shown.name, config.train.steps, trainer.step, shown.line_every)
    try:
        with progress:
            trainer.fit(_Rows(log, wandb), progress.step)
            progress.doing("measuring")
            summary = _summary(trainer, overrides)
        log.sync()
        folder.set_status("finished", trainer.step, config.train.steps)
        folder.write_json("summary.json", summary)
        exit_code = 0
    finally:
        log.close()
        wandb.finish(summary if exit_code == 0 else None, exit_code)
    return summary


def _summary(trainer: Trainer, overrides: list[str]) -> dict[str, Any]:
    planned, config, began = trainer.plan, trainer.plan.config, time.perf_counter()
    reference = trainer.sets[IN_DOMAIN]
    metrics: dict[str, float] = {}
    by: dict[str, Any] = {}
    for split, data in trainer.sets.items():
        answers = trainer.answers(split)
        metrics |= answers.measured().metrics(split)
        metrics[f"{place(split)}/guess"] = planned.task.split(split).guess(reference, data)
        by[split] = answers.breakdown()
        if config.eval.generate:
            written = trainer.generated(split).measured().metrics(split)
            for kind in ("error", "error_low", "error_high", "error_seq"):
                metrics[f"{place(split)}/{kind}_generated"] = written[f"{place(split)}/{kind}"]
    encoding = {id(p): p for e in trainer.model.encodings for p in e.parameters()}
    metrics |= {
        "params/total": sum(p.numel() for p in trainer.model.parameters()),
        "params/encoding": sum(p.numel() for p in encoding.values()),
        "time/train_s": trainer.seconds,
        "time/measure_s": time.perf_counter() - began,
    }
    resolved = plain(config)
    names = resolved.pop("names")
    return {
        "task": names["task"],
        "pe": names["pe"],
        "seed": config.seed,
        "run_id": trainer.folder.run_id,
        "steps": trainer.step,
        "names": names,
        "overrides": overrides,
        "splits": {s: place(s) for s in trainer.sets} | dict.fromkeys(planned.too_long),
        "too_long": planned.too_long,
        # JSON has no nan; out of domain a loss may be one.
        "metrics": {k: v if math.isfinite(v) else None for k, v in metrics.items()},
        "by": by,
        "config": resolved,
        "contents": planned.task.contents(),
    }


def _evaluation_sets(planned: Plan) -> dict[str, Batch]:
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


class _RunLog(logging.Handler):
    """Adds lines to a file as long as the disk takes them: nothing is told about a line lost."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError), open(self.path, "a") as file:
            file.write(self.format(record) + "\n")


@contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """Add what is logged, tracebacks too, to the run's own file."""
    handler = _RunLog(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _record_start(
    folder: RunFolder, config: Config, overrides: list[str], device: torch.device
) -> None:
    """Add this start to the folder's record, and say what differs from the last one."""
    facts, diff = environment(config.threads, device.type, device.index)
    starts = folder.read_json("environment.json") or []
    if not starts:
        resolved = plain(config)
        folder.write_text("config.yaml", OmegaConf.to_yaml(OmegaConf.create(resolved)))
        folder.write_text("overrides.yaml", OmegaConf.to_yaml(OmegaConf.create(overrides)))
    else:
        exact = ("git_revision", "versions", "threads", "device", "gpu", "cpu_capability")
        changed = [name for name in exact if starts[-1].get(name) != facts[name]]
        if changed:
            logger.warning(
                "%s changed since this run was begun: its numbers may differ in the last digits",
                ", ".join(changed),
            )
    if diff:
        folder.write_text(f"git-{len(starts) + 1}.diff", diff)
    folder.write_json("environment.json", [*starts, facts])
