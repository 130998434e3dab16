"""What a command line becomes: jobs composed once, planned once, built once."""

from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from program import Here, checked_jobs, tiny
from trainers import planned

import pe_lab
from pe_lab.config.compose import CommandLine, Composer, compose, composing, to_hydra
from pe_lab.core import validation
from pe_lab.core.config_dir import choices
from pe_lab.core.options import CommaSeparated, Line, call
from pe_lab.pe.base import PositionalEncoding
from pe_lab.train import plan as planning

LINES = {
    "files and values": ["task=flipflop,brackets", "pe=cope,rope", "seed=0,1", "train.lr=1e-3"],
    "a mapping, a list, a launcher": [
        "pe=combined", "pe.parts=[cope,rope]", "seed=0,1", "task.splits={foo:{length: 8}}",
        "seed.init=3", "model.layers.1.window=8",
        "hydra/launcher=joblib", "hydra.launcher.n_jobs=3",
    ],
    "a recipe": ["experiment=small/flipflop_yang", "pe=rope"],
}  # fmt: skip


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_jobs_that_share_their_files_are_as_hydra_composes_them(line: list[str]) -> None:
    """A worker of a sweep has Hydra compose them."""
    jobs = compose(CommandLine.parse(["-m", *line]))
    assert len(jobs) in (2, 3, 8)
    for cfg in jobs:
        words = list(cfg.hydra.overrides.task)
        with composing(None) as composer:
            composed = composer.compose(to_hydra(words))
        with_hydra = OmegaConf.to_container(composed, resolve=False)
        ours = OmegaConf.to_container(cfg, resolve=False)
        assert {**ours, "hydra": 0} == {**with_hydra, "hydra": 0}
        assert ours["hydra"]["launcher"] == with_hydra["hydra"]["launcher"]


def test_a_run_is_composed_checked_and_built_once(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def count(owner: Any, name: str, known: str) -> None:
        original = getattr(owner, name)

        def call(*words: Any, **options: Any) -> Any:
            calls.append(known)
            return original(*words, **options)

        monkeypatch.setattr(owner, name, call)

    count(Composer, "compose", "composed")
    count(planning, "make_plan", "planned")
    count(planning.Plan, "model", "model")
    count(validation, "find_class", "section checked")
    count(PositionalEncoding, "__init__", "encoding")
    assert here(*tiny("pe=rope", "seed=3", "train.steps=3")).status == 0
    assert {name: calls.count(name) for name in calls} == {
        "composed": 1, "planned": 1, "model": 1,
        # task, pe, positions, model and tracker; one split more for each of the task's.
        "section checked": 5 + 6,
        # Of the only layer.
        "encoding": 1,
    }  # fmt: skip


def test_two_models_of_a_plan_begin_alike_and_share_nothing() -> None:
    plan = planned("pe=tape")
    one, other = plan.model(), plan.model()
    for (name, a), (_, b) in zip(one.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(a, b), name
        assert a.data_ptr() != b.data_ptr(), name


def test_words_and_names_that_every_command_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A split added and removed, split and splits, PE_LAB_CONFIG_DIR, and the Python API by dir."""
    words = ["task=flipflop", "task.splits.long_x8.length=256", "~task.splits.sparse"]
    (config,) = checked_jobs(words)
    assert config.task["splits"]["long_x8"] == {"length": 256}
    assert "sparse" not in config.task["splits"]
    (tmp_path / "pe").mkdir()
    (tmp_path / "pe" / "own.yaml").write_text(choices("pe")["rope"].read_text())
    monkeypatch.setenv("PE_LAB_CONFIG_DIR", str(tmp_path))
    seen = []

    def one(line: Line, *, split: CommaSeparated[str] | None = None) -> None:
        seen.append((line.config_dir, split))

    call("name", one, ["split=b,c"])
    call("name", one, ["splits=b,c"])
    (config,) = checked_jobs(["task=flipflop", "pe=own"])
    assert config.names["pe"] == "own"
    monkeypatch.setenv("PE_LAB_CONFIG_DIR", "")
    call("name", one, [])
    assert seen == [(tmp_path, ["b", "c"])] * 2 + [(None, None)]
    assert {"run", "sweep", "load", "why"} <= {*dir(pe_lab)}
