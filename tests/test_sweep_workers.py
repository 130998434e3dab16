"""Sweeps over worker processes: the same numbers, and what a signal and a kill leave."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
from program import Here, command, rows, start, state, tiny
from suites import JOBLIB, equal, folders, workers, written
from test_sweeps import table

from pe_lab.core.errors import RunError
from pe_lab.store.run_folder import RunFolder
from pe_lab.sweeps import jobs
from pe_lab.sweeps.jobs import MAX_KILLS, Job, closing_table, launch_all, progress_line


@pytest.mark.extended
def test_in_workers_the_numbers_are_the_same(here: Here, tmp_path: Path) -> None:
    words = ("pe=none,cope", "seed=0,1", "model.dropout=0.1", "train.lr=1e-3")
    run = start(*JOBLIB, *tiny(*words, "runs_dir=runs"), cwd=tmp_path)
    assert run.status == 0, run.stderr
    assert "Traceback" not in run.stderr
    out = (tmp_path / "stdout").read_text()
    assert len(re.findall(r"^\[\d/4\] flipflop \w+ seed \d: finished, in_domain", out, re.M)) == 4
    assert "\x1b" not in out
    assert here("-m", *tiny(*words, "runs_dir=here/runs")).status == 0
    equal(tmp_path, tmp_path / "here")


@pytest.mark.extended
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_workers_write_their_checkpoints(tmp_path: Path, signum: int) -> None:
    words = tiny(*JOBLIB, "seed=0,1,2,3", "train.steps=4000")
    words = [word.replace("checkpoint_every=7", "checkpoint_every=10000") for word in words]
    run = start(*words, cwd=tmp_path)
    run.wait_for(lambda: len(folders(tmp_path)) == 2 and written(tmp_path) > 2000)
    assert run.process.pid is not None
    pool = workers(run.process.pid)
    assert len(pool) == 2
    if signum == signal.SIGINT:
        # The terminal sends it to all.
        for worker in pool:
            os.kill(worker, signum)
    run.send(signum)
    assert run.status == 128 + signum
    assert not [pid for pid in pool if alive(pid)]
    out = (tmp_path / "stdout").read_text()
    states = sorted(row[2].partition(":")[0] for row in table(out))
    assert states == ["interrupted", "interrupted", "not begun", "not begun"]
    assert "run the same command to continue" in out
    for folder in folders(tmp_path).values():
        assert state(folder)["state"] == "interrupted"
        assert rows(folder)[-1]["step"] == state(folder)["step"] > 0


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.extended
def test_workers_whose_launcher_is_killed_stop_and_give_up_their_runs(tmp_path: Path) -> None:
    words = tiny(*JOBLIB, "seed=0,1,2,3", "train.steps=4000")
    run = start(*words, cwd=tmp_path)
    run.wait_for(lambda: len(folders(tmp_path)) == 2 and written(tmp_path) > 2000)
    assert run.process.pid is not None
    pool = workers(run.process.pid)
    run.send(signal.SIGKILL)
    assert run.status == -signal.SIGKILL
    deadline = 200
    while any(map(alive, pool)) and deadline:
        signal.sigtimedwait([], 0.1)
        deadline -= 1
    assert not [pid for pid in pool if alive(pid)]
    assert all(RunFolder(folder).killed() for folder in folders(tmp_path).values())


IDLE = """
import os, signal, sys
from joblib.externals.loky import get_reusable_executor
from pe_lab.experiment.signals import begin_worker
pool = get_reusable_executor(1, timeout=300, initializer=begin_worker, initargs=(os.getpid(),))
print(pool.submit(os.getpid).result(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_worker_without_a_job_ends_with_its_launcher() -> None:
    """Of a sweep that is killed before it sends the first one; it waited for five minutes."""
    launcher = subprocess.run([sys.executable, "-c", IDLE], stdout=subprocess.PIPE, text=True)
    assert launcher.returncode == -signal.SIGKILL
    until = time.monotonic() + 10
    while alive(int(launcher.stdout)):
        assert time.monotonic() < until, "it waits"
        time.sleep(0.05)


GROWING = """\
import multiprocessing
import time

from pe_lab.pe.none import NoPE

held = []


class Growing(NoPE):
    def __init__(self, dims) -> None:
        super().__init__(dims)
        if multiprocessing.current_process().name.startswith("Loky"):
            held.append(b"x" * 350_000_000)
            time.sleep(1.1)
"""


@pytest.mark.extended
def test_workers_that_grow_are_replaced_without_a_word(tmp_path: Path) -> None:
    """By loky, above 300 MB from one job to the next."""
    (tmp_path / "mine" / "pe").mkdir(parents=True)
    (tmp_path / "mine" / "growing.py").write_text(GROWING)
    (tmp_path / "mine" / "pe" / "growing.yaml").write_text("_target_: growing.Growing\n")
    words = tiny("pe=growing", "seed=0,1,2,3,4", "runs_dir=runs")
    # Not a forked process, whose exit leaves joblib's folder to a process that warns of it.
    run = command(*JOBLIB, "--config-dir", "mine", *words, cwd=tmp_path)
    assert (run.returncode, run.stderr) == (0, "")
    assert [row[2] for row in table(run.stdout)] == ["finished"] * 5


def job(number: int, folder: Path) -> Job:
    made = RunFolder(folder / f"seed{number}-00000000")
    return Job(number, [], {}, str(number), made, False)


def test_a_job_that_kills_its_worker_is_abandoned_and_no_other(tmp_path: Path) -> None:
    jobs = [job(number, tmp_path) for number in (1, 2, 3, 4)]
    rounds = []

    def launch(batch: Sequence[Job]) -> None:
        rounds.append([one.number for one in batch])
        for one in batch[:2]:
            one.folder.make()
            one.folder.set_status("running", one.step(), 9)
        if batch[0].number == 1:
            # The second in the pool dies with it.
            raise BrokenProcessPool
        for one in batch:
            one.returned = ("failed", "fine")

    launch_all(jobs, launch)
    assert rounds == [[1, 2, 3, 4], [1, 2, 3, 4], [3, 4], [1], [2]]
    assert jobs[0].returned is not None
    assert jobs[0].returned[0] == "killed"
    assert [one.returned for one in jobs[1:]] == [("failed", "fine")] * 3
    outcomes = {one.number: one.outcome() for one in jobs}
    assert closing_table(jobs, outcomes)[1] == {"killed": 1, "failed": 3}


def test_a_job_that_gets_further_each_time_is_not_abandoned(tmp_path: Path) -> None:
    (one,) = jobs = [job(1, tmp_path)]

    def launch(batch: Sequence[Job]) -> None:
        one.folder.make()
        one.folder.set_status("running", one.step() + 1, 9)
        if one.step() < 9:
            raise BrokenProcessPool
        one.returned = ("failed", "fine")

    launch_all(jobs, launch)
    assert one.returned == ("failed", "fine")


def test_a_pool_that_never_begins_is_no_endless_loop(tmp_path: Path) -> None:
    rounds = []

    def launch(batch: Sequence[Job]) -> None:
        rounds.append(batch)
        raise BrokenProcessPool

    with pytest.raises(RunError, match="3 times a worker was killed before it began a job"):
        launch_all([job(1, tmp_path)], launch)
    assert len(rounds) == MAX_KILLS


def test_the_line_of_progress_counts_jobs(tmp_path: Path) -> None:
    made = [job(number, tmp_path) for number in range(1, 6)]
    for one, state_now in zip(made[:3], ("finished", "running", "running"), strict=True):
        one.folder.make()
        one.folder.set_status(state_now, 3, 9)
    made[3].returned = ("held", "by another process")
    assert progress_line(made, 7) == "4 of 7 jobs done, 2 running"


def test_a_sweep_prints_its_line(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "LINE_INTERVAL_S", 0.1)
    out = here("-m", *tiny("seed=0,1", "train.steps=60")).out
    assert re.search(r"^[01] of 2 jobs done, 1 running$", out, re.M)
