"""SLURM's commands, and a sweep that goes through it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEPS = 2000
WORDS = (
    "-m", "hydra/launcher=slurm", "hydra.launcher.mem_gb=1", f"train.steps={STEPS}",
    "train.checkpoint_every=10", "train.log_every=5", "eval.every=300",
)  # fmt: skip
"""Every line's: a few seconds of training."""


def slurm(*words: str) -> str:
    """What one of SLURM's commands answers."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip()


def queue(*which: str) -> list[str]:
    """The jobs that are queued or run, those of arrays one by one: ``7_0``."""
    return slurm("squeue", "--array", "-h", "-o", "%i", *which).split()


def until(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    """What the condition returns, once it holds."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)
    return found


def requeue(job: str) -> None:
    """Have SLURM begin a job again that has ended, and not in two minutes but now."""
    until(lambda: subprocess.run(["scontrol", "requeue", job], check=False).returncode == 0)
    start_now(job)


def start_now(job: str) -> None:
    """Begin a requeued job that SLURM would leave waiting for two minutes."""

    def queued() -> bool:
        slurm("scontrol", "update", f"JobId={job}", "StartTime=now")
        facts = slurm("squeue", "-h", "-o", "%T %r", f"--jobs={job}")
        return not facts.startswith(("COMPLETING", "REQUEUED")) and "BeginTime" not in facts

    until(queued)


class Line:
    """A line of pe-lab's that is being done, as from a terminal."""

    def __init__(self, words: list[str], cwd: Path) -> None:
        self.cwd = cwd
        self.output = cwd / "output"
        with self.output.open("a") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pe_lab", *words],
                cwd=cwd,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "COLUMNS": "150"},
            )

    @property
    def status(self) -> int:
        """Its exit status, once it has ended."""
        return self.process.wait(240)

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def training(self, pe: str, seed: int) -> tuple[Path, str]:
        """A run's folder and SLURM's job, once a checkpoint is there and it goes on."""

        def found() -> tuple[Path, str] | None:
            for folder in (self.cwd / "runs/flipflop" / pe).glob(f"seed{seed}-*"):
                if (folder / "checkpoint.pt").exists():
                    return folder, self.job(folder)
            return None

        folder, job = until(found)
        return folder, job

    def job(self, folder: Path) -> str:
        """The task of the array whose worker does this run."""
        text = Path(f"/proc/{json.loads((folder / 'status.json').read_text())['pid']}/environ")
        known = dict(pair.partition("=")[::2] for pair in text.read_text().split("\0"))
        return f"{known['SLURM_ARRAY_JOB_ID']}_{known['SLURM_ARRAY_TASK_ID']}"
