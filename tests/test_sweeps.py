"""Sweeps: what is told of each job, what is done again and what is not."""

import os
import pickle
import re
import signal
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
import torch
from program import Here, rows, start, state, tiny
from test_chaos import equal, folders, workers, written

from pe_lab.config import register_resolvers
from pe_lab.errors import HeldError, Interrupted, RunError
from pe_lab.machine import environment, prepare
from pe_lab.runs import RunFolder
from pe_lab.sweeps.jobs import Job, closing
from pe_lab.sweeps.plugins import register_choices
from pe_lab.sweeps.rounds import STRIKES, do_all

JOBLIB = ("-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")


def table(out: str) -> list[list[str]]:
    """The closing table's rows; what is told at length goes over several lines."""
    found: list[list[str]] = []
    for line in out.splitlines():
        if line.startswith("│"):
            cells = [cell.strip() for cell in line.strip("│").split("│")]
            if cells[0]:
                found.append(cells)
            else:
                found[-1] = [" ".join(pair).strip() for pair in zip(found[-1], cells, strict=True)]
    return found


def test_every_job_is_told_and_only_what_is_missing_is_done(here: Here, tmp_path: Path) -> None:
    words = tiny(
        "-m", "train.lr=0.001,1e30,0.0001", "seed=0,1", "train.clip=null", "train.steps=30"
    )
    ended = here(*words)
    assert ended.status == 1
    assert ended.err == "pe-lab: 2 failed of 6 jobs: the same line does only what is missing\n"
    found = table(ended.out)
    asked = [(lr, seed) for lr in ("0.001", "1e+30", "0.0001") for seed in "01"]
    assert [row[:3] for row in found] == [[str(n), *pair] for n, pair in enumerate(asked, 1)]
    assert [row[3].partition(":")[0] for row in found] == [
        "finished", "finished", "failed", "failed", "finished", "finished",
    ]  # fmt: skip
    said = " ".join(ended.out.split())
    assert re.search(r"\[3/6\] flipflop none seed 0 train.lr=1e\+30: failed: .*not finite", said)
    assert re.search(r"\[6/6\] flipflop none seed 1 train.lr=0.0001: finished, in_domain", said)
    assert "splits" not in said
    for folder in folders(tmp_path).values():
        if state(folder)["state"] == "failed":
            assert "Traceback" in (folder / "log.txt").read_text()
            assert "not finite" in state(folder)["error"]

    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/*/*/*")}
    again = here(*words)
    assert (again.status, again.err) == (1, ended.err)
    assert [row[3].partition(":")[0] for row in table(again.out)] == [
        "finished before", "finished before", "failed", "failed",
        "finished before", "finished before",
    ]  # fmt: skip
    assert [row[4] for row in table(again.out)] == [row[4] for row in found]
    changed = {p.parent for p, time in before.items() if p.stat().st_mtime_ns != time}
    assert {state(folder)["state"] for folder in changed} == {"failed"}
    assert again.out.count("finished, in_domain") == 0


