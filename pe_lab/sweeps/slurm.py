"""A sweep's jobs on SLURM: waiting for them and cancelling them, which submitit does not do."""

import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from pe_lab.core.console import logger
from pe_lab.core.errors import Interrupted, RunError, reason
from pe_lab.experiment.signals import stop_on_signal

LAUNCHER = "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher"
"""The ``_target_`` of a launcher whose jobs are these."""

POLL_INTERVAL_S = 5.0
"""Seconds between two queries to SLURM, which many users share."""


@contextmanager
def cancelling(submitit_folder: str) -> Iterator[None]:
    """Ctrl-C and SIGTERM cancel the jobs submitted so far and wait until the running ones have
    written their checkpoints. A second signal does not wait.

    Args:
        submitit_folder: of the launcher, new in this process, with %j for a job's number.

    Raises:
        Interrupted: a signal came; the jobs are cancelled.
    """
    with stop_on_signal(_at_once):
        try:
            yield
        except Interrupted:
            if jobs := _submitted(submitit_folder):
                logger.warning(
                    "stopping: SLURM cancels %s, what runs writes its checkpoint (once more: end "
                    "at once)", " ".join(sorted(jobs)),
                )  # fmt: skip
                subprocess.run(["scancel", *jobs], check=False)
                _wait_for(jobs)
            raise


def _at_once(signum: int, frame: FrameType | None) -> None:
    # Raised, not noted: submitit waits without asking whether to stop.
    raise Interrupted(signum)


def launch(launcher: Any, overrides: Sequence[Sequence[str]]) -> list[Any]:
    """Launch jobs and wait until SLURM has none of them left, requeued ones included; submitit
    itself stops waiting when one is cancelled or lost.

    Returns:
        Hydra's JobReturn of each; None for one without a result.

    Raises:
        RunError: SLURM accepts no jobs.
    """
    from submitit import SlurmJob
    from submitit.core.utils import UncompletedJobError

    folder = launcher.params["submitit_folder"]
    before = _submitted(folder)
    try:
        return list(launcher.launch(overrides, initial_job_idx=0))
    except UncompletedJobError as error:
        if isinstance(error.__cause__, subprocess.CalledProcessError):
            raise RunError(
                f"SLURM takes no jobs ({reason(error)}): set hydra.launcher.* to what "
                "this cluster has, see docs/clusters.md"
            ) from None
    (array,) = _submitted(folder) - before
    logger.warning("SLURM cancelled or lost a job of %s: the others continue", array)
    _wait_for({array})
    ids = [array] if len(overrides) == 1 else [f"{array}_{n}" for n in range(len(overrides))]
    return [_returned(SlurmJob(folder, job)) for job in ids]


def _returned(job: Any) -> Any:
    from submitit.core.utils import UncompletedJobError

    # A result written before SLURM counted the job as lost cannot be read.
    if job.paths.result_pickle.exists():
        with suppress(UncompletedJobError):
            return job.result()
    state = job.get_info().get("State", "lost")
    logger.error("SLURM job %s: %s; its output: %s", job.job_id, state, job.paths.stdout)
    return None


def _submitted(submitit_folder: str) -> set[str]:
    """Return the ids of the jobs and arrays submitted from a folder."""
    names = (re.match(r"\d+", path.name) for path in Path(submitit_folder).parent.glob("*"))
    return {name[0] for name in names if name}


def _wait_for(jobs: set[str]) -> None:
    """Wait until SLURM has none of them left."""
    while True:
        command = ["squeue", "--me", "--noheader", "--format=%F"]
        answer = subprocess.run(command, capture_output=True, text=True)
        # A busy controller may not answer.
        if answer.returncode == 0 and not jobs & set(answer.stdout.split()):
            return
        time.sleep(POLL_INTERVAL_S)
