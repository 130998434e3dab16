"""A line's missing jobs through Hydra's launcher, again where its pool lost a worker."""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool

from pe_lab.common.errors import RunError
from pe_lab.common.signals import stopping
from pe_lab.sweeps.jobs import Job

logger = logging.getLogger("pe_lab")

STRIKES = 3
"""Times that a job's process may be killed with no checkpoint between, the last time alone."""

Launch = Callable[[Sequence[Job], bool], None]
"""Runs jobs to their end; with True, waiting for folders that others hold."""


def do_all(jobs: Sequence[Job], launch: Launch, most: int | None = None) -> None:
    """Launch jobs until each has ended, or a signal came.

    A pool that loses a worker takes all that it runs with it. They go on from their checkpoints
    in a new one. A job that was there twice and got no further has the next pool for itself; if
    that dies too, it is given up.

    Args:
        most: jobs that are launched at a time; None: all.

    Raises:
        RunError: pools die before they begin a job.
    """
    todo, strikes, barren = list(jobs), Counter[int](), 0
    while todo and stopping() is None:
        suspects = [job for job in todo if strikes[job.number] >= STRIKES - 1]
        batch = [job for job in todo if job not in suspects][:most] or suspects[:1]
        before = {job.number: (job.step(), job.status()) for job in batch}
        try:
            launch(batch, False)
        except BrokenProcessPool:
            todo = [job for job in todo if job not in batch or not _over(job)]
            killed = [job for job in batch if job in todo and job.folder.killed()]
            begun = any(job.status() != before[job.number][1] for job in batch)
            barren = 0 if begun else barren + 1
            if barren == STRIKES:
                raise RunError(
                    f"{STRIKES} times a worker was killed before it began a job: is there memory "
                    "for hydra.launcher.n_jobs of them? The same line does what is missing"
                ) from None
            for job in killed:
                further = job.step() > before[job.number][0]
                strikes[job.number] = 0 if further else strikes[job.number] + 1
                if strikes[job.number] >= STRIKES:
                    job.told = ("killed", f"{STRIKES} times at step {job.step()}, "
                                "the last time alone: is there memory for it?")  # fmt: skip
                    todo.remove(job)
            if stopping() is None:
                logger.warning("a worker was killed: going on with %d jobs in new ones", len(todo))
        else:
            todo = [job for job in todo if job not in batch]
    held = [job for job in jobs if job.told is not None and job.told[0] == "held"]
    if held and stopping() is None:
        for job in held:
            job.told = None
        launch(held, True)


def _over(job: Job) -> bool:
    """Whether it has come to an end that another try would not change."""
    return job.told is not None or job.ended().state in ("finished", "failed")
