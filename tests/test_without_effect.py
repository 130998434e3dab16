"""Settings that change nothing: each is named in one sentence, once."""

from pathlib import Path

import pytest
from program import Here, the_run, tiny

from pe_lab.store.run_folder import run_folders

SHORT = ("train.steps=2", "train.warmup=0")


def said(here: Here, *words: str) -> str:
    ended = here(*words).ok()
    return " ".join(ended.out.split())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train.patience=3"], "train.patience=3 has no effect with train.stop_below=null"),
        (["train.patience=3", "train.stop_below=0.1", "eval.every=1"], None),
        (
            ["train.stop_below=0.1", "eval.every=2"],
            "train.stop_below=0.1 has no effect with eval.every=2: nothing is measured before the "
            "last step, train.steps=2",
        ),
        (["train.warmup=2"], "train.warmup=2 does not end before the last step, train.steps=2"),
        (["pe=cope", "positions=randomized"], "positions=randomized has no effect on pe=cope"),
        (["pe=rope", "positions=randomized"], None),
        ([], None),
    ],
)
def test_a_run_says_which_setting_has_no_effect(
    here: Here, words: list[str], sentence: str | None
) -> None:
    out = said(here, *tiny(*words, *(w for w in SHORT if w.partition("=")[0] not in str(words))))
    if sentence is None:
        assert "no effect" not in out
    else:
        assert out.count(sentence) == 1


def test_a_sweep_says_it_once_for_all_runs(here: Here) -> None:
    line = ["-m", *tiny("train.steps=2", "train.warmup=5", "train.patience=3", "seed=0,1,2")]
    out = said(here, *line)
    assert out.count("the learning rate never reaches train.lr") == 1
    assert out.count("train.patience=3 has no effect") == 1
    assert "never reaches" not in said(here, *line)


def test_a_finished_run_names_the_settings_that_it_ignores(here: Here) -> None:
    line = tiny(*SHORT)
    assert "made with" not in said(here, *line)
    assert "no effect" not in said(here, *line)
    other = tiny(*SHORT, "train.log_every=2", "train.checkpoint_every=9", "eval.every=1")
    assert (
        "is finished already, made with train.log_every=1, train.checkpoint_every=7, eval.every=10,"
        " so train.log_every=2, train.checkpoint_every=9, eval.every=1 have no effect; force=true"
    ) in said(here, *other)
    assert (
        "1 of the finished runs made with train.log_every=1, so train.log_every=2 has no effect"
    ) in said(here, "-m", *tiny(*SHORT, "train.log_every=2", "seed=0,1"))


def test_skipping_long_splits_is_another_run_only_where_one_is_skipped(
    here: Here, tmp_path: Path
) -> None:
    said(here, *tiny(*SHORT))
    first = the_run(tmp_path / "runs")
    assert f"{first.name} is finished already" in said(
        here, *tiny(*SHORT, "eval.skip_too_long=true")
    )
    skipping = [*SHORT, "eval.skip_too_long=true", "pe=learned", "pe.max_len=32"]
    said(here, *tiny(*skipping))
    config = next((tmp_path / "runs/flipflop/learned").glob("*/config.yaml")).read_text()
    assert "skip_too_long: true" in config
    assert len(run_folders(tmp_path / "runs")) == 2
