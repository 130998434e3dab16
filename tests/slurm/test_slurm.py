"""A sweep through a real SLURM: make test-slurm."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import STEPS, WORDS, Line, queue, requeue, slurm, start_now, until
from program import command, rows, state, summary, tiny
from suites import starts, tiny_suite

pytestmark = pytest.mark.slurm
FOUR = ("pe=none,cope", "seed=0,1")


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> None:
    answers = shutil.which("sinfo") and "idle" in slurm("sinfo", "-h", "-o", "%t")
    assert answers, "there is no idle SLURM here: run make test-slurm"


@pytest.fixture(autouse=True)
def _empty_queue() -> Iterator[None]:
    yield
    slurm("scancel", "--user", str(os.getuid()))
    until(lambda: not queue())


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The four runs, undisturbed, on no cluster."""
    folder = tmp_path_factory.mktemp("alone")
    command(*tiny("-m", *WORDS[3:], *FOUR), cwd=folder, status=0)
    return folder


def line(cwd: Path, *words: str) -> Line:
    return Line(tiny(*WORDS, *(words or FOUR)), cwd)


def run_folders(cwd: Path) -> list[Path]:
    # A folder is there a moment before its state.
    return sorted(path.parent for path in cwd.glob("runs/*/*/seed?-????????/status.json"))


def assert_as_alone(cwd: Path, alone: Path) -> None:
    """Every number of the four runs is what it is without SLURM."""
    ours, theirs = run_folders(cwd), run_folders(alone)
    assert [f.relative_to(cwd) for f in ours] == [f.relative_to(alone) for f in theirs]
    assert len(ours) == 4
    for mine, undisturbed in zip(ours, theirs, strict=True):
        assert state(mine)["state"] == "finished"
        assert rows(mine) == rows(undisturbed)
        assert summary(mine) == summary(undisturbed)


def assert_resumed(folder: Path) -> None:
    assert starts(folder) == 2
    (step,) = re.findall(r"resuming from step (\d+)", (folder / "log.txt").read_text())
    assert 0 < int(step) < STEPS


def test_cancelled_and_killed_jobs_requeued_go_on(tmp_path: Path, alone: Path) -> None:
    sweep = line(tmp_path)
    cancelled, job = sweep.training("none", 0)
    killed, other = sweep.training("none", 1)
    slurm("scancel", job)
    # No notice here: what a lost node is like.
    os.kill(state(killed)["pid"], signal.SIGKILL)
    requeue(job)
    requeue(other)
    assert sweep.status == 0, sweep.output.read_text()
    assert_resumed(cancelled)
    assert_resumed(killed)
    assert_as_alone(tmp_path, alone)
    names = slurm("sacct", "-X", "-n", "-P", "-o", "jobname", "-j", job.partition("_")[0])
    assert set(names.split()) == {"pe-lab"}


def test_the_run_of_a_cancelled_worker_is_taken_by_another(tmp_path: Path, alone: Path) -> None:
    sweep = line(tmp_path)
    folder, job = sweep.training("none", 0)
    slurm("scancel", job)
    assert sweep.status == 0, sweep.output.read_text()
    assert "Traceback" not in sweep.output.read_text()
    assert_resumed(folder)
    assert_as_alone(tmp_path, alone)
    assert not queue()


def test_two_runs_at_once_in_each_worker(tmp_path: Path, alone: Path) -> None:
    sweep = line(tmp_path, *FOUR, "hydra.launcher.per_worker=2", "hydra.launcher.workers=2")
    sweep.training("none", 0)
    until(lambda: len([f for f in run_folders(tmp_path) if state(f)["state"] == "running"]) == 2)
    assert len({sweep.job(f) for f in run_folders(tmp_path)}) == 1
    assert sweep.status == 0, sweep.output.read_text()
    assert_as_alone(tmp_path, alone)


def test_without_waiting_the_same_line_shows_the_state(tmp_path: Path, alone: Path) -> None:
    words = (*FOUR, "hydra.launcher.wait=false")
    first = line(tmp_path, *words)
    assert first.status == 0
    assert len(queue()) == 4
    again = line(tmp_path, *words)
    assert again.status == 0
    assert "none is added to 4 workers of an earlier start" in again.output.read_text()
    until(lambda: not queue())
    assert line(tmp_path, *words).status == 0
    assert "4 jobs, 4 of them finished before" in again.output.read_text()
    assert_as_alone(tmp_path, alone)


