"""Which jobs are launched again after a pool has lost a worker, and which are abandoned."""

from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from pe_lab.common.errors import RunError
from pe_lab.store.run_folder import RunFolder
from pe_lab.sweeps.jobs import MAX_KILLS, Job, closing_table, launch_all


def job(number: int, folder: Path) -> Job:
    made = RunFolder(folder / f"seed{number}-00000000")
    return Job(number, [], {}, str(number), made, False)


def test_a_job_that_kills_its_worker_is_abandoned_and_no_other(tmp_path: Path) -> None:
    jobs = [job(number, tmp_path) for number in (1, 2, 3, 4)]
    rounds = []

    def launch(batch: Sequence[Job], wait_for_locks: bool) -> None:
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

    def launch(batch: Sequence[Job], wait_for_locks: bool) -> None:
        one.folder.make()
        one.folder.set_status("running", one.step() + 1, 9)
        if one.step() < 9:
            raise BrokenProcessPool
        one.returned = ("failed", "fine")

    launch_all(jobs, launch)
    assert one.returned == ("failed", "fine")


def test_a_pool_that_never_begins_is_no_endless_loop(tmp_path: Path) -> None:
    rounds = []

    def launch(batch: Sequence[Job], wait_for_locks: bool) -> None:
        rounds.append(batch)
        raise BrokenProcessPool

    with pytest.raises(RunError, match="3 times a worker was killed before it began a job"):
        launch_all([job(1, tmp_path)], launch)
    assert len(rounds) == MAX_KILLS


def test_a_held_folder_is_tried_again_at_the_end(tmp_path: Path) -> None:
    jobs = [job(number, tmp_path) for number in (1, 2)]
    rounds = []

    def launch(batch: Sequence[Job], wait_for_locks: bool) -> None:
        rounds.append(([one.number for one in batch], wait_for_locks))
        for one in batch:
            one.returned = (
                ("failed", "fine") if wait_for_locks or one.number == 2 else ("held", "by another")
            )

    launch_all(jobs, launch)
    assert rounds == [([1, 2], False), ([1], True)]
    assert jobs[0].returned == ("failed", "fine")
