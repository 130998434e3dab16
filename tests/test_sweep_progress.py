"""The line of progress of a sweep, from the folders of its jobs."""

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from program import Here, tiny

from pe_lab.store.run_folder import RunFolder
from pe_lab.sweeps import jobs
from pe_lab.sweeps.jobs import Job, Progress


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Job]:
    def make(number: int) -> Job:
        folder = RunFolder(tmp_path / "runs" / "flipflop" / "rope" / f"seed{number}-00000000")
        return Job(number, [], {}, f"rope seed {number}", folder, False, steps=400)

    return make


def at_step(job: Job, state: str, step: int) -> None:
    """The folder of a run with rows up to this step."""
    job.folder.make()
    job.folder.set_status(state, 0, 400)
    rows = (f'{{"step": {n}, "train/loss": 0.5}}\n' for n in range(20, step + 1, 20))
    job.folder.metrics.write_text("".join(rows) + '{"step": 99')


def test_jobs_done_running_left_and_the_time_to_go(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [job(number) for number in range(1, 6)]
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    shown = Progress(jobs, total=7)
    assert shown.line() == "2 of 7 jobs done, 5 left"
    at_step(jobs[0], "finished", 400)
    at_step(jobs[1], "running", 240)
    at_step(jobs[2], "running", 160)
    jobs[3].returned = ("held", "by another process")
    now += 80
    # 800 steps in 80 s; 160 + 240 + 400 are left.
    assert shown.line() == (
        "4 of 7 jobs done, 2 running (rope seed 2, step 240 of 400; rope seed 3, step 160 of 400), "
        "1 left, about 80 s to go"
    )


def test_steps_of_an_earlier_start_do_not_count_as_fast(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, (one,) = 1000.0, (job(1),)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    at_step(one, "interrupted", 200)
    one.status_before = one.status()
    shown = Progress([one], total=1)
    at_step(one, "running", 300)
    now += 100
    assert shown.line().endswith("step 300 of 400), 0 left, about 2 min to go")


def test_a_sweep_prints_its_line(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "LINE_INTERVAL_S", 0.1)
    out = here("-m", *tiny("seed=0,1", "train.steps=60")).out
    lines = [line for line in out.splitlines() if " jobs done, " in line]
    assert any(re.match(r"[01] of 2 jobs done, 1 running \(flipflop none seed [01], step", x)
               for x in lines)  # fmt: skip
    assert any(re.search(r", about \d+ s to go$", line) for line in lines)
    assert not any(line.startswith("2 of 2") for line in lines)
