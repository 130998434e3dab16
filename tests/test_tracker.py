"""The group ``tracker``, and what a run ensures about its tracker."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from offline_wandb import core_of, files, history
from program import ROOT, Here, rows, state, succeeded, the_run, tiny
from program import start as start_process
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pe_lab.experiment import provenance
from pe_lab.experiment.tracking import Tracking

pytestmark = pytest.mark.usefixtures("no_wandb_account")

OFFLINE = "tracker.wandb.mode=offline"


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every scalar of a run's event files, with its steps."""
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_tensorboard_has_every_row_once_after_a_kill(here: Here, tmp_path: Path) -> None:
    words = tiny("tracker=tensorboard", "train.steps=200")
    process = start_process(*words, cwd=tmp_path)
    process.wait_for(lambda: list(tmp_path.glob("runs/*/*/*/checkpoint.pt")))
    process.send(signal.SIGKILL)
    assert process.status == -signal.SIGKILL
    succeeded(here(*words))
    folder = the_run(tmp_path / "runs")
    found = scalars(folder)
    logged = [(row["step"], row["train/loss"]) for row in rows(folder) if "train/loss" in row]
    np.testing.assert_allclose(found["train/loss"], logged, rtol=1e-6)
    numbers = json.loads((folder / "summary.json").read_text())["metrics"]
    assert found["in_domain/error"][-1] == pytest.approx((200, numbers["in_domain/error"]))
    assert "ood/error" in found
    assert not any(tag.endswith(("/n", "/error_low")) for tag in found if "ood" in tag[:3])
    assert json.loads((folder / "tracker.json").read_text())["complete"]
    assert not (folder / "wandb").exists()


def test_tensorboard_that_is_not_installed_is_one_warning(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    outcome = succeeded(here(*tiny("tracker=tensorboard")))
    assert "pip install 'pe-lab[tensorboard]'" in outcome.out
    assert (the_run(tmp_path / "runs") / "summary.json").exists()


@pytest.mark.extended
@pytest.mark.parametrize(
    "word",
    ["tracker=none", "tracker.wandb.mode=disabled"],
)
def test_without_a_tracker_nothing_of_wandb_is_imported_or_started(
    tmp_path: Path, word: str
) -> None:
    words = [w for w in tiny() if not w.startswith("tracker")]
    script = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from pe_lab.cli.main import main
assert main({[*words, word]!r}) == 0
found = ("wandb", "tensorboard")
print("imported:", sorted(name for name in sys.modules if name.partition(".")[0] in found))
import os, pathlib
pid = str(os.getpid()).encode()
print("started:", [f.parent.name for f in pathlib.Path("/proc").glob("[0-9]*/cmdline")
                   if b"wandb" in f.read_bytes() and pid in f.read_bytes().split(bytes(1))])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("imported: []\nstarted: []\n")
    assert not list(tmp_path.rglob("wandb")) + list(tmp_path.rglob("tracker.json"))


@pytest.mark.extended
@pytest.mark.parametrize("sweep", [[], ["-m"]], ids=["alone", "sweep"])
def test_a_run_killed_before_the_end_of_its_tracker_is_sent_by_the_next_start(
    here: Here, tmp_path: Path, sweep: list[str]
) -> None:
    words = [*sweep, *tiny(OFFLINE, "train.steps=60")]
    process = start_process(*words, cwd=tmp_path)
    process.wait_for(lambda: list(tmp_path.glob("runs/*/*/*/summary.json")))
    assert process.process.pid is not None
    core = core_of(process.process.pid)
    process.send(signal.SIGSTOP)
    os.kill(core, signal.SIGKILL)
    process.send(signal.SIGKILL)
    assert process.status == -signal.SIGKILL
    folder = the_run(tmp_path / "runs")
    assert state(folder)["state"] == "finished"
    assert json.loads((folder / "tracker.json").read_text())["complete"] is False
    before = (folder / "summary.json").read_bytes()

    outcome = succeeded(here(*words))
    assert "sending the tracker what it lacks" in outcome.out
    assert (folder / "summary.json").read_bytes() == before
    *measured, closing, tables = history(folder)
    assert [row["step"] for row in measured] == [row["step"] for row in rows(folder)]
    assert closing["step"] == 60
    assert "splits.nrows" in tables
    assert "sending" not in here(*words).out
    assert len(files(folder)) == 1


def test_damaged_rows_are_not_sent(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Tracking, "finish", lambda *_: None)
        assert here(*tiny("tracker=tensorboard")).status == 0
    metrics = the_run(tmp_path / "runs") / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace("train/loss", "train/lost", 1))
    for words in (tiny("tracker=tensorboard"), ["-m", *tiny("tracker=tensorboard")]):
        outcome = succeeded(here(*words))
        assert "metrics.jsonl does not fit its digest in summary.json" in outcome.out
        assert "sending" not in outcome.out


def test_a_finished_run_is_not_sent_to_another_tracker(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Tracking, "finish", lambda *_: None)
        assert here(*tiny("tracker=tensorboard")).status == 0
    for words in (tiny(OFFLINE), tiny(), tiny("tracker=none")):
        assert "sending" not in here(*words).out
    folder = the_run(tmp_path / "runs")
    assert not (folder / "wandb").exists()
    assert "sending" in here(*tiny("tracker=tensorboard")).out


def test_a_changed_file_that_is_not_utf8_is_in_the_diff(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "code"
    for name in ("pe_lab/store/run_folder.py", "latin1.txt"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_bytes(b"first\n")
    git = ["git", "-C", str(code), "-c", "user.name=x", "-c", "user.email=x"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *words], check=True)
    (code / "latin1.txt").write_bytes(b"caf\xe9\n")
    file = code / "pe_lab" / "experiment" / "provenance.py"
    monkeypatch.setattr(provenance, "__file__", str(file))
    succeeded(here(*tiny("tracker=none")))
    folder = the_run(tmp_path / "runs")
    assert b"\n+caf\xe9\n" in (folder / "git-1.diff").read_bytes()
    (start,) = json.loads((folder / "environment.json").read_text())
    assert len(start["git_revision"]) == 40
