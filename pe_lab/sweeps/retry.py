"""The missing jobs of a sweep through Hydra's launcher, again where its pool lost a worker."""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool

from pe_lab.common.errors import RunError
from pe_lab.common.signals import stopping
from pe_lab.sweeps.jobs import Job

logger = logging.getLogger("pe_lab")

MAX_KILLS = 3
"""Times that a job may be killed without a checkpoint in between, the last time alone in a
pool; also the times that a pool may die before it begins a job."""

Launch = Callable[[Sequence[Job], bool], None]
"""Runs jobs to their end; with True, waits for folders that another process is writing."""


def launch_all(jobs: Sequence[Job], launch: Launch, batch_size: int | None = None) -> None:
    """Launch jobs until each has ended, or a signal came.

    A pool that loses a worker is lost with all that it runs; its jobs resume from their
    checkpoints in a new one. A job that was killed twice at the same step runs alone in a pool,
    and is given up if it is killed there too.

    Args:
        batch_size: jobs launched at a time; None: all.

    Raises:
        RunError: pools die before they begin a job.
    """
    todo, kills, idle_pools = list(jobs), Counter[int](), 0
    while todo and stopping() is None:
        suspects = [job for job in todo if kills[job.number] >= MAX_KILLS - 1]
        batch = [job for job in todo if job not in suspects][:batch_size] or suspects[:1]
        before = {job.number: (job.step(), job.status()) for job in batch}
        try:
            launch(batch, False)
        except BrokenProcessPool:
            todo = [job for job in todo if job not in batch or not _is_over(job)]
            killed = [job for job in batch if job in todo and job.folder.killed()]
            begun = any(job.status() != before[job.number][1] for job in batch)
            idle_pools = 0 if begun else idle_pools + 1
            if idle_pools == MAX_KILLS:
                raise RunError(
                    f"{MAX_KILLS} times a worker was killed before it began a job: is there memory "
                    "for hydra.launcher.n_jobs of them? The same command runs only what is missing"
                ) from None
            for job in killed:
                advanced = job.step() > before[job.number][0]
                kills[job.number] = 0 if advanced else kills[job.number] + 1
                if kills[job.number] >= MAX_KILLS:
                    job.returned = ("killed", f"{MAX_KILLS} times at step {job.step()}, "
                                    "the last time alone: is there memory for it?")  # fmt: skip
                    todo.remove(job)
            if stopping() is None:
                logger.warning("a worker was killed: continuing %d jobs in new workers", len(todo))
        else:
            todo = [job for job in todo if job not in batch]
    held = [job for job in jobs if job.returned is not None and job.returned[0] == "held"]
    if held and stopping() is None:
        for job in held:
            job.returned = None
        launch(held, True)


def _is_over(job: Job) -> bool:
    """Whether another try would not change how it ended."""
    return job.returned is not None or job.outcome().state in ("finished", "failed")
