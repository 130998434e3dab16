"""``pe-lab leaderboard``: its tables, formats, files and pages."""

import re
from pathlib import Path

import pytest
from program import Here, assert_has, assert_refused, csv_rows, succeeded

from docs import leaderboard
from pe_lab.suite.scores import WORST
from pe_lab.suite.tables import count_seeds, describe_best, entries_table, first_table, task_table

SCORES = leaderboard.shipped()


def test_the_first_table_counts_what_works() -> None:
    table = first_table(SCORES, SCORES.tasks)
    (flipflop,) = table.frame.filter(task="flipflop").iter_rows(named=True)
    assert flipflop["alone"].startswith("3 of 21: ")
    assert flipflop["rope "] == "0/8, 0/8"
    for row in count_seeds(SCORES).filter("works").iter_rows(named=True):
        assert 2 * row["k"] > row["n"], "the interval lies above a half"
    said = "Works on the most tasks, 7 of 12: path_published."
    assert describe_best(SCORES, SCORES.tasks) == said


def test_every_entry_and_split_has_its_count() -> None:
    table = entries_table(SCORES, SCORES.tasks)
    rows = {row["entry"]: row for row in table.frame.iter_rows(named=True)}
    for row in SCORES.success().iter_rows(named=True):
        base, column = SCORES.suite.split(row["entry"])
        if column in ("alone", "conv"):
            assert f"{row['k']}/{row['n']}" in rows[base][row["task"]]
    text = task_table(SCORES, "flipflop", {}).text(200)
    for cell in SCORES.cells.filter(task="flipflop").iter_rows(named=True):
        assert f"{cell['k']}/{cell['n']}" in text


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([], ["Works on the most tasks", "3 of 21: path"]),
        (["pe=cope"], ["cope", "6/8, 8/8"]),
        (["task=flipflop", "pe=cope"], ["cope+conv", "0.024", "8/8 0.0", "generalises"]),
        (["task=flipflop", "view=tuning", "pe=rope"], ["0.012", "34.0"]),
        (["task=counting"], ["no run of this task was diagnosed"]),
        (["claims=true"], ["conv-copy", "7.8e-05", "not enough runs"]),
        (["details=true"], ["5033 runs", "fox 2/3"]),
        (["suite=quick", "view=entries"], ["fire", "5/5"]),
        (["thresholds=0.5", "task=sort"], ["<= 1.00"]),
    ],
)
def test_tables(here: Here, words: list[str], parts: list[str]) -> None:
    assert_has(succeeded(here("leaderboard", *words)).out, *parts)


@pytest.mark.parametrize("form", ["markdown", "latex", "json", "csv"])
def test_formats(here: Here, form: str) -> None:
    out = succeeded(here("leaderboard", "task=recall", "pe=path", f"format={form}")).out
    assert_has(out, "path", "8/8" if form in ("markdown", "latex") else "recall")
    if form == "csv":
        assert {row["entry"] for row in csv_rows(out)} == {"path", "path+conv"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["task=flip"], "did you mean flipflop"),
        (["pe=copee"], "did you mean cope"),
        (["suite=v1"], "unknown suite v1"),
        (["view=tunin"], "did you mean tuning"),
        (["claims=none.yaml"], "there is no none.yaml"),
        (["to=x.txt"], "give FILE.html"),
        (["to=none/x.html"], "in a folder"),
        (["suite=quick", "claims=true"], "there is no"),
    ],
)
def test_what_is_wrong_is_refused(here: Here, words: list[str], said: str) -> None:
    assert_refused(here("leaderboard", *words), said)


def test_the_page_has_every_task_and_entry(here: Here, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    succeeded(here("leaderboard", f"to={path}"))
    page = path.read_text()
    assert_has(page, *(f'id="task-{task}"' for task in SCORES.tasks), "selective_rope", "6/8")
    assert "unseen distances" in page, "verdicts of pe-lab why"


def test_the_page_of_the_documentation_is_what_the_runs_say() -> None:
    assert leaderboard.PAGE.read_text("utf-8") == leaderboard.page(), "run make leaderboard"
    assert not re.search(r"\{\w", leaderboard.PAGE.read_text("utf-8"))


def test_what_the_page_says_without_a_number() -> None:
    """Sentences about all entries, which no braces in the text stand for."""
    success = SCORES.success().with_columns(fits=2 * WORST)
    k = {(row["entry"], row["task"]): row["k"] for row in success.iter_rows(named=True)}
    assert {e for (e, task), n in k.items() if task == "selective_copy" and n > 4} == {
        "alibi", "alibi+conv",
    }  # fmt: skip
    assert not any(n for (_, task), n in k.items() if task == "addition")
    assert {*SCORES.suite.tasks} - {*SCORES.tasks} == {"needle"}
    for entry in ("rope", "rope+conv"):
        assert [k[entry, task] for task in ("copy_unique", "recall", "flipflop")] == [0, 0, 0]
    for entry in ("path", "path+conv"):
        assert [k[entry, task] for task in ("flipflop", "counting")] == [8, 8]
    assert leaderboard.verdicts()["recall", "rope+conv"].verdict.cause == "unseen distances"
    for task, alone, conv in (("copy_unique", 2, 6), ("recall", 5, 8)):
        works = count_seeds(SCORES).filter("works", task=task)
        assert [len(works.filter(column=column)) for column in ("alone", "conv")] == [alone, conv]
