"""Workers of a sweep as the tasks of a SLURM job array (``hydra/launcher=slurm``), by submitit."""

import math
import re
import subprocess
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import PositiveFloat, PositiveInt
from submitit import SlurmExecutor
from submitit.helpers import Checkpointable

from pe_lab.core.console import console
from pe_lab.core.errors import RunError, counted, reason
from pe_lab.experiment.signals import get_interrupt, stop_on_signal
from pe_lab.sweeps.launchers import Joblib, Launcher
from pe_lab.sweeps.worker import Work

POLL_INTERVAL_S = 15.0
"""Seconds between two queries to SLURM, which many users share."""


@dataclass(frozen=True)
class Worker(Checkpointable):
    """A task of the array. It does runs until none is left or its time is nearly over; then SLURM
    requeues it, and it goes on.

    Args:
        at: its number among ``of``.
        per_worker: how many runs it does at once.
    """

    work: Work
    at: int
    of: int
    per_worker: int

    def __call__(self) -> None:
        Joblib(self.per_worker).launch(self.work, self.per_worker, self.at, self.of)


class Slurm(Launcher):
    """Submits an array of workers, and follows it.

    Args:
        workers: tasks of the array, at most.
        per_worker: runs at once in a task.
        wait: whether to wait until all is done. If not, the same command shows what is done, and
            submits workers for what is missing.
        timeout_min: minutes of a task, as often as ``max_num_timeout``.
        cpus_per_task: for each of ``per_worker``.
        signal_delay_s: seconds before the limit at which the runs write their checkpoints.
        setup: shell lines before a worker begins.
        additional_parameters: of sbatch, such as ``{requeue: true}``.
    """

    def __init__(
        self,
        workers: PositiveInt,
        per_worker: PositiveInt,
        wait: bool,
        name: str,
        partition: str | None,
        account: str | None,
        qos: str | None,
        constraint: str | None,
        timeout_min: PositiveInt,
        cpus_per_task: PositiveInt,
        mem_gb: PositiveFloat,
        gpus_per_node: PositiveInt | None,
        signal_delay_s: PositiveInt,
        max_num_timeout: PositiveInt,
        setup: list[str],
        additional_parameters: dict[str, Any],
    ) -> None:
        self.workers, self.per_worker, self.waits = workers, per_worker, wait
        self.max_num_timeout = max_num_timeout
        self.parameters = {
            "job_name": name,
            **{"partition": partition, "account": account, "qos": qos, "constraint": constraint},
            "time": timeout_min,
            "cpus_per_task": cpus_per_task * per_worker,
            "mem": f"{mem_gb:g}GB",
            "signal_delay_s": signal_delay_s,
            "setup": setup,
            "stderr_to_stdout": True,
            "additional_parameters": additional_parameters,
            "gpus_per_node": gpus_per_node,
        }

    def launch(self, work: Work, missing: int) -> dict[int, str]:
        # Those of every start of this sweep, whose folders lie beside each other.
        sweep = work.file.parents[1]
        with stop_on_signal():
            alive = count_tasks(sweep)
            wanted = min(self.workers, math.ceil(missing / self.per_worker))
            if (n := wanted - alive.total()) > 0:
                self.submit(work, n)
            elif alive:
                console().print(
                    f"none is added to {counted(alive.total(), 'worker')} of an earlier start, "
                    "queued or running"
                )
            while self.waits and get_interrupt() is None and (alive := count_tasks(sweep)):
                until = time.monotonic() + POLL_INTERVAL_S
                while get_interrupt() is None and time.monotonic() < until:
                    time.sleep(0.2)
            if (stop := get_interrupt()) is not None:
                arrays = sorted(count_tasks(sweep))
                console().print(f"SLURM cancels {' '.join(arrays)}: runs write their checkpoints")
                subprocess.run(["scancel", *arrays], check=False)
                raise stop
        return {}

    def submit(self, work: Work, n: int) -> None:
        """Submit an array of n workers.

        Raises:
            RunError: SLURM accepts none.
        """
        try:
            folder = work.file.parent / "slurm" / "%j"
            executor = SlurmExecutor(folder, max_num_timeout=self.max_num_timeout)
            executor.update_parameters(**self.parameters)
            with executor.batch():
                jobs = [executor.submit(Worker(work, at, n, self.per_worker)) for at in range(n)]
        except (OSError, RuntimeError, ValueError) as error:
            raise RunError(
                f"SLURM takes no jobs ({reason(error)}): set hydra.launcher.* to what this cluster "
                "has, see docs/clusters.md"
            ) from None
        console().print(f"SLURM job {jobs[0].job_id.partition('_')[0]}: {counted(n, 'worker')}")


def count_tasks(sweep: Path) -> Counter[str]:
    """Array -> how many of its tasks SLURM has, of those submitted by any start of a sweep.

    A controller that does not answer is asked again; once a signal came, all of them count.
    """
    names = (re.match(r"\d+(?=_|$)", path.name) for path in sweep.glob("*/slurm/*"))
    ours = {name[0] for name in names if name}
    while ours and get_interrupt() is None:
        command = ["squeue", "--me", "--noheader", "--array", "--format=%F"]
        answer = subprocess.run(command, capture_output=True, text=True)
        if answer.returncode == 0:
            return Counter(array for array in answer.stdout.split() if array in ours)
        time.sleep(POLL_INTERVAL_S)
    return Counter(ours)
