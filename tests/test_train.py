"""What identifies a run, and what is recorded of each start."""

import copy
import json
import time
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from program import Here, the_run, tiny

from pe_lab.config.compose import CommandLine, compose
from pe_lab.config.schema import check
from pe_lab.config.schema import to_dict as dumped
from pe_lab.core.errors import RunError
from pe_lab.store.run_id import EXCLUDED, identity, is_excluded
from pe_lab.train.trainer import Trainer


def resolved(*words: str) -> dict[str, Any]:
    """The configuration that these words make, as the run's identity is taken of it."""
    (cfg,) = compose(CommandLine.parse(tiny(*words)))
    content = OmegaConf.to_container(cfg, resolve=False)
    del content["hydra"]
    return OmegaConf.to_container(OmegaConf.create(content), resolve=True)


def leaves(content: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for key, value in content.items():
        here = (*path, key)
        found += leaves(value, here) if isinstance(value, dict) and value else [here]
    return found


def test_identity_changes_with_every_key_but_the_excluded() -> None:
    content = resolved("pe=cope", "positions=randomized", "train.stop_below=0.1")
    kept = []
    for path in leaves(content):
        changed = copy.deepcopy(content)
        section = changed
        for key in path[:-1]:
            section = section[key]
        section[path[-1]] = "something else"
        if identity(changed) == identity(content):
            kept.append(".".join(path))
    assert all(is_excluded(key) or key == "train.length" for key in kept)
    assert {key for key in kept if not key.startswith("tracker.")} == {
        "runs_dir", "device", "threads", "deterministic", "keep_checkpoint", "force", "debug",
        "train.length", "train.checkpoint_every", "train.log_every", "eval.batch_tokens",
    }  # fmt: skip
    assert set(EXCLUDED) - set(kept) == {"tracker", "names"}
    assert identity(dict(reversed(content.items()))) == identity(content)


def named(*words: str) -> str:
    return identity(dumped(check(resolved(*words), {})))


def test_identity_is_of_values_not_of_spellings() -> None:
    for words, same in [
        (("pe=rope", "pe.base=10000"), ("pe=rope", "pe.base=1e4")),
        (("task.length=64",), ("task.length=64.0",)),
        (("train.stop_below=null", "eval.every=5"), ("train.stop_below=null", "train.patience=99")),
        (("task.splits.sparse.p_ignore=1",), ("task.splits.sparse.p_ignore=1.0",)),
    ]:
        assert named(*words) == named(*same)
    assert named("task.length=64") != named("task.length=32")


def test_a_mapping_on_the_command_line_replaces_the_yamls() -> None:
    made = resolved("task.splits={foo:{length: 8}}", "task.files={train: F, sparse: G}")["task"]
    assert made["splits"] == {"foo": {"length": 8}}
    assert made["files"] == {"train": "F", "sparse": "G"}
    assert resolved("task.splits={}")["task"]["splits"] == {}
    assert resolved("+task.files.train=F")["task"]["files"] == {"train": "F"}


def test_each_start_is_recorded(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = tiny("pe=cope", "train.steps=6", "train.checkpoint_every=3")
    step = Trainer.train_step

    def fails(trained: Trainer) -> None:
        if trained.step == 4:
            raise RunError("as the test says")
        step(trained)

    for number in range(2):
        with monkeypatch.context() as patch:
            if number == 0:
                patch.setattr(Trainer, "train_step", fails)
            assert here(*line).status == (1 if number == 0 else 0)
    recorded = json.loads((the_run(tmp_path / "runs") / "environment.json").read_text())
    times = [start["time"] for start in recorded]
    assert len(times) == 2
    assert sorted(times) == times
    assert 0 <= time.time() - times[0] < 3600
