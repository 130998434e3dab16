"""``pe-lab -m``: all jobs of a line through a launcher of Hydra's, and what became of them.

Hydra's sweeper would launch the finished jobs too, lose the jobs of a broken pool and report
only the first failure. So its launcher is called here, for the missing jobs.
"""

import hashlib
import os
import socket
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import date, datetime
from pathlib import Path
from typing import Any

from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.core.utils import configure_log
from hydra.types import HydraContext
from joblib.externals.loky import get_reusable_executor  # type: ignore[import-untyped]
from omegaconf import DictConfig, OmegaConf

from pe_lab.config.compose import CommandLine, composing, to_hydra
from pe_lab.core.console import console
from pe_lab.core.errors import Interrupted, PeLabError, RunError, sentence
from pe_lab.core.suggest import counted
from pe_lab.experiment.environment import warnings_about
from pe_lab.experiment.run import print_next_commands
from pe_lab.experiment.signals import become_worker, get_interrupt, pass_signals_on, stop_on_signal
from pe_lab.store.run_id import is_operational
from pe_lab.sweeps import slurm
from pe_lab.sweeps.jobs import (
    UNFINISHED,
    Job,
    closing_table,
    launch_all,
    make_jobs,
)
from pe_lab.sweeps.launchers import JOBLIB, check_launcher
from pe_lab.sweeps.worker import SweepJob
from pe_lab.train.plan import Plan


class Sweep:
    """A sweep with its name, composed configuration and launcher.

    Args:
        line: the command line.
        jobs: the words of each job.
        name: None: made of the words.
    """

    def __init__(
        self,
        line: CommandLine,
        jobs: Sequence[Sequence[str]],
        runs_dir: str,
        name: str | None = None,
    ) -> None:
        words = [word for word in line.words if not word.lstrip("+~").startswith("hydra")]
        self.name = name or sweep_name(words, swept_keys(jobs), Path(runs_dir) / ".sweeps")
        # Read by conf/config.yaml: each start of a sweep has a separate folder.
        start = f"{datetime.now():%Y-%m-%d_%H-%M-%S.%f}-{socket.gethostname()}-{os.getpid()}"
        os.environ["PE_LAB_SWEEP"] = f"{self.name}/{start}"
        with composing(line.config_dir) as composer:
            self.cfg = composer.compose(to_hydra(jobs[0]))
            check_launcher(self.cfg)
            self.loader = GlobalHydra.instance().config_loader()
        configure_log(self.cfg.hydra.hydra_logging, self.cfg.hydra.verbose)
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
        watch: AbstractContextManager[Any] = pass_signals_on() if self.pool else stop_on_signal()
        if self.slurm:
            watch = slurm.cancelling(self.cfg.hydra.launcher.submitit_folder)
        try:
            with watch, warnings.catch_warnings():
                # loky replaces a worker whose memory grew, between two jobs: nothing is lost.
                warnings.filterwarnings("ignore", "A worker stopped while some jobs were given")
                yield
                if (stop := get_interrupt()) is not None:
                    raise stop
        except KeyboardInterrupt:
            raise Interrupted(2) from None
        finally:
            if self.pool:
                # Its workers would wait for more, for minutes.
                get_reusable_executor(reuse=True).shutdown(wait=True)

    def launch(self, jobs: Sequence[Job]) -> Callable[[Sequence[Job]], None]:
        """Return a function that launches some of these jobs and sets how they ended."""

        def launch(batch: Sequence[Job]) -> None:
            job = SweepJob(
                sweep=self.name,
                pool=self.pool,
                numbers=[job.number for job in batch],
                labels=[job.label for job in jobs],
                begun=frozenset(job.number for job in batch if job.has_begun()),
            )
            launcher: Any = Plugins.instance().instantiate_launcher(
                hydra_context=HydraContext(self.loader, self.callbacks),
                task_function=job,
                config=self.cfg,
            )
            if self.pool:
                # Arguments of joblib.Parallel, which Hydra has no keys for.
                launcher.joblib |= {"initializer": become_worker, "initargs": (os.getpid(),)}
            words = [to_hydra(job.words) for job in batch]
            returns = slurm.launch(launcher, words) if self.slurm else launcher.launch(words, 0)
            for launched, returned in zip(batch, returns, strict=True):
                # None for a job that SLURM cancelled or lost: its folder has the status.
                launched.returned = returned and returned.return_value

        return launch


def multirun(
    line: CommandLine, composed: Sequence[DictConfig], plans: Sequence[Plan], tables: bool = True
) -> None:
    """Do all jobs of a sweep.

    Args:
        tables: print what is to be done and the closing table.

    Raises:
        PeLabError: not all of it is finished.
        Interrupted: a signal came; the same command continues.
    """
    words = [list(cfg.hydra.overrides.task) for cfg in composed]
    jobs = make_jobs(plans, words, swept_keys(words))
    missing = [job for job in jobs if job.missing]
    all_jobs = counted(len(jobs), "job")
    if tables:
        done = sum(job.finished_before for job in jobs)
        console().print(all_jobs + (f", {done} of them finished before" if done else ""))
    pending = [plan for job, plan in zip(jobs, plans, strict=True) if job.missing]
    for warning in dict.fromkeys(text for plan in pending for text in warnings_about(plan)):
        console().print(warning, soft_wrap=True)
    ended: Exception | Interrupted | None = None
    if missing:
        sweep = Sweep(line, words, plans[0].config.runs_dir)
        try:
            with sweep.running():
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
    raise_ended(ended, again, f"; {left} of {all_jobs}")
    if left:
        failed = [job for job in jobs if outcomes[job.twin or job.number].state in UNFINISHED]
        first = "" if tables else f" ({failed[0].label}: {outcomes[failed[0].number]})"
        raise PeLabError(f"{left} of {all_jobs}{first}: {again} runs only what is missing")


def raise_ended(ended: Exception | Interrupted | None, again: str, left: str = "") -> None:
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


# A legend of wandb has room for so many characters of the swept keys.
MOST_OF_KEYS = 50


def sweep_name(words: Sequence[str], keys: Sequence[str], sweeps: Path) -> str:
    """Return the folder name of a command's sweep: subject, swept keys, first start, digest.

    ``flipflop--pe+seed--2026-11-21--3fa2b1c0`` for ``task=flipflop pe=cope,rope seed=0,1,2``.

    Args:
        words: the overrides of the command.
        keys: the swept keys.
        sweeps: the parent folder; if it holds a sweep of the same command, that name is returned.
    """
    relevant = sorted(word for word in words if not is_operational(word))
    digest = hashlib.sha256("\0".join(relevant).encode()).hexdigest()[:8]
    for before in sorted(sweeps.glob(f"*--{digest}")):
        return before.name
    values = {w.lstrip("+").partition("=")[0]: w.partition("=")[2] for w in words}
    subjects = [values[key] for key in ("experiment", "task") if key in values and key not in keys]
    subject = "+".join(subjects).replace("/", "-") or "sweep"
    swept = "+".join(keys)[:MOST_OF_KEYS] or "one"
    return "--".join([subject, swept, date.today().isoformat(), digest])


def swept_keys(words: Sequence[Sequence[str]]) -> list[str]:
    """Return the keys whose values differ among the words of these jobs."""
    values: dict[str, set[str]] = {}
    for word in (word for job in words for word in job):
        key, _, value = word.lstrip("+").partition("=")
        values.setdefault(key, set()).add(value)
    return [key for key, each in values.items() if len(each) > 1]
