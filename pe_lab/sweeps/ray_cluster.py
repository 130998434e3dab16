"""Workers of a sweep as tasks of Ray's (``hydra/launcher=ray``), on this machine or a cluster."""

from typing import Any

import ray
from pydantic import PositiveInt
from ray.exceptions import RayError

from pe_lab.core.errors import RunError, reason
from pe_lab.experiment.signals import get_interrupt, raise_interrupt, stop_on_signal
from pe_lab.sweeps.launchers import Launcher
from pe_lab.sweeps.worker import Work, take_runs


class Ray(Launcher):
    """Keeps tasks on the cluster. A task whose node is lost is started elsewhere,
    and its run resumes from the checkpoint.

    Args:
        ray: ``init``, the arguments of ``ray.init`` (``address=auto``: the cluster that runs), and
            ``remote``, what a run needs (``num_gpus=0.1``: ten runs share a GPU).
        workers: tasks, at most; those that the cluster has no place for wait.
    """

    def __init__(self, workers: PositiveInt, ray: dict[str, dict[str, Any]]) -> None:
        self.workers, self.init, self.remote = workers, ray["init"], ray["remote"]

    def launch(self, work: Work, missing: int) -> dict[int, str]:
        failed: dict[int, str] = {}
        with stop_on_signal():
            try:
                ray.init(**self.init)
                n = min(self.workers, missing)
                task: Any = ray.remote(max_retries=-1, **self.remote)(take_runs)
                left = [task.remote(work, at, n) for at in range(n)]
                while left and get_interrupt() is None:
                    ended, left = ray.wait(left, timeout=1.0)
                    for one in ended:
                        failed |= ray.get(one)
                for one in left:
                    # As Ctrl-C: the run writes its checkpoint.
                    ray.cancel(one)
                if left:
                    ray.wait(left, num_returns=len(left), timeout=60.0)
            except (RayError, ConnectionError, ValueError) as error:
                raise RunError(f"Ray: {reason(error)}") from None
            finally:
                ray.shutdown()
            raise_interrupt()
        return failed
