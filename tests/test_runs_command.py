"""``pe-lab runs``, and how ``run=`` names what it finds (issue 15, part 2)."""

import json
import os
import re
from pathlib import Path

import pytest
import yaml
from program import Here, tiny

import pe_lab
from pe_lab.store.run_folder import RunFolder


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


@pytest.mark.parametrize("command", ["inspect", "generate"])
def test_several_runs_are_named_by_their_settings(
    here: Here, runs: list[Path], command: str
) -> None:
    extra = ["prompt=w1"] if command == "generate" else []
    ended = here(command, "run=none", *extra)
    assert ended.status == 2
    lr = [yaml.safe_load((path / "config.yaml").read_text())["train"]["lr"] for path in runs[:2]]
    assert sorted(lr) == [0.001, 0.002]
    assert (
        f"run=none fits 2 runs: flipflop/none/{runs[0].name} (lr={lr[0]}), "
        f"flipflop/none/{runs[1].name} (lr={lr[1]}); give more of the name, pe-lab runs lists"
    ) in ended.err
    assert "see pe-lab runs for the runs" in here(command, "run=cope", *extra).err


def test_the_version_is_ours(here: Here) -> None:
    for words in (["--version"], ["version"]):
        ended = here(*words)
        assert (ended.status, ended.out) == (0, f"pe-lab {pe_lab.__version__}\n")
    assert pe_lab.__version__.count(".") == 2


def test_a_default_that_follows_from_others_is_no_setting_of_an_unfinished_run(
    here: Here, tmp_path: Path
) -> None:
    """pe.npos of cope is null until the training length is known."""
    assert here(*tiny("train.steps=2", "pe=cope")).status == 0
    (summary,) = (tmp_path / "runs").rglob("summary.json")
    summary.unlink()
    shown = here("runs").out
    assert "killed" in shown
    assert "npos" not in shown
