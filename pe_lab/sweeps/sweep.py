"""``pe-lab -m``: all jobs of a line through a launcher of Hydra's, and what became of them.

Hydra's sweeper would launch the finished jobs too, lose the jobs of a broken pool and report
only the first failure. So its launcher is called here, for the missing jobs.
"""

import hashlib
import os
import socket
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import date, datetime
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import OverrideParseException
from hydra.types import HydraContext, RunMode
from joblib.externals.loky import get_reusable_executor  # type: ignore[import-untyped]
from omegaconf import DictConfig, OmegaConf

from pe_lab.config.compose import open_hydra
from pe_lab.config.hydra_internals import Callbacks
from pe_lab.config.overrides import as_typed
from pe_lab.core.console import console
from pe_lab.core.errors import Interrupted, PeLabError, RunError, sentence
from pe_lab.core.output import counted
from pe_lab.experiment.environment import differences_of, warnings_about
from pe_lab.experiment.run import print_next_commands
from pe_lab.experiment.signals import begin_worker, passing_to_workers, stop_on_signal, stopping
from pe_lab.store.run_id import operational
from pe_lab.sweeps import slurm
from pe_lab.sweeps.jobs import (
    UNFINISHED,
    Job,
    closing_table,
    launch_all,
    make_jobs,
    printing_progress,
)
from pe_lab.sweeps.launchers import JOBLIB, check_launcher
from pe_lab.sweeps.worker import SweepJob
from pe_lab.train.plan import Plan


class Sweep:
    """A sweep with its name, composed configuration and launcher.

    Args:
        args: the words of the command line, as Hydra's parser splits them.
        name: None: made of the words.
    """

    def __init__(self, args: Any, runs_dir: str, name: str | None = None) -> None:
        words = [word for word in args.overrides if not word.lstrip("+~").startswith("hydra")]
        self.name = name or sweep_name(words, Path(runs_dir) / ".sweeps")
        # Read by conf/config.yaml: each start of a sweep has a separate folder.
        start = f"{datetime.now():%Y-%m-%d_%H-%M-%S.%f}-{socket.gethostname()}-{os.getpid()}"
        os.environ["PE_LAB_SWEEP"] = f"{self.name}/{start}"
        self.hydra = open_hydra(args)
        self.cfg = self.hydra.compose_config(
            "config", args.overrides, RunMode.MULTIRUN, with_log_configuration=True
        )
        self.callbacks = Callbacks(self.cfg)
        # Its workers are children of this process.
        self.pool = self.cfg.hydra.launcher._target_ == JOBLIB
        self.slurm = self.cfg.hydra.launcher._target_ == slurm.LAUNCHER

    @contextmanager
    def running(self) -> Iterator[None]:
        """Record the configuration; signals stop the jobs that run inside, as Interrupted."""
        folder = Path(self.cfg.hydra.sweep.dir)
        folder.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(self.cfg, folder / "multirun.yaml")
        watch: AbstractContextManager[Any] = passing_to_workers() if self.pool else stop_on_signal()
        if self.slurm:
            watch = slurm.cancelling(self.cfg.hydra.launcher.submitit_folder)
        try:
            with watch, warnings.catch_warnings():
                # loky replaces a worker whose memory grew, between two jobs: nothing is lost.
                warnings.filterwarnings("ignore", "A worker stopped while some jobs were given")
                self.callbacks.on_multirun_start(config=self.cfg, config_name="config")
                yield
                self.callbacks.on_multirun_end(config=self.cfg, config_name="config")
                if (stop := stopping()) is not None:
                    raise stop
        except KeyboardInterrupt:
            raise Interrupted(2) from None
        finally:
            GlobalHydra.instance().clear()
            if self.pool:
                # Its workers would wait for more, for minutes.
                get_reusable_executor(reuse=True).shutdown(wait=True)

    def launch(
        self, jobs: Sequence[Job], until: float | None = None
    ) -> Callable[[Sequence[Job]], None]:
        """A function that launches some of these jobs and sets how they ended.

        Args:
            until: the time (seconds since the epoch) from which no job is begun.
        """

        def launch(batch: Sequence[Job]) -> None:
            job = SweepJob(
                sweep=self.name,
                pool=self.pool,
                numbers=[job.number for job in batch],
                labels=[job.label for job in jobs],
                begun=frozenset(job.number for job in batch if job.has_begun()),
                until=until,
            )
            launcher: Any = Plugins.instance().instantiate_launcher(
                hydra_context=HydraContext(self.hydra.config_loader, self.callbacks),
                task_function=job,
                config=self.cfg,
            )
            if self.pool:
                # Arguments of joblib.Parallel, which Hydra has no keys for.
                launcher.joblib |= {"initializer": begin_worker, "initargs": (os.getpid(),)}
            words = [job.words for job in batch]
            returns = slurm.launch(launcher, words) if self.slurm else launcher.launch(words, 0)
            for launched, returned in zip(batch, returns, strict=True):
                # None for a job that SLURM cancelled or lost: its folder has the status.
                launched.returned = returned and returned.return_value

        return launch


