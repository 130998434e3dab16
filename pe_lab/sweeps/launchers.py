"""What starts the workers of a sweep on this machine: this process, or a pool of joblib's."""

import os
from abc import ABC, abstractmethod

from joblib.externals.loky import get_reusable_executor  # type: ignore[import-untyped]
from joblib.externals.loky.process_executor import (  # type: ignore[import-untyped]
    BrokenProcessPool,
)
from pydantic import PositiveInt

from pe_lab.core.console import logger
from pe_lab.core.errors import RunError
from pe_lab.experiment.signals import become_worker, raise_interrupt, stop_on_signal
from pe_lab.sweeps.jobs import MOST_STARTS
from pe_lab.sweeps.worker import Work, take_runs


class Launcher(ABC):
    """Starts workers. A subclass is ``_target_`` of a yaml in conf/hydra/launcher/, or of
    ``LAUNCHERS`` in config/compose.py; its keys are the arguments of the class."""

    waits = True
    """Whether ``launch`` returns only once all is done."""

    @abstractmethod
    def launch(self, work: Work, missing: int) -> dict[int, str]:
        """Have workers take the runs of a sweep until all are over, or a signal came.

        Args:
            missing: how many runs there are.

        Returns:
            Job number -> why it failed.

        Raises:
            Interrupted: a signal came.
            RunError: workers cannot be started.
        """


class Joblib(Launcher):
    """Worker processes of joblib's pool (``hydra/launcher=joblib``); a single worker is this
    process (``hydra/launcher=basic``).

    A pool that loses a worker is lost with all that it runs. Those runs resume one at a time in a
    new one, so that the one that kills its worker is found and given up.

    Args:
        n_jobs: workers.
    """

    def __init__(self, n_jobs: PositiveInt) -> None:
        self.n_jobs = n_jobs

    def launch(self, work: Work, missing: int, at: int = 0, of: int = 1) -> dict[int, str]:
        """See the base class.

        Args:
            at: the number of the first worker among ``of``, where this pool is a part of more.
        """
        workers = min(self.n_jobs, missing)
        if workers == 1:
            with stop_on_signal():
                failed = take_runs(work, at, of)
                raise_interrupt()
                return failed
        failed = {}
        suspects, deaths = list[int](), 0
        with stop_on_signal():
            try:
                while True:
                    try:
                        failed |= fill_pool(work, workers, at, of, suspects)
                    except BrokenProcessPool:
                        suspects = [job.number for job in work.killed()]
                        deaths = 0 if suspects else deaths + 1
                        if deaths == MOST_STARTS:
                            raise RunError(
                                "workers are killed before they begin a run: is there memory for "
                                f"{workers} of them? Set hydra.launcher.n_jobs"
                            ) from None
                        logger.warning("a worker was killed: its runs continue, one at a time")
                    else:
                        raise_interrupt()
                        if not suspects:
                            return failed
                        suspects = []
            finally:
                # Its workers would wait for more, for minutes.
                get_reusable_executor(reuse=True).shutdown(wait=True)


def fill_pool(work: Work, workers: int, at: int, of: int, only: list[int]) -> dict[int, str]:
    """Have worker processes do what is left of a sweep.

    Args:
        only: the numbers of jobs that one worker does; empty: all jobs, by all workers.

    Raises:
        BrokenProcessPool: a worker was killed, and the others with it.
    """
    n = 1 if only else workers
    pool = get_reusable_executor(n, initializer=become_worker, initargs=(os.getpid(),))
    places = [(at * n + number, of * n) for number in range(n)]
    ended = [pool.submit(take_runs, work, *place, only) for place in places]
    failed: dict[int, str] = {}
    for one in ended:
        failed |= one.result()
    return failed
