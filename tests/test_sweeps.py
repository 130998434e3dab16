"""Sweeps: the outcome of each job, what is run again and what is not."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from program import Here, start, state, succeeded, tiny
from suites import folders, written


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


@pytest.mark.extended
def test_a_folder_that_another_process_writes(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pe_lab.sweeps.worker.LOCK_WAIT_S", 0.3)
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


def test_a_signal_between_two_jobs(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    import pe_lab.experiment.run as experiment

    run = experiment.run

    def ended(*words: Any) -> Any:
        done = run(*words)
        os.kill(os.getpid(), signal.SIGTERM)
        return done

    monkeypatch.setattr(experiment, "run", ended)
    stopped = here("-m", *tiny("seed=0,1", "train.steps=3"))
    assert stopped.status == 143
    assert [row[2] for row in table(stopped.out)] == ["finished", "not begun"]
