"""``train.from``: a run begins with another run's weights."""

import json
from pathlib import Path

import pytest
import torch
from program import Here, assert_has, assert_refused, succeeded, summary, tiny

from pe_lab.cli.main import main
from pe_lab.experiment.load_run import load
from pe_lab.store import checkpoint
from pe_lab.train.trainer import Trainer

SHORT = ("train.steps=4", "eval.sequences=8", "train.checkpoint_every=2")


def only(folder: Path, name: str) -> Path:
    (file,) = folder.glob(f"runs/{name}-*/summary.json")
    return file.parent


@pytest.fixture
def rope(here: Here, tmp_path: Path) -> Path:
    succeeded(here(*tiny("pe=rope", *SHORT)))
    return only(tmp_path, "flipflop/rope/seed0")


def test_the_first_step_is_from_the_weights_of_the_other_run(
    rope: Path, here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    step = Trainer.train_step

    def spied(trainer: Trainer) -> None:
        seen.append({k: v.clone() for k, v in trainer.model.state_dict().items()})
        step(trainer)

    monkeypatch.setattr(Trainer, "train_step", spied)
    said = succeeded(here(*tiny("pe=none", "train.from=flipflop/rope", *SHORT)))
    weights = checkpoint.load(rope / "checkpoint.pt")["model"]
    assert seen[0].keys() == weights.keys()
    assert all(torch.equal(seen[0][name], weights[name]) for name in weights)
    assert_has(said.out, f"begins with 16 of 16 tensors of flipflop/rope/{rope.name}")
    child = only(tmp_path, "flipflop/none/seed0")
    digest = summary_of(rope)["digests"]["checkpoint.pt"]
    recorded = summary_of(child)
    (parent,) = recorded["lineage"]
    assert parent == {"run": recorded["config"]["train"]["from"], "checkpoint": digest}
    # Of the third run both are ancestors.
    third = tiny("pe=alibi", f"train.from={child}", *SHORT)
    succeeded(here(*third))
    lineage = summary_of(only(tmp_path, "flipflop/alibi/seed0"))["lineage"]
    assert [one["run"].partition("@")[0] for one in lineage] == [
        f"flipflop/rope/{rope.name}",
        f"flipflop/none/{child.name}",
    ]
    assert load(child).plan.origin is not None


def test_two_tensors_do_not_become_one(rope: Path, here: Here) -> None:
    tied = tiny("pe=none", *SHORT, "train.from=flipflop/rope", "model.tied_embeddings=true")
    assert_refused(here(*tied), "this model has no place for tokens.weight")
    succeeded(here(*tiny("pe=kerple", "pe.share_layers=false", "model.n_layers=2", *SHORT)))
    both = ["train.from=flipflop/kerple", "pe.share_layers=true", "model.n_layers=2"]
    assert_refused(here(*tiny("pe=kerple", *SHORT, *both)), "this model has no place for")


def summary_of(folder: Path) -> dict[str, object]:
    return json.loads((folder / "summary.json").read_text())


def test_it_is_part_of_the_identity_by_the_run_and_not_by_its_path(
    rope: Path, here: Here, tmp_path: Path
) -> None:
    words = tiny("pe=none", *SHORT)
    succeeded(here(*words))
    alone = only(tmp_path, "flipflop/none/seed0")
    succeeded(here(*words, f"train.from={rope}"))
    both = {path.parent for path in tmp_path.glob("runs/flipflop/none/*/summary.json")}
    assert len(both) == 2
    (child,) = both - {alone}
    assert summary(child)["metrics"] != summary(alone)["metrics"]
    # By another word for it, the same run; and the key that is null changes no identity.
    assert "is finished already" in here(*words, "train.from=flipflop/rope/seed0").out
    assert "is finished already" in here(*words).out
    assert "is finished already" in here(*words, "train.from=null").out
    assert "from" not in summary(alone)["config"]["train"]


def test_a_resumed_run_has_the_same_numbers(
    rope: Path, here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = tiny("pe=cope", "model.dropout=0.2", f"train.from={rope}", *SHORT)
    succeeded(here(*words))
    child = only(tmp_path, "flipflop/cope/seed0")
    whole = summary(child)

    def killed(trainer: Trainer) -> None:
        if trainer.step == 3:
            raise KeyboardInterrupt
        step(trainer)

    step = Trainer.train_step
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", killed)
        assert main([*words, "force=true"]) != 0
    assert not (child / "summary.json").exists()
    # The weights of the other run are in the checkpoint already.
    succeeded(here(*words))
    assert "resuming from step 2" in (child / "log.txt").read_text()
    again = summary(child)
    assert again["metrics"] == whole["metrics"]
    assert again["lineage"] == whole["lineage"]


def test_parameters_of_another_encoding_are_new(here: Here, tmp_path: Path) -> None:
    succeeded(here(*tiny("pe=learned", "pe.max_len=64", *SHORT)))
    same = here(*tiny("pe=learned", "pe.max_len=64", "train.from=flipflop/learned", *SHORT))
    assert_has(succeeded(same).out, "begins with 17 of 17 tensors")
    longer = tiny("pe=learned", "pe.max_len=80", "train.from=flipflop/learned/seed0-*", *SHORT)
    found = succeeded(here(*longer)).out
    assert_has(found, "begins with 16 of 17 tensors", "; new: ")
    other = tiny("pe=fire", "train.from=flipflop/learned/seed0", *SHORT)
    assert_has(succeeded(here(*other)).out, "begins with 16 of", "; new: ")


@pytest.mark.parametrize("word", ["model.d_model=32", "train.from=gone", "task=copy"])
def test_bad_input_is_one_sentence(word: str, rope: Path, here: Here, tmp_path: Path) -> None:
    origin = [] if "from" in word else [f"train.from={rope}"]
    assert_refused(here(*tiny("pe=none", word, *origin, *SHORT)))
    assert len([*tmp_path.glob("runs/*/*/seed0-*/status.json")]) == 1


def test_an_unfinished_run_is_refused(rope: Path, here: Here) -> None:
    (rope / "summary.json").unlink()
    assert_refused(here(*tiny("pe=none", f"train.from={rope}")), "names 0 finished runs")
