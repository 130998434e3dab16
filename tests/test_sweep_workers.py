"""Sweeps over worker processes: the same numbers, and what a signal and a kill leave."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from joblib.externals.loky.process_executor import BrokenProcessPool
from program import ROOT, Here, rows, start, state, tiny
from suites import JOBLIB, equal, folders, workers, written
from test_sweeps import table

from pe_lab.core.errors import RunError
from pe_lab.experiment.environment import freest_gpu
from pe_lab.store.run_folder import RunFolder
from pe_lab.sweeps.jobs import Job
from pe_lab.sweeps.launchers import Joblib
from pe_lab.sweeps.worker import HELD_POLL_S, Work


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


def on_host(name: str, cwd: Path, *words: str) -> subprocess.Popen[str]:
    """A sweep on a machine of this name: only its name differs from this one's."""
    named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name]
    program = [sys.executable, "-m", "pe_lab", "-m", *tiny(*words), "hydra/launcher=basic"]
    return subprocess.Popen([*named, *program], cwd=cwd, stdout=subprocess.PIPE, text=True)


@pytest.mark.extended
@pytest.mark.skipif(
    subprocess.run("unshare --uts true", shell=True, capture_output=True).returncode != 0,
    reason="a name for a machine needs unshare and root",
)
def test_of_two_machines_one_waits_for_the_run_of_the_other(tmp_path: Path) -> None:
    words = ("train.steps=300", "train.checkpoint_every=300", "tracker=none", "seed=0,1,2")

    def wait_for(*expected: tuple[str, str]) -> None:
        found: list[tuple[str, str]] = []
        while found != [*expected]:
            time.sleep(0.01)
            paths = sorted(tmp_path.glob("runs/*/*/seed*/status.json"))
            found = [(one["state"], one["host"]) for one in map(state, [p.parent for p in paths])]

    alpha = on_host("alpha", tmp_path, *words)
    wait_for(("running", "alpha"))
    alpha.send_signal(signal.SIGSTOP)
    beta = on_host("beta", tmp_path, *words)
    wait_for(("running", "alpha"), ("finished", "beta"), ("finished", "beta"))
    with pytest.raises(subprocess.TimeoutExpired):
        beta.wait(3 * HELD_POLL_S)
    alpha.send_signal(signal.SIGCONT)
    assert [one.wait(120) for one in (alpha, beta)] == [0, 0]
    wait_for(("finished", "alpha"), ("finished", "beta"), ("finished", "beta"))
    starts = [RunFolder(folder).starts() for folder in folders(tmp_path).values()]
    assert [len(start) for start in starts] == [1, 1, 1]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.extended
def test_workers_whose_launcher_is_killed_stop_and_give_up_their_runs(tmp_path: Path) -> None:
    words = tiny(*JOBLIB, "seed=0,1,2,3", "train.steps=4000")
    run = start(*words, cwd=tmp_path)

    def states() -> list[str | None]:
        return [RunFolder(folder).status().get("state") for folder in folders(tmp_path).values()]

    # A folder whose status is not written yet is no run that could be given up.
    run.wait_for(lambda: states() == ["running"] * 2)
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


KILLS = """
import os, signal
from pe_lab.pe.rope import RoPE

class Kills(RoPE):
    def rotate(self, *args):
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.extended
def test_a_run_that_kills_its_worker_is_given_up_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "mine" / "pe").mkdir(parents=True)
    (tmp_path / "mine" / "kills.py").write_text(KILLS)
    text = (ROOT / "conf/pe/rope.yaml").read_text().replace("pe_lab.pe.rope.RoPE", "kills.Kills")
    (tmp_path / "mine" / "pe" / "kills.yaml").write_text(text)
    run = start(
        *JOBLIB, *tiny("pe=kills,rope", "seed=0", "train.steps=40"), "--config-dir", "mine",
        cwd=tmp_path,
    )  # fmt: skip
    run.process.join(240)
    assert run.status == 1
    states = [row[2].partition(":")[0] for row in table((tmp_path / "stdout").read_text())]
    assert states == ["killed", "finished"]


def test_a_pool_that_never_begins_is_no_endless_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = []

    def fill_pool(*args: object) -> None:
        rounds.append(args)
        raise BrokenProcessPool

    monkeypatch.setattr("pe_lab.sweeps.launchers.fill_pool", fill_pool)
    jobs = [Job(n, [], str(n), str(tmp_path / f"seed{n}-00000000")) for n in (1, 2)]
    work = Work.write(tmp_path / "jobs.jsonl", "sweep", jobs, 2, None)
    with pytest.raises(RunError, match="workers are killed before they begin a run"):
        Joblib(2).launch(work, 2)
    assert len(rounds) == 3


@pytest.mark.parametrize(
    ("free", "chosen"), [([8, 8, 40], {2}), ([20, 20.5, 8], {0, 1}), ([8], {0})]
)
def test_a_gpu_is_chosen_by_its_free_memory(
    monkeypatch: pytest.MonkeyPatch, free: list[float], chosen: set[int]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(free))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda gpu: (int(free[gpu] * 2**30), 0))
    assert {freest_gpu() for _ in range(50)} == chosen
