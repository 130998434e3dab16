"""Sweeps over worker processes: the same numbers, and what a signal and a kill leave."""

import os
import pickle
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from program import Here, command, rows, start, state, tiny
from sweeps import JOBLIB, equal, folders, workers, written
from test_sweeps import table

from pe_lab.common.errors import HeldError, Interrupted, RunError


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
    states = sorted(row[2].partition(" at")[0] for row in table(out))
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
    assert sorted(state(f)["state"] for f in folders(tmp_path).values()) == ["interrupted"] * 2


IDLE = """
import os, signal, sys
from joblib.externals.loky import get_reusable_executor
from pe_lab.common.signals import begin_worker
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


@pytest.mark.parametrize("error", [Interrupted(15), HeldError("held"), RunError("failed")])
def test_what_a_worker_raises_can_be_sent(error: BaseException) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert again.args == error.args


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