def test_ctrl_c_cancels_all_and_the_same_line_goes_on(tmp_path: Path, alone: Path) -> None:
    sweep = line(tmp_path)
    folder, _ = sweep.training("none", 0)
    assert queue("--states=pending")
    sweep.interrupt()
    assert sweep.status == 130
    until(lambda: not queue())
    assert "Traceback" not in sweep.output.read_text()
    assert state(folder)["state"] == "interrupted"
    assert line(tmp_path).status == 0
    assert_resumed(folder)
    assert_as_alone(tmp_path, alone)


def test_a_suite_tunes_then_scores_in_two_arrays(tmp_path: Path) -> None:
    """The score waits for the rate that tuning chooses; a tuning run that was lost is trained."""
    words = [word for word in tiny_suite(tmp_path) if "launcher" not in word]
    words.append("pe=alibi")
    assert command(*words, "hydra/launcher=basic", "runs_dir=alone", cwd=tmp_path).returncode == 0
    line = [*words, "hydra/launcher=slurm", "hydra.launcher.mem_gb=1"]
    command(*line, cwd=tmp_path, status=0)
    lost = next(tmp_path.glob("runs/*/*/seed1000-*"))
    shutil.rmtree(lost)
    assert command(*line, cwd=tmp_path).returncode == 0
    ours, theirs = (sorted(tmp_path.glob(f"{of}/*/*/seed*")) for of in ("runs", "alone"))
    assert [f.name for f in ours] == [f.name for f in theirs]
    assert len(ours) == 6
    assert [summary(f) for f in ours] == [summary(f) for f in theirs]
    jobs = slurm("sacct", "-X", "-n", "-P", "-o", "jobid,state").splitlines()
    mine = [job for job in jobs if not job.endswith("CANCELLED")]
    assert len({job.partition("_")[0] for job in mine}) >= 3, "tuning, score, and the lost run"


def test_at_its_time_limit_a_run_writes_its_checkpoint_and_is_requeued(tmp_path: Path) -> None:
    # SLURM counts in minutes, and gives its notice up to one early.
    steps = "train.steps=1000000"
    words = [word for word in WORDS if not word.startswith(("train.steps", "train.checkpoint"))]
    sweep = Line(
        tiny(*words, steps, "train.checkpoint_every=1000000", "hydra.launcher.timeout_min=1",
             "hydra.launcher.signal_delay_s=20"),
        tmp_path,
    )  # fmt: skip
    status = until(lambda: list(tmp_path.glob("runs/*/*/*/status.json")))[0]
    folder = status.parent
    until(lambda: state(folder)["state"] == "interrupted")
    assert (folder / "checkpoint.pt").exists()
    step = state(folder)["step"]
    (job,) = until(lambda: queue("--states=pending"))
    start_now(job)
    until(lambda: f"resuming from step {step}," in (folder / "log.txt").read_text())
    sweep.interrupt()
    assert sweep.status == 130
    until(lambda: not queue())


def test_a_preempted_run_goes_on(tmp_path: Path, alone: Path) -> None:
    sweep = line(tmp_path)
    sweep.training("none", 0)
    sweep.training("none", 1)
    subprocess.run(
        ["sbatch", "-p", "urgent", "-n", "2", "-o", os.devnull, "--wrap", "sleep 1"], check=True
    )
    # The first two may end before SLURM preempts, and the next two are stopped then.
    folder, *_ = until(
        lambda: [
            file.parent
            for file in tmp_path.glob("runs/*/*/*/status.json")
            if state(file.parent)["state"] == "interrupted"
        ]
    )
    until(lambda: not slurm("squeue", "-h", "-p", "urgent"))
    for job in queue("--states=pending"):
        start_now(job)
    assert sweep.status == 0, sweep.output.read_text()
    assert_resumed(folder)
    assert_as_alone(tmp_path, alone)
