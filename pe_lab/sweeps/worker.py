"""What every worker of a sweep does: it takes the next run that nobody does, until all are over.

Workers share nothing but the file of the jobs and the run folders, whose locks a killed process
gives back. So it does not matter who starts them, on how many machines, and which of them die.
"""

import json
import os
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

from omegaconf import DictConfig

from pe_lab.config.compose import check_composed, composing, configure_log
from pe_lab.core.console import logger, percent
from pe_lab.core.errors import HeldError, Interrupted, PeLabError, counted, sentence
from pe_lab.core.files import replace_file
from pe_lab.core.metrics import IN_DOMAIN, mean_ood, metric_name
from pe_lab.experiment.run import SweepPlace, run
from pe_lab.experiment.signals import get_interrupt
from pe_lab.sweeps.jobs import Job
from pe_lab.train.plan import make_plan

HELD_POLL_S = 2.0
"""Seconds between two looks at the runs that other processes do, once nothing else is left."""


@dataclass(frozen=True)
class Work:
    """What workers are given.

    Args:
        file: holds a line for each job, and its age is that of the sweep.
        sweep: name of the sweep.
        total: how many jobs the sweep has, finished ones included.
        folder: the working folder.
        config_dir: as of ``--config-dir``.
    """

    file: Path
    sweep: str
    total: int
    folder: Path
    config_dir: str | None

    @classmethod
    def write(
        cls, file: Path, sweep: str, jobs: Iterable[Job], total: int, config_dir: str | None
    ) -> "Work":
        lines = (json.dumps(asdict(job)) for job in jobs)
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, "\n".join(lines).encode())
        return cls(file.absolute(), sweep, total, Path.cwd(), config_dir)

    # Not cached: what is cached here is pickled for every worker.
    @property
    def jobs(self) -> list[Job]:
        return [Job(**json.loads(line)) for line in self.file.read_text("utf-8").splitlines()]

    @cached_property
    def began(self) -> float:
        """When the sweep began, by the clock of the file system."""
        return self.file.stat().st_mtime

    def killed(self) -> list[Job]:
        """The jobs whose process was killed, and which are not given up."""
        begun = (job for job in self.jobs if job.written_since(self.began))
        return [job for job in begun if job.folder.killed() and not job.is_over(self.began)]


def take_runs(work: Work, at: int = 0, of: int = 1, only: Collection[int] = ()) -> dict[int, str]:
    """Do the runs of a sweep that nobody does, and wait for those that others do, until a signal
    comes.

    Args:
        at: the number of this worker among ``of``, which begin at different jobs.
        only: the numbers of the jobs to do; empty: all.

    Returns:
        Job number -> why it failed, of those that failed here.
    """
    os.chdir(work.folder)
    failed: dict[int, str] = {}
    bases: dict[tuple[str, ...], DictConfig] = {}
    jobs = [job for job in work.jobs if not only or job.number in only]
    first, waited = len(jobs) * at // of, 0
    left = [*jobs[first:], *jobs[:first]]
    while left:
        held = []
        for job in left:
            if get_interrupt() is not None:
                return failed
            name = f"[{job.number}/{work.total}] {job.label}"
            try:
                if not job.is_over(work.began):
                    do_job(job, work, name, bases)
            except Interrupted:
                return failed
            except HeldError:
                held.append(job)
            except Exception as error:
                logger.error(
                    "%s: failed: %s", name, sentence(error), exc_info="debug=true" in job.words
                )
                failed[job.number] = sentence(error)
                if not job.written_since(work.began):
                    with suppress(PeLabError):
                        job.folder.make()
                        job.folder.set_status("failed", 0, 0, sentence(error))
        if held == left:
            waited += 1
            if waited % 30 == 0:
                logger.info("waiting for %s of other processes", counted(len(held), "run"))
            time.sleep(HELD_POLL_S)
        left = held
    return failed


def do_job(job: Job, work: Work, name: str, bases: dict[tuple[str, ...], DictConfig]) -> None:
    """Compose a job and do its run.

    Args:
        name: of the job, with its number.
        bases: what this worker composed before, see ``Composer``.
    """
    with composing(work.config_dir, bases) as composer:
        cfg = composer.job(job.words)
        config = check_composed(cfg)
    configure_log(cfg)
    if job.written_since(work.began):
        # ``force`` has had its effect.
        config = replace(config, force=False)  # type: ignore[type-var]
    summary = run(make_plan(config), job.words, SweepPlace(name, work.sweep))
    if job.folder.status().get("pid") != os.getpid():
        # Another process finished it since this one looked.
        return
    metrics = summary["metrics"]
    errors = metrics[metric_name(IN_DOMAIN, "error")], mean_ood(metrics, summary["splits"])
    logger.info("%s: finished, in_domain %s %%, OOD mean %s %%", name, *map(percent, errors))
