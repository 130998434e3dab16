"""Sweeps: the outcome of each job, what is run again and what is not."""

import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from program import Here, start, state, succeeded, tiny
from suites import folders, starts, written

from pe_lab.cli.train import planned
from pe_lab.config.compose import CommandLine, Composer
from pe_lab.experiment.run import find_folder
from pe_lab.sweeps.jobs import Job, Outcome, closing_table, list_jobs


def table(out: str) -> list[list[str]]:
    """The closing table's rows; long outcomes go over several lines."""
    found: list[list[str]] = []
    for line in out.splitlines():
        if line.startswith("│"):
            cells = [cell.strip() for cell in line.strip("│").split("│")]
            if cells[0]:
                found.append(cells)
            else:
                found[-1] = [" ".join(pair).strip() for pair in zip(found[-1], cells, strict=True)]
    return found


def test_every_job_is_reported_and_only_what_is_missing_is_done(here: Here, tmp_path: Path) -> None:
    words = tiny(
        "-m", "train.lr=0.001,1e30,0.0001", "seed=0,1", "train.clip=null", "train.steps=30"
    )
    ended = here(*words)
    assert ended.status == 1
    assert ended.err == "pe-lab: 2 failed of 6 jobs: the same command runs only what is missing\n"
    found = table(ended.out)
    expected = [(lr, seed) for lr in ("0.001", "1e+30", "0.0001") for seed in "01"]
    assert [row[:3] for row in found] == [[str(n), *pair] for n, pair in enumerate(expected, 1)]
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


def test_two_jobs_that_are_one_run(here: Here, tmp_path: Path) -> None:
    ended = succeeded(here("-m", *tiny("train.log_every=1,2", "train.steps=3")))
    assert [row[2] for row in table(ended.out)] == ["finished", "finished (the same run as 1)"]
    assert len(folders(tmp_path)) == 1


def test_force_runs_every_job_again_once(here: Here, tmp_path: Path) -> None:
    words = ("-m", *tiny("seed=0,1", "train.steps=3"))
    succeeded(here(*words))
    assert [row[2] for row in table(succeeded(here(*words, "force=true")).out)] == ["finished"] * 2
    names = sorted(path.name.partition("-")[0] + path.suffix for path in folders(tmp_path).values())
    assert names == ["seed0", "seed0.replaced-1", "seed1", "seed1.replaced-1"]


def test_runs_of_another_process_are_waited_for(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two lines on one folder split the work; none is made twice, and a killed one is taken."""
    monkeypatch.setattr("pe_lab.sweeps.worker.HELD_POLL_S", 0.05)
    words = tiny("train.steps=400", "eval.every=400")
    other = start(*words, "seed=1", cwd=tmp_path)
    other.wait_for(lambda: written(tmp_path) > 1000)
    other.send(signal.SIGSTOP)

    def kill_once_nothing_else_is_left() -> None:
        while len([*tmp_path.glob("runs/*/*/seed*/summary.json")]) < 2:
            time.sleep(0.1)
        other.send(signal.SIGKILL)

    threading.Thread(target=kill_once_nothing_else_is_left, daemon=True).start()
    ended = succeeded(here("-m", *words, "seed=0,1,2"))
    assert [row[2] for row in table(ended.out)] == ["finished"] * 3
    assert ended.out.index("seed 2: finished") < ended.out.index("seed 1: finished")
    found = {name[:5]: starts(folder) for name, folder in folders(tmp_path).items()}
    assert found == {"seed0": 1, "seed1": 2, "seed2": 1}


def test_a_signal_between_two_jobs(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    import pe_lab.sweeps.worker as worker

    run = worker.run

    def ended(*words: Any) -> Any:
        done = run(*words)
        os.kill(os.getpid(), signal.SIGTERM)
        return done

    monkeypatch.setattr(worker, "run", ended)
    stopped = here("-m", *tiny("seed=0,1", "train.steps=3"))
    assert stopped.status == 143
    assert [row[2] for row in table(stopped.out)] == ["finished", "not begun"]


@pytest.mark.parametrize(("more", "times"), [([], 2), (["seed.init=1"], 8), (["seed.data=1"], 8)])
def test_jobs_that_differ_in_their_seed_are_composed_once(
    monkeypatch: pytest.MonkeyPatch, more: list[str], times: int
) -> None:
    words = ["-m", "task=flipflop", "pe=rope,cope", "seed=range(0,4)", *more]
    composed = []
    job = Composer.job
    monkeypatch.setattr(Composer, "job", lambda *args: composed.append(0) or job(*args))
    jobs, _, _ = list_jobs(CommandLine.parse(words))
    assert len(composed) == times
    expected = [find_folder(plan).path for plan in planned(CommandLine.parse(words))[1]]
    assert [job.folder.path for job in jobs] == expected
    # A key that reads the seed is composed for each.
    assert (
        list_jobs(CommandLine.parse([*words, "train.warmup=${seed}"]))[2].config.train.warmup == 3
    )


def test_the_closing_table_of_many_jobs(tmp_path: Path) -> None:
    jobs = [Job(n, [f"seed={n}"], str(n), str(tmp_path / str(n))) for n in range(1, 61)]
    outcomes = {job.path: Outcome("finished") for job in jobs} | {jobs[55].path: Outcome("failed")}
    closing, counts = closing_table(jobs, outcomes)
    assert (closing.row_count, counts) == (40, {"finished": 59, "failed": 1})
    assert "56" in list(closing.columns[0].cells)
    assert closing.caption == "40 of 60 jobs, unfinished ones first; in all 59 finished, 1 failed"
