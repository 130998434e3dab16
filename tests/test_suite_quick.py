"""``pe-lab suite quick``: what it fixes, and what it ends with."""

from pathlib import Path

import polars as pl
import pytest
from program import Here, succeeded
from suites import tiny_suite

from pe_lab.cli.train import checked_jobs
from pe_lab.config.schema import plain
from pe_lab.results.leaderboard.scores import Scores
from pe_lab.results.presentation.closing import closing_sentence, closing_table
from pe_lab.results.suite import load_suite, task_digest
from pe_lab.train.plan import build_task

QUICK = load_suite("quick")
SPLITS = {"majority": ("long_x2", "long_x3"), "recall": ("long_x2", "long_x4", "more_pairs")}


@pytest.mark.parametrize("suite", ["quick", "v2"])
def test_tasks_compose_to_what_they_were(suite: str) -> None:
    of = load_suite(suite)
    for name, task in of.tasks.items():
        (job,) = checked_jobs([*of.run_words(name, "none")])
        config = plain(job)
        assert task_digest(config, build_task(config["task"]).contents()) == task.digest, name
        assert set(task.generalises) <= set(config["task"]["splits"])


def test_v2_is_frozen() -> None:
    """A change of the file is another suite: its results would not be of it."""
    assert load_suite("v2").digest == "2a77e5da"


def test_its_runs_are_of_no_other_suite() -> None:
    """Else tuning runs of v1 and v2 would be named after it."""
    others = {task.digest for name in ("v1", "v2") for task in load_suite(name).tasks.values()}
    assert not others & {task.digest for task in QUICK.tasks.values()}


def found(errors: dict[tuple[str, str], list[float]]) -> Scores:
    """Scores of these entries and tasks, with an error on every split of each seed."""
    rows = [
        {
            "entry": entry,
            "task": task,
            "run_id": f"{entry}-{task}-{seed}",
            "split": split,
            # The last split decides.
            "error": error if split == SPLITS[task][-1] else 0.0,
            "threshold": 0.05,
            "counts": seed < 90,
        }
        for (entry, task), of in errors.items()
        for seed, error in enumerate(of)
        for split in ("in_domain", *SPLITS[task])
    ]
    return Scores(QUICK, pl.DataFrame(rows), pl.DataFrame())


SOME = found(
    {
        ("mine", "majority"): [0.0, 0.05, 0.06],
        ("mine+conv", "majority"): [0.1] * 3,
        ("mine+conv", "recall"): [0.0],
        ("rope", "majority"): [0.9, 0.9],
        ("fox", "majority"): [0.0, 0.0],
        ("fox+conv", "recall"): [1.0],
    }
)


def test_the_table_counts_seeds_that_generalise_to_every_split() -> None:
    table = closing_table(SOME, ["mine"])
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}
    at = [table.columns.index(task) - 1 for task in ("majority", "recall")]
    assert [*rows] == ["mine (yours)", "rope", "alibi", "fire", "fox"]
    assert [rows["mine (yours)"][i] for i in at] == ["2/3, 0/3", "-, 1/1"]
    assert [rows["fox"][i] for i in at] == ["2/2, -", "-, 0/1"]


def test_the_sentence_names_yours_and_the_best_of_the_references() -> None:
    assert closing_sentence(SOME, ["mine"]) == (
        "Most seeds generalise, of 4 tasks, alone: mine on 1, fox, the best of the suite's, on 1; "
        "conv: mine on 1, fox, the best of the suite's, on 0."
    )
    assert closing_sentence(found({("rope", "majority"): [0.0]}), []).startswith("Most seeds")


@pytest.mark.extended
def test_an_own_encoding_ends_with_a_sentence_a_table_and_a_picture(
    here: Here, tmp_path: Path
) -> None:
    columns = {"alone": {}, "wide": {"words": ["model.d_model=32"]}}
    line = tiny_suite(tmp_path, more={"closing": True, "columns": columns})
    mine = tmp_path / "mine" / "pe" / "mine.yaml"
    mine.parent.mkdir()
    mine.write_text("_target_: pe_lab.pe.alibi.ALiBi\nlearned: true\n")
    ended = succeeded(here(*line, "pe=mine"))
    assert "Most seeds generalise, of 1 tasks, alone: mine on 0; wide: mine on 0." in ended.out
    assert "mine (yours)" in ended.out
    assert "0/2, 0/2" in ended.out
    assert (tmp_path / "runs" / "suite-tiny.svg").read_text().startswith("<svg")
    assert "Most seeds" not in succeeded(here(*line, "pe=mine", "dry=true")).out
    assert "Most seeds" in succeeded(here(*line, "pe=mine")).out, "the same command again"
