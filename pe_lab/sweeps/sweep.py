"""``pe-lab -m``: all jobs of a line through a launcher, and what became of them."""

import hashlib
import math
import os
import socket
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pe_lab.config.compose import CommandLine, composing, configure_log
from pe_lab.core.console import console
from pe_lab.core.errors import Interrupted, PeLabError, counted, writing
from pe_lab.core.validation import instantiate
from pe_lab.experiment.run import print_next_commands
from pe_lab.store.run_id import is_operational
from pe_lab.sweeps.jobs import (
    UNFINISHED,
    Job,
    Outcome,
    closing_table,
    list_jobs,
    swept_keys,
)
from pe_lab.sweeps.launchers import Launcher
from pe_lab.sweeps.worker import Work


class Sweep:
    """A sweep with its name and its launcher.

    Args:
        line: the command line.
        words: those of one of its jobs, from which the launcher is composed.
        name: of the sweep.

    Raises:
        UsageError: the launcher is wrong.
    """

    def __init__(self, line: CommandLine, words: list[str], runs_dir: str, name: str) -> None:
        self.name, self.config_dir, self.rounds = name, line.config_dir, 0
        # Each start of a sweep has a separate folder.
        start = f"{datetime.now():%Y-%m-%d_%H-%M-%S.%f}-{socket.gethostname()}-{os.getpid()}"
        self.folder = Path(runs_dir) / ".sweeps" / name / start
        self.began, self.failed = math.inf, dict[int, str]()
        with composing(line.config_dir) as composer:
            cfg = composer.job(words)
        configure_log(cfg, "hydra_logging")
        chosen: Any = OmegaConf.to_container(cfg.hydra.launcher, resolve=True)
        self.launcher: Launcher = instantiate(chosen, "hydra.launcher", Launcher)

    def launch(self, jobs: Iterable[Job], total: int) -> None:
        """Do some of the jobs.

        Args:
            total: how many jobs the sweep has.

        Raises:
            Interrupted: a signal came; the same command continues.
            RunError: the launcher failed.
        """
        missing = [*{job.path: job for job in jobs}.values()]
        self.rounds += 1
        file = self.folder / f"jobs-{self.rounds}.jsonl"
        with writing(file):
            work = Work.write(file, self.name, missing, total, self.config_dir)
        self.began = work.began
        try:
            self.failed = self.launcher.launch(work, len(missing))
        except Interrupted:
            console().print("stopped by a signal: run the same command to continue")
            raise

    def outcome(self, job: Job) -> Outcome:
        """How a job ended, or is now."""
        outcome = job.outcome(self.began)
        if job.number in self.failed and outcome.state in UNFINISHED:
            return Outcome("failed", self.failed[job.number])
        return outcome


def multirun(line: CommandLine, tables: bool = True) -> list[Job]:
    """Do all jobs of a sweep.

    Args:
        tables: print what is to be done and the closing table.

    Raises:
        PeLabError: not all of it is finished.
        Interrupted: a signal came; the same command continues.
    """
    jobs, warnings, plan = list_jobs(line)
    runs_dir, all_jobs = plan.config.runs_dir, counted(len(jobs), "job")
    words = [word for word in line.words if not word.lstrip("+~").startswith("hydra")]
    name = sweep_name(words, swept_keys([job.words for job in jobs]), Path(runs_dir) / ".sweeps")
    sweep = Sweep(line, jobs[0].words, runs_dir, name)
    missing = [job for job in jobs if not job.is_over()]
    if tables:
        done = len(jobs) - len(missing)
        console().print(all_jobs + (f", {done} of them finished before" if done else ""))
    for warning in warnings if missing else ():
        console().print(warning, soft_wrap=True)
    again = "the same command" + " without force=true" * plan.config.force
    try:
        if missing:
            sweep.launch(missing, len(jobs))
    finally:
        outcomes = {job.path: sweep.outcome(job) for job in jobs}
        table, counts = closing_table(jobs, outcomes)
        if tables:
            console().print(table)
            print_next_commands(jobs[0].folder, runs_dir)
    left = ", ".join(f"{counts[state]} {state}" for state in UNFINISHED if counts[state])
    if left and sweep.launcher.waits:
        first = next(job for job in jobs if outcomes[job.path].state in UNFINISHED)
        said = "" if tables else f" ({first.label}: {outcomes[first.path]})"
        raise PeLabError(
            f"{left} of {all_jobs}{said}: {again} runs only what is missing"
            + "; a broken run needs force=true" * bool(counts["broken"])
        )
    return jobs


MOST_OF_KEYS = 50
"""The most characters that the swept keys take in a name, which a legend of wandb has room for."""


def sweep_name(words: Sequence[str], keys: Sequence[str], sweeps: Path) -> str:
    """The folder name of a command's sweep: subject, swept keys, first start, digest.

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