def test_what_is_finished_never_reaches_the_launcher(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hydra._internal.core_plugins.basic_launcher import BasicLauncher

    launched: list[int] = []
    launch = BasicLauncher.launch

    def counting(self: Any, overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Any:
        launched.append(len(overrides))
        return launch(self, overrides, initial_job_idx)

    monkeypatch.setattr(BasicLauncher, "launch", counting)
    short = ("train.steps=3", "train.warmup=1")
    assert here("-m", *tiny("seed=0,1", *short)).status == 0
    assert here("-m", *tiny("seed=0,1,2", *short)).status == 0
    assert launched == [2, 1]
    done = here("-m", *tiny("seed=0,1,2", *short))
    assert launched == [2, 1]
    assert done.status == 0
    assert "3 jobs, 3 of them finished before" in done.out
    forced = here("-m", *tiny("seed=0,1,2", "force=true", *short))
    assert (forced.status, launched) == (0, [2, 1, 3])
    assert [row[2] for row in table(forced.out)] == ["finished"] * 3


def test_two_jobs_that_are_one_run(here: Here, tmp_path: Path) -> None:
    ended = here("-m", *tiny("train.log_every=1,2", "train.steps=3"))
    assert ended.status == 0
    assert [row[2] for row in table(ended.out)] == ["finished", "finished (the same run as 1)"]
    assert len(folders(tmp_path)) == 1


def test_a_folder_that_another_process_writes(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pe_lab.sweeps.worker.HELD_S", 0.3)
    words = tiny("train.steps=10", "eval.sequences=800", "eval.batch_tokens=64")
    first = start(*words, "seed=1", cwd=tmp_path)
    first.wait_for(lambda: written(tmp_path) > 1000)
    first.send(signal.SIGSTOP)
    ended = here("-m", *words, "seed=0,1,2")
    first.send(signal.SIGKILL)
    assert ended.status == 1
    assert ended.err.startswith("pe-lab: 1 held of 3 jobs")
    states = [row[2] for row in table(ended.out)]
    assert [states[0], states[2]] == ["finished", "finished"]
    assert f"is being written by process {first.process.pid}" in " ".join(ended.out.split())
    assert first.status == -signal.SIGKILL
    assert here("-m", *words, "seed=0,1,2").status == 0


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


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_workers_write_their_checkpoints(tmp_path: Path, signum: int) -> None:
    words = tiny(*JOBLIB, "seed=0,1,2,3", "train.steps=400")
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
    assert "the same line goes on" in out
    for folder in folders(tmp_path).values():
        assert state(folder)["state"] == "interrupted"
        assert rows(folder)[-1]["step"] == state(folder)["step"] > 0


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


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


def test_a_signal_between_two_jobs(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    import pe_lab.job

    run = pe_lab.job.run

    def ended(*words: Any) -> Any:
        done = run(*words)
        os.kill(os.getpid(), signal.SIGTERM)
        return done

    monkeypatch.setattr(pe_lab.job, "run", ended)
    stopped = here("-m", *tiny("seed=0,1", "train.steps=3"))
    assert stopped.status == 143
    assert [row[2] for row in table(stopped.out)] == ["finished", "not begun"]


LINES = {
    "files and values": ["task=flipflop,brackets", "pe=cope,rope", "seed=0,1", "train.lr=1e-3"],
    "a mapping, a list, a launcher": [
        "pe=combined", "pe.parts=[cope,rope]", "seed=0,1", "task.splits={foo:{length: 8}}",
        "hydra/launcher=joblib", "hydra.launcher.n_jobs=3",
    ],
}  # fmt: skip


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_jobs_composed_together_are_those_composed_alone(
    monkeypatch: pytest.MonkeyPatch, line: list[str]
) -> None:
    from omegaconf import OmegaConf

    import pe_lab.compose
    from pe_lab.launch import _arguments

    def plain() -> list[Any]:
        found: list[Any] = []
        for cfg in pe_lab.compose.compose(_arguments(["-m", *line])):
            found.append(OmegaConf.to_container(cfg, resolve=False))
            # Made of the words, for those who name folders by it.
            del found[-1]["hydra"]["job"]["override_dirname"]
        return found

    register_choices()
    register_resolvers()
    together = plain()
    monkeypatch.setattr(
        pe_lab.compose, "compose_all", lambda hydra, _, jobs, one: [one(hydra, job) for job in jobs]
    )
    assert together == plain()
    assert len(together) in (2, 8)


def job(number: int, folder: Path) -> Job:
    made = RunFolder(folder / f"seed{number}-00000000")
    return Job(number, [], {}, str(number), made, False)


def test_a_job_that_kills_its_worker_is_given_up_and_no_other(tmp_path: Path) -> None:
    jobs = [job(number, tmp_path) for number in (1, 2, 3, 4)]
    rounds = []

    def launch(batch: Sequence[Job], patient: bool) -> None:
        rounds.append([one.number for one in batch])
        for one in batch[:2]:
            one.folder.make()
            one.folder.set_status("running", one.step(), 9)
        if batch[0].number == 1:
            # The second in the pool dies with it.
            raise BrokenProcessPool
        for one in batch:
            one.told = ("failed", "fine")

    do_all(jobs, launch)
    assert rounds == [[1, 2, 3, 4], [1, 2, 3, 4], [3, 4], [1], [2]]
    assert jobs[0].told is not None
    assert jobs[0].told[0] == "killed"
    assert [one.told for one in jobs[1:]] == [("failed", "fine")] * 3
    assert closing(jobs)[1] == {"killed": 1, "failed": 3}


def test_a_job_that_gets_further_each_time_is_not_given_up(tmp_path: Path) -> None:
    (one,) = jobs = [job(1, tmp_path)]

    def launch(batch: Sequence[Job], patient: bool) -> None:
        one.folder.make()
        one.folder.set_status("running", one.step() + 1, 9)
        if one.step() < 9:
            raise BrokenProcessPool
        one.told = ("failed", "fine")

    do_all(jobs, launch)
    assert one.told == ("failed", "fine")


def test_a_pool_that_never_begins_is_no_endless_loop(tmp_path: Path) -> None:
    rounds = []

    def launch(batch: Sequence[Job], patient: bool) -> None:
        rounds.append(batch)
        raise BrokenProcessPool

    with pytest.raises(RunError, match="3 times a worker was killed before it began a job"):
        do_all([job(1, tmp_path)], launch)
    assert len(rounds) == STRIKES


def test_a_held_folder_is_tried_again_at_the_end(tmp_path: Path) -> None:
    jobs = [job(number, tmp_path) for number in (1, 2)]
    rounds = []

    def launch(batch: Sequence[Job], patient: bool) -> None:
        rounds.append(([one.number for one in batch], patient))
        for one in batch:
            one.told = ("failed", "fine") if patient or one.number == 2 else ("held", "by another")

    do_all(jobs, launch)
    assert rounds == [([1, 2], False), ([1], True)]
    assert jobs[0].told == ("failed", "fine")


def test_jobs_take_the_gpus_in_turn(monkeypatch: pytest.MonkeyPatch, here: Here) -> None:
    from pe_lab.launch import checked_jobs

    chosen: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {index}")
    (config,) = checked_jobs(tiny())
    devices = [prepare(config, number) for number in range(5)]
    assert [device.index for device in devices] == [0, 1, 2, 0, 1]
    assert chosen == devices
    facts, _ = environment(1, devices[1].type, devices[1].index)
    assert (facts["device"], facts["gpu"], facts["gpu_index"]) == ("cuda", "GPU 1", 1)
    (config,) = checked_jobs(tiny("device=cpu"))
    assert prepare(config, 1) == torch.device("cpu")


@pytest.mark.parametrize("error", [Interrupted(15), HeldError("held"), RunError("failed")])
def test_what_a_worker_raises_can_be_sent(error: BaseException) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert again.args == error.args
