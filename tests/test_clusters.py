"""Launchers for clusters, with fake SLURM commands: submission, errors, cancelling.

tests/slurm runs a real SLURM.
"""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from program import Here, rows, state, succeeded, the_run, tiny
from submitit.core.utils import UncompletedJobError

from pe_lab.core.errors import Interrupted
from pe_lab.sweeps import slurm

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
    keys = ("partition=fast", "array_parallelism=2")
    overrides = [f"hydra.launcher.{key}" for key in keys]
    done = here(*tiny("-m", "hydra/launcher=slurm", "seed=0,1,2", "threads=2", *overrides))
    assert (done.status, "Traceback" in done.err) == (1, False)
    assert "SLURM takes no jobs (sbatch: error: No account): set hydra.launcher." in done.err
    script = (tmp_path / "script").read_text()
    for flag in ("job-name=pe-lab", "array=0-2%2", "cpus-per-task=2", "mem=4GB", "time=240",
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


class Launched:
    """A launcher whose jobs, an array numbered 7, have been submitted and then lost."""

    def __init__(self, folder: Path, error: Exception) -> None:
        self.params = {"submitit_folder": f"{folder}/%j"}
        self.folder, self.error = folder, error

    def launch(self, overrides: list[list[str]], initial_job_idx: int) -> Any:
        for name in ("7", "7_0", "7_1"):
            (self.folder / name).mkdir(parents=True)
        raise self.error


def test_a_lost_job_is_reported_once_all_have_ended(
    tmp_path: Path, fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = tmp_path / "jobs"
    # Another user's job; a controller that does not answer; the array is over at the fourth call.
    fake("squeue", 'n=$(wc -l < "$0.calls"); echo 6; [ $n = 2 ] && exit 1; [ $n -gt 3 ] || echo 7')
    fake("sacct", "printf 'JobID|State|NodeList\\n7_0|COMPLETED|a\\n7_1|CANCELLED by 0|a\\n'")
    launched = Launched(jobs, UncompletedJobError("no result"))
    assert slurm.launch(launched, [["seed=0"], ["seed=1"]]) == [None, None]
    assert len(calls(tmp_path, "squeue")) == 4
    assert "SLURM job 7_1: CANCELLED by 0" in caplog.text


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_what_was_submitted(tmp_path: Path, fake: Fake, signum: int) -> None:
    fake("scancel", "")
    fake("squeue", '[ $(wc -l < "$0.calls") -gt 2 ] || echo 7')
    jobs = tmp_path / "jobs"
    before = signal.getsignal(signum)

    def sweep() -> None:
        with slurm.cancelling(f"{jobs}/%j"):
            (jobs / "7_0").mkdir(parents=True)
            (jobs / ".submission_file_8.sh").touch()
            os.kill(os.getpid(), signum)
            signal.pause()

    with pytest.raises(Interrupted) as stopped:
        sweep()
    assert stopped.value.signum == signum
    assert calls(tmp_path, "scancel") == ["7"]
    assert len(calls(tmp_path, "squeue")) == 3
    assert signal.getsignal(signum) is before


def test_before_its_time_limit_a_job_writes_its_checkpoint_first(here: Here) -> None:
    """submitit signals SLURM's time limit; its handler requeues the job and ends it."""
    seen: list[str] = []

    def requeue(signum: int, frame: object) -> None:
        folder = the_run(Path("runs"))
        assert (folder / "checkpoint.pt").exists()
        seen.append(state(folder)["state"])
        raise SystemExit(-1)

    def notice() -> None:
        while not list(Path("runs").glob("*/*/seed*/metrics.jsonl")):
            pass
        os.kill(os.getpid(), signal.SIGUSR2)

    before = signal.signal(signal.SIGUSR2, requeue)
    try:
        sender = threading.Thread(target=notice, daemon=True)
        sender.start()
        with pytest.raises(SystemExit):
            here(*tiny("train.steps=2000"))
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert seen == ["interrupted"]
    assert 0 < state(the_run(Path("runs")))["step"] < 2000


@pytest.mark.extended
def test_through_submitit(here: Here) -> None:
    """The code path of a SLURM job, in local processes."""
    words = tiny("seed=0,1")
    succeeded(here("-m", "hydra/launcher=submitit_local", *words))
    folders = sorted(Path("runs").glob("*/*/seed*"))
    assert [state(folder)["state"] for folder in folders] == ["finished"] * 2
    assert here("-m", "runs_dir=alone", *words).status == 0
    alone = sorted(Path("alone").glob("*/*/seed*"))
    assert [rows(folder) for folder in folders] == [rows(folder) for folder in alone]
