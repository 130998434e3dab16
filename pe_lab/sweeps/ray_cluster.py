"""Workers of a sweep as tasks of Ray's (``hydra/launcher=ray``), on this machine or a cluster."""

from typing import Any

from pydantic import PositiveInt

from pe_lab.core.console import console
from pe_lab.core.errors import RunError, reason
from pe_lab.core.suggest import counted
from pe_lab.experiment.signals import stop_on_signal, get_interrupt
from pe_lab.sweeps.launchers import Launcher, take_in_pool
from pe_lab.sweeps.worker import Work


class Ray(Launcher):
    """Keeps a task on every place of the cluster. A task whose node is lost is started elsewhere,
    and its run resumes from the checkpoint.

    Args:
        ray: ``init``, the arguments of ``ray.init`` (``address=auto``: the cluster that runs), and
            ``remote``, what a run needs (``num_gpus=0.1``: ten runs share a GPU).
        workers: tasks; null: as many as the cluster has places for.
    """

    package = "ray"

    def __init__(self, workers: PositiveInt | None, ray: dict[str, dict[str, Any]]) -> None:
        self.workers, self.init, self.remote = workers, ray["init"], ray["remote"]

    def launch(self, work: Work, missing: int) -> dict[int, str]:
        import ray
        from ray.exceptions import RayError

        failed: dict[int, str] = {}
        with stop_on_signal():
            try:
                ray.init(**self.init)
                places = self.workers or count_places(ray.cluster_resources(), self.remote)
                n = max(1, min(places, missing))
                console().print(f"Ray: {counted(n, 'worker')}")
                task = ray.remote(max_retries=-1, **self.remote)(take_in_pool)
                left = [task.remote(work, at, n, None) for at in range(n)]
                while left and get_interrupt() is None:
                    ended, left = ray.wait(left, timeout=1.0)
                    for one in ended:
                        failed |= ray.get(one)
                for one in left:
                    # As Ctrl-C: the run writes its checkpoint.
                    ray.cancel(one)
                ray.wait(left, num_returns=len(left), timeout=60.0) if left else None
            except (RayError, ConnectionError, ValueError) as error:
                raise RunError(f"Ray: {reason(error)}") from None
            finally:
                ray.shutdown()
            if (stop := get_interrupt()) is not None:
                raise stop
        return failed


def count_places(has: dict[str, float], needs: dict[str, Any]) -> int:
    """How many tasks fit into a cluster at once."""
    names = {"CPU": needs.get("num_cpus", 1), "GPU": needs.get("num_gpus", 0)}
    names |= needs.get("resources", {})
    return min(int(has.get(name, 0) / need) for name, need in names.items() if need)
