"""Entry points: an installed package brings its own encodings, tasks and models."""

import importlib
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from program import Here, assert_has, assert_refused, succeeded, summary, the_run, tiny

from pe_lab.config.choices import choices
from pe_lab.core.config_dir import plugins

DECAY = '''
import torch
from torch import nn
from pe_lab.pe.base import Dims, PositionalEncoding

class Decay(PositionalEncoding):
    """Decay of a package."""
    shift_invariant = True
    def __init__(self, dims: Dims, start: float) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.full((dims.n_heads,), start))
    def bias(self, pos_q_BT, pos_k_BS):
        distance = pos_q_BT[:, None, :, None] - pos_k_BS[:, None, None, :]
        return -self.rate[:, None, None] * distance
'''
YAML = "# Decay of a package\n_target_: {}.Decay\nstart: 0.5\n"


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    (tmp_path / "site").mkdir()
    for name in ("own", "one"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.invalidate_caches()
    plugins.cache_clear()
    choices.cache_clear()
    yield
    monkeypatch.undo()
    plugins.cache_clear()
    choices.cache_clear()


def install(site: Path, name: str, points: str, **files: str) -> None:
    """What pip writes for a package: its folder, and a dist-info folder with its entry points."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points)
    (site / name).mkdir()
    (site / name / "__init__.py").write_text(DECAY)
    for path, text in files.items():
        file = site / name / f"{path.replace('__', '/')}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)


def decay(site: Path, name: str, **files: str) -> None:
    points = f"[pe_lab.encodings]\n{name}_decay = {name}\n"
    install(site, name, points, **{f"pe__{name}_decay": YAML.format(name), **files})


def test_a_package_brings_an_encoding(here: Here, tmp_path: Path) -> None:
    decay(tmp_path / "site", "own")
    assert_has(succeeded(here("list", "pe")).out, "pe=own_decay", "Decay of a package")
    succeeded(here(*tiny("pe=own_decay", "pe.start=0.25", "train.steps=2")))
    folder = the_run(tmp_path / "runs")
    assert summary(folder)["config"]["pe"] == {"_target_": "own.Decay", "start": 0.25}
    assert str(tmp_path / "site" / "own") not in sys.path
    # A recorded run of it is loaded without --config-dir, and others are measured with it.
    sys.modules.pop("own")
    succeeded(here("eval", f"run={folder}", "lengths=24"))
    assert_has(succeeded(here("results")).out, "own_decay", "start=0.25")


def test_a_package_brings_a_task_and_a_model(here: Here, tmp_path: Path) -> None:
    points = "[pe_lab.tasks]\nshorter = own\n[pe_lab.models]\nnarrow = own\n"
    flipflop = (choices("task")["flipflop"]).read_text()
    install(
        tmp_path / "site",
        "own",
        points,
        task__shorter=flipflop,
        model__narrow=choices("model")["lstm"].read_text(),
        preset__shorter="# @package _global_\ntrain:\n  steps: 3\n  warmup: 1\n",
    )
    plugins.cache_clear()
    choices.cache_clear()
    importlib.invalidate_caches()
    words = ["task=shorter", "model=narrow", "pe=none", "eval.sequences=4"]
    succeeded(here(*words, "eval.quick_sequences=4", "tracker=none"))
    found = summary(the_run(tmp_path / "runs"))
    assert (found["task"], found["names"]["model"], found["steps"]) == ("shorter", "narrow", 3)


@pytest.mark.parametrize(
    ("points", "files", "said"),
    [
        ("gone = own", {}, "its entry point names pe/gone.yaml, and "),
        ("gone = nowhere", {}, "names nowhere, which is not a package"),
        ("gone = nowhere.inside", {}, "No module named 'nowhere'"),
        ("mine = own", {"pe__mine": "a: [1"}, "mine.yaml is no yaml"),
        (
            "rope = own",
            {"pe__rope": YAML.format("own")},
            "pe/rope.yaml of pe-lab has the same name",
        ),
        ("one_decay = own", {"pe__one_decay": YAML.format("own")}, "has pe/one_decay.yaml, too"),
    ],
)
def test_a_broken_package_is_one_sentence_and_stops_nothing(
    points: str,
    files: dict[str, str],
    said: str,
    here: Here,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    install(tmp_path / "site", "own", f"[pe_lab.encodings]\n{points}\n", **files)
    decay(tmp_path / "site", "one")
    with caplog.at_level(logging.WARNING, "pe_lab"):
        shown = succeeded(here("list", "pe"))
    (warning,) = caplog.messages
    assert_has(warning, "the installed package own is left out: ", said)
    assert_has(shown.out, "pe=one_decay", "pe=rope")
    name = points.partition(" ")[0]
    if name in ("gone", "mine"):
        assert_refused(here(f"pe={name}"), f"unknown encoding pe={name}")


def test_a_class_with_a_fault_concerns_its_own_runs_only(here: Here, tmp_path: Path) -> None:
    decay(tmp_path / "site", "own")
    (tmp_path / "site" / "own" / "__init__.py").write_text("raise OSError('no such device')")
    assert_has(succeeded(here("list", "pe")).out, "pe=own_decay", "cannot be imported", "pe=rope")
    assert_refused(here("pe=own_decay"), "own.Decay fails at", "no such device")


@pytest.mark.extended
def test_it_is_found_by_a_new_process(tmp_path: Path) -> None:
    decay(tmp_path / "site", "own")
    line = [sys.executable, "-m", "pe_lab", "list", "pe"]
    env = {"PYTHONPATH": str(tmp_path / "site"), "PATH": "/usr/bin:/bin"}
    found = subprocess.run(line, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert "pe=own_decay" in found.stdout
