"""Suites (conf/suite/) are frozen: their tasks compose to what results were made with."""

from pathlib import Path
from typing import Any

import pytest
from program import Here, assert_refused
from suites import tiny_suite

from pe_lab.cli.train import checked_jobs
from pe_lab.common.errors import UsageError
from pe_lab.config.choices import choices
from pe_lab.config.schema import plain
from pe_lab.core.test_time import TEST_TIME
from pe_lab.results.suite import DEFAULT_THRESHOLD, load_suite, task_digest, threshold
from pe_lab.training.plan import build_task

SUITE = load_suite("v1")
DIGEST = "b49ebffb"


def composed(task: str, entry: str, *words: str) -> dict[str, Any]:
    """As recorded; ``words`` replace those of the suite with the same key."""
    keys = {word.partition("=")[0] for word in words}
    of_suite = (*SUITE.common, *SUITE.tasks[task].words, *SUITE.words(entry))
    kept = [word for word in of_suite if word.partition("=")[0] not in keys]
    (job,) = checked_jobs([*kept, *words])
    return plain(job)


def test_v1_is_frozen() -> None:
    """A change of the file is another suite: its shipped results would not be of it."""
    assert SUITE.digest == "38c43db3"


@pytest.mark.parametrize("task", SUITE.tasks)
def test_a_task_composes_to_what_it_was(task: str) -> None:
    config = composed(task, "none")
    contents = build_task(config["task"]).contents()
    assert task_digest(config, contents) == SUITE.tasks[task].digest


def test_entry_rate_seed_and_steps_are_not_of_the_task() -> None:
    of_rope = composed("flipflop", "rope", "train.lr=0.001", "seed=7")
    of_rope["train"]["steps"] *= 2
    assert SUITE.task_of(of_rope) == "flipflop"
    assert SUITE.task_of(composed("flipflop", "lstm")) == "flipflop"
    assert SUITE.task_of(composed("flipflop", "none", "positions=offset")) == "flipflop"


@pytest.mark.parametrize(
    "word", ["task.length=32", "train.batch_size=16", "train.clip=null", "eval.sequences=10"]
)
def test_other_tasks_training_and_measuring_are_of_no_task(word: str) -> None:
    assert SUITE.task_of(composed("flipflop", "none", word)) is None


def test_every_encoding_that_trains_is_an_entry() -> None:
    # `combined` is made of others.
    assert set(SUITE.encodings) == set(choices("pe")) - TEST_TIME - {"combined"}
    assert set(SUITE.protocol.more_seeds_for) <= set(SUITE.encodings)
    assert not set(range(SUITE.protocol.more_seeds)) & set(SUITE.protocol.tuning_seeds)


def test_splits_are_those_of_the_task() -> None:
    for name, task in SUITE.tasks.items():
        splits = composed(name, "none")["task"]["splits"]
        assert set(task.generalises) <= set(splits), name


def test_thresholds() -> None:
    assert threshold("flipflop", "in_domain") == 0.01
    assert threshold("flipflop", "sparse_x4") == 0.02
    assert threshold("flipflop", "mine") == threshold("mine", "long_x2") == DEFAULT_THRESHOLD
    assert SUITE.tasks["text"].threshold("repeated_x2") is None


def test_an_unknown_suite() -> None:
    with pytest.raises(UsageError, match="unknown suite v0: choose from v1"):
        load_suite("v0")


def test_a_suite_of_the_users(here: Here, tmp_path: Path) -> None:
    """A threshold may be 1."""
    line = ["leaderboard", *tiny_suite(tmp_path, generalises={"sparse": 1.0})[2:4], "suite=tiny"]
    assert here(*line).status == 0
    assert_refused(
        here(*line, "thresholds=2"), "thresholds=2 takes that of flipflop, sparse", "to 2"
    )


@pytest.mark.parametrize(
    ("digest", "read"), [("12345678", "12345678"), ("01234567", "342391"), ("1.5e+3", "1500.0")]
)
def test_a_digest_without_quotes(here: Here, tmp_path: Path, digest: str, read: str) -> None:
    """YAML reads one of digits alone as a number, from which not every digest can be recovered."""
    path = tmp_path / "mine" / "suite" / "tiny.yaml"
    line = ["leaderboard", *tiny_suite(tmp_path, digest="QUOTED")[2:4]]
    text = path.read_text()
    # Each has its own name, as a suite is read once in a process.
    for name, written in {"bare": digest, "quoted": f"'{digest}'", "list": "[a]"}.items():
        path.with_name(f"{name}.yaml").write_text(text.replace("QUOTED", written))
    ended = here(*line, "suite=bare")
    assert_refused(ended, "bare.yaml: tasks.flipflop.digest: ", f"reads this one as {read}: write")
    assert here(*line, "suite=quoted").status == 0
    ended = here(*line, "suite=list")
    assert_refused(ended, "tasks.flipflop.digest: ")
    assert "write it in quotes" not in ended.err


def test_the_shipped_runs_of_fope_are_those_that_v1_composes(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are older than ``pe.fourier_norm``, whose default is another one."""
    words = ["suite", "v1", "tasks=majority", "pe=fope", "dry=true"]
    assert "nothing is missing" in here(*words).out
    monkeypatch.setattr("pe_lab.results.suite.PINNED", {})
    assert "nothing is missing" not in here(*words).out
