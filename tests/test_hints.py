"""An unknown word is answered with what its user most likely meant (issue 15, part 2)."""

import pytest
from program import Here

HINTS = {
    # Keys of other groups, by their last part, in any case.
    "steps=100": "did you mean train.steps?",
    "lr=0.001": "did you mean train.lr?",
    "+steps=100": "did you mean train.steps?",
    "trian.steps=5": "did you mean train.steps?",
    "trian.stepz=5": "did you mean train.steps?",
    "train.optimizer.betas=[0.9,0.9]": "did you mean train.betas?",
    "train.d_model=64": "did you mean model.d_model?",
    "length=64": "did you mean task.length or train.length?",
    # A task without the key: what its longer splits change.
    "task=copy task.length=8": "did you mean task.min_letters or task.max_letters?",
    "task=counting length=8": "did you mean task.min_ops or task.max_ops or task.max_tokens?",
    "task=copy task.steps=8": "did you mean train.steps?",
    "wandb.mode=online": "did you mean tracker.wandb.mode?",
    "heads=2": "did you mean model.n_heads?",
    "Seed=3": "did you mean seed?",
    "pe=RoPE": "did you mean rope?",
    # Shapes of other programs.
    "train task=copy pe=rope": "training needs none: give pe-lab task=copy pe=rope",
    "sweep seed=0,1": "give pe-lab -m seed=0,1",
    "rope": "did you mean pe=rope?",
    "seed=0 flipflop": "did you mean task=flipflop?",
    "task = flipflop": "write task=NAME without spaces",
    "pe=rope,": "leave the last comma out, pe=rope;",
    "--pe rope": "keys have no dashes (pe=..)",
    "--seed=3": "keys have no dashes (seed=3)",
    "results --format csv": "keys have no dashes, format=csv;",
    "results --format=csv": "keys have no dashes, format=csv;",
    "inspect runs/x": "did you mean run=runs/x?",
    "results .": "did you mean runs_dir=.?",
}


@pytest.mark.parametrize("line", HINTS)
def test_what_was_probably_meant(here: Here, line: str) -> None:
    ended = here(*line.split())
    assert (ended.status, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert HINTS[line] in ended.err


@pytest.mark.parametrize("line", ["steps=1", "heads=1", "xyz=1", "resolution=1"])
def test_no_hint_leads_astray(here: Here, line: str) -> None:
    """A key that only looks alike, such as threads for steps or heads, is not suggested."""
    assert "did you mean threads" not in here(line).err
