"""``pe-lab suite`` under kills, signals, a full disk and too little memory: it goes on, and ends
with the numbers of an undisturbed one."""

import errno
import itertools
import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from program import Here, Process, start, working_in
from suites import TASK, equal, folders, tiny_suite, written

from pe_lab.cli.main import main
from pe_lab.store import checkpoint
from pe_lab.tasks.flipflop import FlipFlop

pytestmark = pytest.mark.extended

RUNS = 4 + 2
"""Of an entry: four rates, and two seeds of the score."""


def suite(folder: Path) -> list[str]:
    """The words of a suite whose runs take a quarter of a second; its files are in the folder."""
    words = [word if "steps" not in word else "train.steps=60" for word in TASK]
    line = tiny_suite(folder, words=words)
    return [*line, "train.checkpoint_every=10", "train.log_every=1", "pe=alibi"]


def in_workers(line: list[str]) -> list[str]:
    """The same in two workers."""
    return [*(word.replace("=basic", "=joblib") for word in line), "hydra.launcher.n_jobs=2"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The suite, undisturbed."""
    folder = tmp_path_factory.mktemp("whole")
    with working_in(folder):
        assert main(suite(folder)) == 0
    assert len(folders(folder)) == RUNS
    return folder


def processes(cwd: Path) -> set[int]:
    """Those that work in this folder and are alive."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            alive = process.joinpath("stat").read_text().rpartition(")")[2].split()[0] != "Z"
            if alive and process.joinpath("cwd").resolve() == cwd:
                found.add(int(process.name))
        except OSError:
            continue
    return found - {os.getpid()}


def gone(cwd: Path) -> bool:
    """Whether within seconds no process is left that works in this folder."""
    end = time.monotonic() + 60
    while found := processes(cwd):
        if time.monotonic() > end:
            return False
        signal.sigtimedwait([], 0.1)
    return not found


def starts(cwd: Path) -> int:
    """How often a run was begun or resumed."""
    found = (path / "environment.json" for path in folders(cwd).values())
    return sum(len(json.loads(path.read_text())) for path in found if path.exists())


def results(cwd: Path) -> dict[Path, int]:
    """The results that are there, and when they were written."""
    return {path: path.stat().st_mtime_ns for path in cwd.glob("runs/*/*/*/summary.json")}


def some_way(process: Process, rng: random.Random) -> None:
    """Wait until a random number of steps has been trained."""
    enough = written(process.cwd) + rng.randrange(1, 4000)
    process.wait_for(lambda: written(process.cwd) >= enough)


def finish(line: list[str], cwd: Path) -> None:
    process = start(*line, cwd=cwd)
    assert process.status == 0, process.stderr


@pytest.fixture
def rng() -> random.Random:
    return random.Random(0)


def test_kills_of_the_command(tmp_path: Path, whole: Path, rng: random.Random) -> None:
    """Nothing is trained twice but what ran, from its last checkpoint; no worker stays."""
    line, kills = suite(tmp_path), 2
    for _ in range(kills):
        before = results(tmp_path)
        process = start(*in_workers(line), cwd=tmp_path)
        some_way(process, rng)
        process.send(signal.SIGKILL)
        assert process.status == -signal.SIGKILL
        assert gone(tmp_path)
        assert before.items() <= results(tmp_path).items()
    before = results(tmp_path)
    finish(line, tmp_path)
    assert before.items() <= results(tmp_path).items()
    assert starts(tmp_path) <= RUNS + 2 * kills
    equal(tmp_path, whole)


def failing(function: Callable[..., Any], at: int, error: Exception) -> Callable[..., Any]:
    """The function, whose call of this number raises the error."""
    calls = itertools.count(1)

    def short(*words: Any) -> Any:
        if next(calls) == at:
            raise error
        return function(*words)

    return short


@pytest.mark.parametrize(
    ("owner", "name", "at", "error", "said"),
    [
        (FlipFlop, "sample", 40, MemoryError("no room"), "failed: MemoryError: no room"),
        (
            FlipFlop,
            "sample",
            40,
            OSError(errno.ENOSPC, "no room"),
            "failed: OSError: [Errno 28] no",
        ),
        # It goes on from the checkpoint before.
        (checkpoint, "replace_file", 4, OSError(errno.ENOSPC, "no room"), "cannot be written"),
        # A file that is not there will not be there the next time.
        (FlipFlop, "sample", 45, FileNotFoundError(errno.ENOENT, "no such table"), ""),
    ],
)
def test_runs_out_of_memory_or_room(
    here: Here, tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch,
    owner: Any, name: str, at: int, error: Exception, said: str,
) -> None:  # fmt: skip
    """They are missing, where an error of the code is a failed trial; the others go on."""
    line = suite(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, failing(getattr(owner, name), at, error))
        ended = here(*line)
    assert ended.status == 1
    assert ("untuned entries: 1" in " ".join(ended.out.split())) == bool(said)
    if not said:
        # Its rate has failed, and the score is at one of the other three.
        assert len(results(tmp_path)) == RUNS - 1
        return
    assert said in ended.out
    # Without one of four rates none is chosen.
    assert len(results(tmp_path)) == 3
    assert here(*line).status == 0
    equal(tmp_path, whole)


def test_a_full_disk(tmp_path: Path, disk: Callable[[str], Path], whole: Path) -> None:
    small = disk("4m")
    line = [*suite(tmp_path), f"runs_dir={small / 'runs'}"]
    ballast = small / "ballast"
    ballast.write_bytes(b"\0" * (4 * 2**20 - 200_000))
    process = start(*line, cwd=tmp_path)
    assert process.status == 1
    assert "Traceback" not in process.stderr
    assert "No space left on device" in process.stderr + (tmp_path / "stdout").read_text()
    ballast.unlink()
    finish(line, tmp_path)
    equal(small, whole)
