"""Run folders: what is read back, what is odd in them, and who holds them."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from program import Here, assert_refused, succeeded, the_run, tiny

from pe_lab.core.errors import RunError
from pe_lab.store.run_folder import RunFolder, State, run_folders

FOLDER = "runs/flipflop/rope/seed0-01234567"


def only_run() -> RunFolder:
    (folder,) = run_folders(Path("runs"))
    return folder


def test_the_checkpoint_of_an_early_stop_is_the_model_that_was_measured(here: Here) -> None:
    succeeded(
        here(
            *tiny("train.steps=20", "train.checkpoint_every=5", "eval.every=7", "train.patience=1"),
            "train.stop_below=1",
        )
    )
    summary = only_run().summary()
    assert summary is not None
    assert summary["steps"] == 7
    assert torch.load(only_run().checkpoint, weights_only=True)["step"] == 7


def test_a_file_in_the_way_of_a_folder_is_one_sentence(here: Here) -> None:
    Path("runs/flipflop").mkdir(parents=True)
    Path("runs/flipflop/rope").write_text("")
    assert_refused(here(*tiny("pe=rope")), "runs/flipflop/rope/.seed0-", status=1)


def test_a_failure_that_the_disk_refused_to_record_is_a_killed_run(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quota, and SIGTERM at the next start before
    the run has begun, leave status.json at running; nobody is said to be at it, and it goes on."""
    words = tiny("train.steps=2", "train.warmup=0")

    record = RunFolder.set_status

    def refusing(folder: RunFolder, state: State, *facts: Any, **others: Any) -> None:
        if state == "failed":
            raise RunError("status.json cannot be written (Disk quota exceeded)")
        record(folder, state, *facts, **others)

    def full(folder: RunFolder, row: dict[str, Any]) -> None:
        raise RunError("metrics.jsonl cannot be written (Disk quota exceeded)")

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "set_status", refusing)
        patch.setattr(RunFolder, "add_row", full)
        ended = here(*words)
    assert (ended.status, "metrics.jsonl cannot be written" in ended.err) == (1, True)
    folder = only_run()
    assert (folder.status()["state"], folder.killed()) == ("running", True)
    assert "killed at step 0 of 2" in here("results").out
    assert "killed 0/2" in here("runs").out
    assert here(*words).status == 0
    assert folder.status()["state"] == "finished"


@pytest.fixture
def runs(here: Here, tmp_path: Path) -> list[Path]:
    """Two finished runs, and one that was stopped before."""
    for words in (["train.lr=1e-3"], ["train.lr=2e-3"], ["train.lr=3e-3", "pe=rope"]):
        assert here(*tiny("train.steps=2", *words)).status == 0
    found = sorted((tmp_path / "runs").glob("*/*/seed*"))
    (found[-1] / "summary.json").unlink()
    RunFolder(found[-1]).set_status("interrupted", 1, 2)
    for path in found[-1].iterdir():
        os.utime(path, (1e9, 1e9))
    return found


def test_runs_lists_hash_setting_state_age_and_size(here: Here, runs: list[Path]) -> None:
    lines = here("runs").out.splitlines()
    assert re.split(r"  +", lines[1].strip()) == [
        "task", "encoding", "seed", "hash", "setting", "state", "age", "size",
    ]  # fmt: skip
    hashes = [path.name.rpartition("-")[2] for path in runs]
    # The one changed last at the end.
    first, *others = (line for line in lines if line.startswith("flipflop"))
    assert re.match(rf"flipflop  rope +0 +{hashes[2]} .* interrupted 1/2 +\d+ d +[\d.]+ kB", first)
    for name in hashes[:2]:
        (line,) = (line for line in others if name in line)
        assert re.match(rf"flipflop  none +0 +{name} +lr=0.00[12] +finished +\d+ s ", line)
    shown = json.loads(here("runs", "pe=rope", "format=json").out)
    (row,) = shown["rows"]
    assert row["bytes"] == sum(path.stat().st_size for path in runs[2].iterdir())
    assert here("runs", "pe=rope", "format=csv").out.startswith("path,task,pe,seed,hash,")


def test_a_run_may_keep_its_numbers_alone(here: Here, tmp_path: Path) -> None:
    succeeded(here(*tiny("keep_checkpoint=false", "train.steps=3")))
    folder = the_run(tmp_path / "runs")
    assert not (folder / "checkpoint.pt").exists()
    assert len([*folder.iterdir()]) + len([*folder.parent.glob(".*.lock")]) <= 8
    succeeded(here("runs", "check=true"))
    assert_refused(here("eval", f"run={folder}", "lengths=8"), "kept no weights")
    # The identity is that of a run that keeps them.
    assert "is finished already" in succeeded(here(*tiny("train.steps=3"))).out
