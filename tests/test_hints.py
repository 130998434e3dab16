"""An unknown word is answered with what its user most likely meant (issue 15, part 2)."""

import re
from pathlib import Path

import pytest
from made import errors_of
from program import Here, tiny

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
    # Commands that also take the keys of a run.
    "show sequnces=2": "did you mean sequences? (choices: sequences, splits; of a run: debug, ",
    "show spits=sparse": "did you mean splits?",
    "show steps=3": "did you mean train.steps? (choices: sequences, splits; of a run: debug, ",
    "data spilt=train to=x.jsonl": "did you mean split? (choices: n, split, to; of a run: debug, ",
    "data xyz=3 to=x.jsonl": "choose from n, split, to; of a run: debug, ",
    "train.schedule=cosin": "did you mean cosine? (choices: constant, cosine, linear)",
    "list encoding": "did you mean pe?",
    # Names of the field or of other commands.
    "encoding=cope": "did you mean pe?",
    "task=copy layers=3": "did you mean model.n_layers?",
    "model.layers=2": "set it to a mapping: {KEY: VALUE}, or give model.n_layers=2",
    "compare to=x.csv": "leave to out, and give format=csv > x.csv",
    # Of one run and of a sweep alike, the name of a launcher comes first.
    "hydra/launcher=slrum": "did you mean slurm?",
    "-m hydra/launcher=slrum": "did you mean slurm?",
    "hydra/launcher=joblib": "has no effect on one run: add -m",
    "hydra/launchr=joblib": "did you mean hydra/launcher?",
    # Another task than the default is shown only where it is named.
    "show pe=cope": "show needs a task: give task=NAME",
    "data to=x.jsonl": "data needs a task: give task=NAME",
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


def test_a_long_list_of_choices_is_cut_and_says_how_to_see_all(here: Here) -> None:
    """A mistyped key of ``where`` named up to sixty."""
    errors_of("rope", [0.1])
    assert "did you mean pe?" in here("results", "where=encoding=rope").err
    ended = here("results", "where=train.stpes>3")
    assert (ended.status, ended.err.count("\n")) == (2, 1)
    assert "did you mean train.steps? (choices: " in ended.err
    assert ended.err.count(",") < 10
    assert ended.err.endswith("; pe-lab --cfg job lists all\n")


def test_one_of_a_kind_is_singular(here: Here) -> None:
    errors_of("rope", [0.1])
    for words in (["runs"], ["verify", "format=csv"], ["report", "inspect=none"]):
        ended = here(*words)
        assert not re.search(r"\b1 (runs|jobs)\b", ended.out + ended.err), words
    assert not re.search(r"\b1\s+runs\b", Path("runs/report/index.html").read_text())
    for _ in range(2):
        ended = here("-m", *tiny("train.steps=1", "train.warmup=0"))
        assert not re.search(r"\b1 (runs|jobs)\b", ended.out + ended.err)


def test_a_run_that_is_found_finished_is_not_said_to_be_written(here: Here) -> None:
    words = tiny("train.steps=1", "train.warmup=0")
    first, again, forced = here(*words), here(*words), here(*words, "force=true")
    assert "written to  runs/" in first.out
    assert "found in    runs/" in again.out
    assert "written to" not in again.out
    assert "written to  runs/" in forced.out
