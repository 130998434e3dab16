"""Launchers for clusters, with fake SLURM commands: submission, errors, cancelling.

tests/slurm runs a real SLURM.
"""

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from program import Here, succeeded, tiny
from test_sweeps import table

from pe_lab.config.compose import CommandLine
from pe_lab.sweeps import slurm
from pe_lab.sweeps.jobs import list_jobs
from pe_lab.sweeps.worker import Work

Fake = Callable[[str, str], None]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """``fake(name, script)``: a fake SLURM command, which logs its arguments to ``name.calls``."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm, "POLL_INTERVAL_S", 0.01)

    def write(name: str, script: str) -> None:
        log = folder / f"{name}.calls"
        (folder / name).write_text(f'#!/bin/sh\necho "$@" >> {log}\n{script}\n')
        (folder / name).chmod(0o755)

    return write


def others(fake: Fake, *more: str) -> None:
    """Commands that say nothing."""
    for name in ("srun", "squeue", "scancel", "sacct", *more):
        fake(name, "")


def calls(tmp_path: Path, name: str) -> list[str]:
    """The arguments of each call."""
    return (tmp_path / "bin" / f"{name}.calls").read_text().splitlines()


def test_the_script_passed_to_sbatch(here: Here, tmp_path: Path, fake: Fake) -> None:
    others(fake)
    fake("sbatch", f'cp "$1" {tmp_path}/script; echo "sbatch: error: No account" >&2; exit 1')
    keys = ("partition=fast", "workers=2", "per_worker=2")
    overrides = [f"hydra.launcher.{key}" for key in keys]
    done = here(*tiny("-m", "hydra/launcher=slurm", "seed=0,1,2", "threads=2", *overrides))
    assert (done.status, "Traceback" in done.err) == (1, False)
    assert "SLURM takes no jobs (sbatch: error: No account): set hydra.launcher." in done.err
    script = (tmp_path / "script").read_text()
    for flag in ("job-name=pe-lab", "array=0-1%2", "cpus-per-task=4", "mem=4GB", "time=240",
                 "partition=fast", "requeue", "signal=USR2@120"):  # fmt: skip
        assert f"#SBATCH --{flag}\n" in script
    (output,) = [line for line in script.splitlines() if line.startswith("#SBATCH --output=")]
    assert f"{tmp_path}/runs/.sweeps/" in output


def test_a_finished_line_submits_nothing(here: Here, tmp_path: Path, fake: Fake) -> None:
    others(fake, "sbatch")
    words = tiny("seed=0")
    assert here(*words).status == 0
    assert here("-m", "hydra/launcher=slurm", *words).status == 0
    assert not (tmp_path / "bin/sbatch.calls").exists()


def test_workers_that_slurm_has_are_counted_and_not_submitted_again(
    here: Here, tmp_path: Path, fake: Fake
) -> None:
    others(fake)
    fake("sbatch", "echo Submitted batch job 7")
    words = tiny("-m", "hydra/launcher=slurm", "seed=0,1,2", "hydra.launcher.wait=false")
    assert "SLURM job 7: 3 workers" in succeeded(here(*words)).out
    # Another user's; a controller that does not answer at first; two of the three are left.
    fake("squeue", 'n=$(wc -l < "$0.calls"); echo 6; echo 7; echo 7; [ $n -gt 1 ] || exit 1')
    again = succeeded(here(*words))
    assert "SLURM job 7: 1 worker\n" in again.out
    assert [row[2] for row in table(again.out)] == ["not begun"] * 3
    fake("squeue", "echo 7; echo 7; echo 7")
    assert "none is added to 3 workers of an earlier start" in succeeded(here(*words)).out
    assert len(calls(tmp_path, "sbatch")) == 2


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_what_was_submitted(
    here: Here, tmp_path: Path, fake: Fake, signum: int
) -> None:
    others(fake)
    fake("squeue", "echo 7; echo 7")
    fake("sbatch", "echo Submitted batch job 7")

    def stop() -> None:
        while not (tmp_path / "bin/squeue.calls").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signum)

    threading.Thread(target=stop).start()
    ended = here(*tiny("-m", "hydra/launcher=slurm", "seed=0,1"))
    assert ended.status == 128 + signum
    assert calls(tmp_path, "scancel") == ["7"]
    assert "run the same command to continue" in ended.out


def test_a_worker_takes_what_is_left_and_is_requeued_as_it_is(tmp_path: Path, here: Here) -> None:
    words = tiny("-m", "seed=0,1", "train.steps=3")
    jobs, _, _ = list_jobs(CommandLine.parse(words))
    work = Work.write(tmp_path / "jobs.jsonl", "sweep", jobs, 2, None)
    worker = slurm.Worker(work, 0, 1, 1)
    assert pickle.loads(pickle.dumps(worker)) == worker
    requeued = worker.checkpoint()
    assert requeued.function is worker
    requeued.result()
    assert [job.outcome(work.began).state for job in jobs] == ["finished"] * 2
