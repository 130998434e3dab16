"""A sweep whose processes are killed and whose disk fills up ends as one left in peace."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from program import Process, rows, start, state, summary, tiny

JOBLIB = ("-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")


def begin(*words: str, cwd: Path) -> subprocess.Popen[bytes]:
    """The program in a session of its own; its output is added to files."""
    with (cwd / "stdout").open("ab") as out, (cwd / "stderr").open("ab") as err:
        return subprocess.Popen(
            [sys.executable, "-m", "pe_lab", *words],
            cwd=cwd, stdout=out, stderr=err, start_new_session=True,
        )  # fmt: skip


def end(process: Process) -> int:
    """Wait for it, however long; its exit status."""
    process.process.join()
    return process.status


def workers(launcher: int) -> list[int]:
    """The processes of the launcher's pool."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent == launcher and b"popen_loky" in stat.with_name("cmdline").read_bytes():
                found.append(int(stat.parent.name))
        except OSError:
            continue
    return found


def folders(cwd: Path) -> dict[str, Path]:
    return {path.name: path for path in cwd.glob("runs/*/*/seed*") if path.is_dir()}


def written(cwd: Path) -> int:
    """How much has been measured, in bytes."""
    return sum(path.stat().st_size for path in cwd.glob("runs/*/*/seed*/metrics.jsonl"))


def equal(cwd: Path, whole: Path) -> None:
    """Every run of the one sweep is finished and has the other's numbers."""
    ours, theirs = folders(cwd), folders(whole)
    assert ours.keys() == theirs.keys()
    for name, folder in ours.items():
        assert state(folder)["state"] == "finished"
        assert rows(folder) == rows(theirs[name])
        assert summary(folder) == summary(theirs[name])


@pytest.mark.parametrize(
    ("encodings", "seeds", "kills", "launcher_kills"),
    [
        pytest.param("none,cope", 2, 1, 1, id="4 jobs"),
        pytest.param("none,cope,rope", 20, 20, 2, id="60 jobs", marks=pytest.mark.slow),
    ],
)
def test_killed_at_random(
    tmp_path: Path, encodings: str, seeds: int, kills: int, launcher_kills: int
) -> None:
    rng = random.Random(0)
    words = tiny(
        *JOBLIB, f"pe={encodings}", f"seed=range({seeds})", "train.steps=40", "model.dropout=0.1"
    )
    whole, cwd = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    cwd.mkdir()
    # One after another where there are few: a pool takes longer to start than they do.
    in_peace = start(*[w for w in words if w not in JOBLIB[1:] or seeds > 2], cwd=whole)
    assert end(in_peace) == 0, in_peace.stderr
    # As much is measured between two kills, however fast the machine is.
    pieces = kills + launcher_kills + 1
    marks = [(n + rng.uniform(0.1, 0.9)) / pieces * written(whole) for n in range(pieces - 1)]
    launcher_at = set(rng.sample(range(len(marks)), launcher_kills))
    launcher = start(*words, cwd=cwd)
    statuses = []
    said = ""
    done = 0
    for number, mark in enumerate(marks):
        while written(cwd) < mark and launcher.process.is_alive():
            time.sleep(0.01)
        if not launcher.process.is_alive():
            break
        if number in launcher_at:
            launcher.send(signal.SIGKILL)
            statuses.append(end(launcher))
            said += launcher.stderr
            launcher = start(*words, cwd=cwd)
        else:
            pid = launcher.process.pid or 0
            while not (found := workers(pid)) and launcher.process.is_alive():
                time.sleep(0.01)
            if found:
                os.kill(rng.choice(found), signal.SIGKILL)
        done += 1
    statuses.append(end(launcher))
    said += launcher.stderr
    assert done >= 0.9 * len(marks), (done, statuses)
    assert statuses.count(-signal.SIGKILL) == launcher_kills
    if statuses[-1] != 0:
        # Given up as killed too often: the same command, undisturbed.
        launcher = start(*words, cwd=cwd)
        assert end(launcher) == 0, launcher.stderr
    equal(cwd, whole)
    assert "a worker was killed: continuing" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("seeds", "launcher"),
    [
        pytest.param(3, ("-m",), id="in process", marks=pytest.mark.extended),
        pytest.param(12, JOBLIB, id="joblib", marks=pytest.mark.slow),
    ],
)
def test_a_disk_that_fills_up(
    tmp_path: Path, disk: Callable[[str], Path], seeds: int, launcher: tuple[str, ...]
) -> None:
    small = disk("16m")
    words = tiny(*launcher, f"seed=range({seeds})", "train.checkpoint_every=5")
    whole = tmp_path / "whole"
    whole.mkdir()
    assert begin(*words, cwd=whole).wait() == 0
    (small / "runs").mkdir()
    (tmp_path / "runs").symlink_to(small / "runs")
    # A small disk gives whole pages, and a checkpoint is written beside the old one.
    run = {p.name: -(-p.stat().st_size // 4096) for p in folders(whole).popitem()[1].iterdir()}
    room = 4096 * ((seeds // 2 + 1) * sum(run.values()) + run["checkpoint.pt"] // 2)
    stat = os.statvfs(small)
    (small / "ballast").write_bytes(b"\0" * (stat.f_bavail * stat.f_bsize - room))

    process = begin(*words, cwd=tmp_path)
    assert process.wait() == 1
    said = " ".join((tmp_path / "stdout").read_text().split())
    # Whatever is written first: a row, a checkpoint.
    full = r"cannot be written \((\[Errno 28\] )?No space left on device\)"
    assert re.search(rf"failed: (the checkpoint )?runs/\S+ {full}", said)
    assert "the same command runs only what is missing" in (tmp_path / "stderr").read_text()
    assert "Traceback" not in (tmp_path / "stderr").read_text()
    finished = {p.parent: p.read_bytes() for p in tmp_path.glob("runs/*/*/seed*/summary.json")}
    assert 1 <= len(finished) < seeds
    (small / "ballast").unlink()
    assert begin(*words, cwd=tmp_path).wait() == 0
    assert {p: (p / "summary.json").read_bytes() for p in finished} == finished
    equal(tmp_path, whole)
