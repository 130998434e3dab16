"""Sweeps over worker processes: the same numbers, and what a signal and a kill leave."""

import os
import re
import signal
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
from program import Here, rows, start, state, tiny
from suites import JOBLIB, equal, folders, workers, written
from test_sweeps import table

from pe_lab.core.errors import RunError
from pe_lab.store.run_folder import RunFolder
from pe_lab.sweeps.jobs import Job, closing_table, launch_all


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

    def given_up() -> bool:
        return all(RunFolder(folder).killed() for folder in folders(tmp_path).values())

    deadline = 200
    # The first thread of a process may have ended while another still holds the lock.
    while (any(map(alive, pool)) or not given_up()) and deadline:
        signal.sigtimedwait([], 0.1)
        deadline -= 1
    assert not [pid for pid in pool if alive(pid)]
    assert given_up()


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
            one.folder.set_status("running", one.status().get("step", 0), 9)
        if batch[0].number == 1:
            # The second in the pool dies with it.
            raise BrokenProcessPool
        for one in batch:
            one.returned = ("failed", "fine")

    launch_all(jobs, launch)
    assert rounds == [[1, 2, 3, 4], [1], [2], [3, 4]]
    assert jobs[0].returned is not None
    assert jobs[0].returned[0] == "killed"
    assert [one.returned for one in jobs[1:]] == [("failed", "fine")] * 3
    outcomes = {one.number: one.outcome() for one in jobs}
    assert closing_table(jobs, outcomes)[1] == {"killed": 1, "failed": 3}


def test_a_pool_that_never_begins_is_no_endless_loop(tmp_path: Path) -> None:
    rounds = []

    def launch(batch: Sequence[Job]) -> None:
        rounds.append(batch)
        raise BrokenProcessPool

    with pytest.raises(RunError, match="a worker was killed before it began a job"):
        launch_all([job(1, tmp_path)], launch)
    assert len(rounds) == 1