def multirun(
    args: Any, composed: Sequence[DictConfig], plans: Sequence[Plan], tables: bool = True
) -> None:
    """Do all jobs of a sweep.

    Args:
        tables: print what is to be done and the closing table.

    Raises:
        PeLabError: not all of it is finished.
        Interrupted: a signal came; the same command continues.
    """
    check_launcher(composed[0])
    words = [list(cfg.hydra.overrides.task) for cfg in composed]
    jobs = make_jobs(plans, words, swept_keys(as_typed(args.overrides)))
    missing = [job for job in jobs if job.missing]
    all_jobs = counted(len(jobs), "job")
    if tables:
        done = sum(job.finished_before for job in jobs)
        console().print(all_jobs + (f", {done} of them finished before" if done else ""))
    _print_notes(jobs, plans)
    ended: Exception | Interrupted | None = None
    if missing:
        sweep = Sweep(args, plans[0].config.runs_dir)
        try:
            with sweep.running(), printing_progress(missing, len(jobs)):
                launch_all(missing, sweep.launch(jobs), sweep.cfg.hydra.sweeper.max_batch_size)
        except (Exception, Interrupted) as error:
            ended = error
    outcomes = {job.number: job.outcome() for job in jobs}
    table, counts = closing_table(jobs, outcomes)
    if tables:
        console().print(table)
        print_next_commands(jobs[0].folder, plans[0].config.runs_dir)
    again = "the same command" + " without force=true" * any(plan.config.force for plan in plans)
    left = ", ".join(f"{counts[state]} {state}" for state in UNFINISHED if counts[state])
    conclude(ended, again, f"; {left} of {all_jobs}")
    if left:
        failed = [job for job in jobs if outcomes[job.twin or job.number].state in UNFINISHED]
        first = "" if tables else f" ({failed[0].label}: {outcomes[failed[0].number]})"
        raise PeLabError(f"{left} of {all_jobs}{first}: {again} runs only what is missing")


def _print_notes(jobs: Sequence[Job], plans: Sequence[Plan]) -> None:
    """Print each warning once, and how many finished runs were made with other settings."""
    warnings: dict[str, None] = {}
    differences = Counter[str]()
    for job, plan in zip(jobs, plans, strict=True):
        if job.finished_before:
            differences[differences_of(job.folder, plan)] += 1
        elif job.missing:
            warnings |= dict.fromkeys(warnings_about(plan))
    notes = [f"{n} of the finished runs {note}; force=true runs them again"
             for note, n in differences.items() if note]  # fmt: skip
    for note in (*notes, *warnings):
        console().print(note, soft_wrap=True)


def conclude(ended: Exception | Interrupted | None, again: str, left: str = "") -> None:
    """Raise what ended a sweep early, if anything did.

    Args:
        again: the command that continues.
        left: how many jobs are not finished, after a failure of the launcher.

    Raises:
        Interrupted: a signal came.
        RunError: the launcher failed.
    """
    if isinstance(ended, Interrupted):
        console().print(f"stopped by a signal: run {again} to continue")
        raise ended
    if ended is not None:
        raise RunError(f"the launcher failed: {sentence(ended)}{left}") from ended


LONGEST = 100
"""The maximum number of characters; a folder, a wandb group and its legend allow that many."""


def sweep_name(words: Sequence[str], sweeps: Path) -> str:
    """The folder name of a command's sweep: subject, swept keys, first start, digest.

    ``flipflop--pe+seed--2026-11-21--3fa2b1c0`` for ``task=flipflop pe=cope,rope seed=0,1,2``.

    Args:
        words: the overrides of the command.
        sweeps: the parent folder; if it holds a sweep of the same command, that name is returned.
    """
    relevant = sorted(word for word in words if not operational(word))
    digest = hashlib.sha256("\0".join(relevant).encode()).hexdigest()[:8]
    for before in sorted(sweeps.glob(f"*--{digest}")):
        return before.name
    keys = swept_keys(words)
    values = {w.lstrip("+").partition("=")[0]: w.partition("=")[2] for w in words}
    subjects = [values[key] for key in ("experiment", "task") if key in values and key not in keys]
    subject = "+".join(subjects).replace("/", "-") or "sweep"
    room = LONGEST - len(f"{subject}----{date.today()}--{digest}")
    while len("+".join(keys)) > room and len(keys) > 1:
        keys = keys[:-1]
    return "--".join([subject, "+".join(keys) or "one", date.today().isoformat(), digest])


def swept_keys(words: Sequence[str]) -> tuple[str, ...]:
    """The keys with several values, in the order of the overrides."""
    keys = []
    for word in words:
        try:
            (override,) = OverridesParser.create().parse_overrides([word])
        except OverrideParseException:
            continue
        if override.is_sweep_override():
            keys.append(str(override.key_or_group))
    return tuple(keys)
