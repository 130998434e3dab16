"""The first screen of ``pe-lab leaderboard`` and its picture, of one and of two columns."""

import re
from collections.abc import Mapping
from dataclasses import replace

import polars as pl
import pytest
from html_page import values
from leaderboard_runs import SUITE, rows, run
from program import Here, csv_rows

from pe_lab.report.html import drawn
from pe_lab.report.leaderboard import heat_map, threshold_chart
from pe_lab.report.tables import NOT_RUN, UNLEARNED
from pe_lab.results.leaderboard.families import (
    entry_order,
    halves,
    most_evidence,
    with_column,
)
from pe_lab.results.leaderboard.scores import Scores, scores
from pe_lab.results.presentation.leaderboard import conclusion
from pe_lab.results.presentation.needs import doubts, headline, needs_table, works
from pe_lab.results.suite_file import Column

SIX = ("rope", "t5", "fire", "cope", "path", "none")
TWO = replace(SUITE, columns={"alone": Column(), "conv": Column(words=("model.conv=3",))})


def found(
    counts: Mapping[str, tuple[int, int]], task: str = "flipflop", two: bool = True
) -> Scores:
    """Of each entry, k of n seeds that generalise to every split; those that do not reach half."""
    n_splits = len(SUITE.tasks[task].generalises)
    ran = [
        run(entry, task, seed, [0.0, *[0.0 if seed < k or n_splits // 2 > at else 0.5
                                       for at in range(n_splits)]])
        for entry, (k, n) in counts.items()
        for seed in range(n)
    ]  # fmt: skip
    return scores(TWO if two else SUITE, rows(*ran), rows())


@pytest.mark.parametrize(
    ("count", "verdict"),
    [((8, 8), True), ((7, 8), True), ((6, 8), None), ((2, 8), None), ((1, 8), False),
     ((4, 5), None), ((5, 5), True), ((0, 5), False), ((0, 3), None), (None, None)],
)  # fmt: skip
def test_what_works_is_by_wilsons_interval(
    count: tuple[int, int] | None, verdict: bool | None
) -> None:
    assert works(count) is verdict


def test_a_row_has_what_works_alone_what_the_second_column_adds_and_what_in_neither() -> None:
    table = needs_table(
        found({
            "path": (20, 20), "path+conv": (8, 8), "fox": (7, 8), "fox+conv": (1, 8),
            "rope": (0, 8), "rope+conv": (8, 8), "alibi": (0, 8), "alibi+conv": (0, 8),
            "t5": (0, 8), "cope": (4, 8), "cope+conv": (4, 8), "lstm": (8, 8), "lstm+conv": (0, 8),
        }),
        ["flipflop", "sort"],
    )  # fmt: skip
    assert table.columns == ["need (task)", "works alone", "more with conv", "neither"]
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["keep last write (flipflop)", "path 20/20, +2",
         "rope 8/8; not lstm 0/8, fox 1/8", "alibi 0/8"],
    ]  # fmt: skip


def test_a_suite_of_one_column_has_what_works_what_partly_and_what_does_not() -> None:
    counts = dict.fromkeys(("t5", "rope", "alibi"), (0, 20)) | {"path": (8, 8), "cope": (4, 8)}
    one = found(counts, two=False)
    table = needs_table(one, ["flipflop"])
    assert table.columns == ["need (task)", "works", "unclear", "does not"]
    (row,) = table.rows
    assert [cell.text for cell in row[1:]] == ["path 8/8", "cope 4/8", "rope 0/20, +2"]
    assert headline(one, ["flipflop"]) == "Works on the most tasks: path (1 of 1 task)."
    assert headline(found({"rope": (0, 8)}), ["flipflop"]) == "No entry works on any task."
    assert headline(one, ["sort"]) == "No run is scored yet."
    alike = found({"path": (8, 8), "rope": (8, 8), "t5": (0, 8)}, two=False)
    assert headline(alike, ["flipflop"]).endswith(": rope and 1 more (1 of 1 task).")
    second = found({"rope": (0, 8), "rope+conv": (8, 8)})
    assert headline(second, ["flipflop"]).endswith(": rope with conv (1 of 1 task).")


def test_a_task_on_which_the_seeds_tell_nothing_has_no_row_beside_others() -> None:
    ran = [run("path", "flipflop", n, [0.0] * 7) for n in range(8)]
    few = [run("path", "sort", n, [0.0] * 3) for n in range(3)]
    table = needs_table(scores(TWO, rows(*ran, *few), rows()), ["flipflop", "sort"])
    assert [row[0].text for row in table.rows] == ["keep last write (flipflop)"]
    alone = needs_table(scores(TWO, rows(*few), rows()), ["sort"])
    assert [[cell.text for cell in row] for row in alone.rows] == [["sort", "-", "-", "-"]]


def test_the_readers_entries_come_first() -> None:
    ran = [
        run(e, "flipflop", n, [0.0] * 7) for e in ("path", "mine", "mine+conv") for n in range(8)
    ]
    yours = rows(*(one for one in ran if one[0]["entry"] != "path"))
    (row,) = needs_table(scores(TWO, rows(*ran[:8]), yours), ["flipflop"]).rows
    assert row[1].text == "mine (yours) 8/8, +1"


def test_the_readers_entries_are_shown_where_their_seeds_do_not_tell() -> None:
    counts = {"path": (8, 8), "cope": (4, 8), "mine": (4, 8), "mine+conv": (3, 8)}
    of = found(counts)
    yours = of.rows.with_columns(shipped=~pl.col("entry").str.starts_with("mine"))
    (row,) = needs_table(replace(of, rows=yours), ["flipflop"]).rows
    assert [cell.text for cell in row[1:]] == [
        "unclear: mine (yours) 4/8; path 8/8", "unclear: mine (yours) 3/8", "-",
    ]  # fmt: skip
    assert needs_table(of, ["flipflop"]).rows[0][1].text == "path 8/8"


def test_sentences_of_doubt() -> None:
    one = found({"path": (8, 8), "rope+conv": (8, 8)})
    said = doubts(one, ["flipflop"])
    assert len(said) == 4, "no rate is tuned, and none ran longer"
    assert "2 layers of width 64" in said[1]
    assert said[2].endswith("in % at half the thresholds: path 100; at twice: path 100.")
    assert said[3] == (
        "On another processor single seeds differ; 16 of 16 runs have their processor recorded."
    )
    assert doubts(one, ["sort"]) == []
    apart = [run("path", "flipflop", 0, [0.0] * 7), run("rope", "sort", 0, [0.0] * 3)]
    assert len(doubts(scores(SUITE, rows(*apart), rows()), ["flipflop", "sort"])) == 3


@pytest.mark.parametrize(
    ("longer", "said"),
    [({"fox": 8, "rope": 0}, "Twice the steps change 0 of 2 results."),
     ({"fox": 3, "rope": 4, "alibi": 8}, "Twice the steps change 2 of 3 results "
      "(rope on flipflop, +1)."),
     (dict.fromkeys(SIX, 8),
      "Twice the steps change 6 of 6 results (rope on flipflop, +5)."),
     ({"fox+conv": 8}, "Twice the steps change 1 of 1 result (fox on flipflop with conv)."),
     ({"fox": 3, "kerple": 8}, "Twice the steps change 1 of 1 result (fox on flipflop)."),
     ],
)  # fmt: skip
def test_the_doubt_about_the_setting_names_what_twice_the_steps_change(
    longer: Mapping[str, int], said: str
) -> None:
    k = dict.fromkeys(SIX, 3) | {"fox": 4, "alibi": 8, "fox+conv": 0}
    ran = [
        run(e, "flipflop", n, [0.0 if n < seeds else 0.5] * 7, phase=phase)
        for phase, counts in (("score", k), ("steps_x2", longer))
        for e, seeds in counts.items()
        for n in range(8)
    ]
    assert doubts(scores(TWO, rows(*ran), rows()), ["flipflop"])[3].endswith(said)


def test_numbers_of_steps_are_compared_over_the_seeds_that_both_have() -> None:
    once = [run("fox", "flipflop", n, [0.0 if n < 3 else 0.5] * 7) for n in range(8)]
    twice = [run("fox", "flipflop", n, [0.0] * 7, phase="steps_x2") for n in range(3)]
    said = doubts(scores(TWO, rows(*once, *twice), rows()), ["flipflop"])
    assert said[3] == "Twice the steps change 0 of 1 result."


def test_only_the_column_that_the_reader_ran_is_theirs() -> None:
    of = found({"wall": (8, 8), "wall+conv": (4, 8), "path": (8, 8), "path+conv": (0, 8)})
    mine = of.rows.with_columns(shipped=pl.col("entry") != "wall+conv")
    (row,) = needs_table(replace(of, rows=mine), ["flipflop"]).rows
    assert [cell.text for cell in row[1:3]] == [
        "path 8/8, wall 8/8", "unclear: wall (yours) 4/8; not path 0/8",
    ]  # fmt: skip


def test_entries_of_all_columns_have_their_place() -> None:
    ran = {"cope+conv": (8, 8), "lstm+conv": (8, 8), "mine+conv": (8, 8), "cope": (8, 8)}
    one = found(ran)
    listed, controls = entry_order(one, ["flipflop"])
    assert listed[-1] == "mine+conv"
    assert listed.index("cope") < listed.index("xpos") < listed.index("cope+conv")
    assert "rope+conv" not in listed, "it is not run"
    assert controls == ["none", "lstm", "lstm+conv"]
    assert halves(TWO, "cope+conv npos=8") == ("cope npos=8", "conv")
    assert halves(SUITE, "cope npos=8") == ("cope npos=8", "alone")
    assert most_evidence(one, ["flipflop"], listed, 1) == {"cope", "cope+conv"}


def test_rows_have_the_column_of_their_entry() -> None:
    one = found({"path": (2, 2), "path+conv": (1, 2)})
    pairs = with_column(one.cells, TWO).select("entry", "column").unique().rows()
    assert {*pairs} == {("path", "alone"), ("path+conv", "conv")}
    assert "column" not in with_column(one.cells, SUITE).columns


def test_the_picture_has_a_part_of_a_cell_for_each_column() -> None:
    shown = values(
        heat_map(found({"path": (8, 8), "path+conv": (0, 8), "rope": (4, 8)}), ["flipflop"])
    )
    parts = {(row["row"].split()[0], row["part"]): row for row in shown}
    of_path = [parts["path", part] for part in ("alone", "conv")]
    assert [(row["share"], row["text"], row["kind"]) for row in of_path] == [
        (1.0, "100", ""), (0.5, "50", ""),
    ]  # fmt: skip
    assert parts["rope", "conv"]["kind"] == NOT_RUN
    assert "path+conv" not in {row["row"] for row in shown}
    own = heat_map(found({"t5 buckets=8": (8, 8), "t5+conv buckets=8": (0, 8)}), ["flipflop"])
    assert [row["text"] for row in values(own) if "=8" in row["row"]] == ["100", "50"]
    own = heat_map(found({"t5+conv buckets=8": (0, 8)}), ["flipflop"])
    assert [row["text"] for row in values(own) if "=8" in row["row"]] == ["", "50"]
    unlearned = scores(TWO, rows(*(run("path", "sort", n, [0.5] * 3) for n in range(4))), rows())
    (grey,) = (row for row in values(heat_map(unlearned, ["sort"])) if row["kind"] == UNLEARNED)
    assert (grey["row"].split()[0], grey["part"], grey["text"]) == ("path", "alone", "0°")


@pytest.mark.parametrize(("two", "width"), [(True, 38), (False, 76)])
def test_a_part_is_drawn_with_its_width(two: bool, width: int) -> None:
    svg = drawn(heat_map(found({"path": (8, 8), "rope": (0, 8)}, two=two), ["flipflop"]), "svg")
    one = r'row: path[^;]*; part: alone[^>]*d="M[^h]*(h[^"]*)" fill="([^"]*)"'
    assert re.findall(one, svg.decode()) == [(f"h{width}v26h-{width}Z", "rgb(8, 48, 107)")]


def test_a_curve_has_the_column_of_its_entry() -> None:
    shown = values(threshold_chart(found({"path": (8, 8), "path+conv": (4, 8)}), ["flipflop"]).spec)
    rates = {(row["entry"], row["part"]): row["rate"] for row in shown if row.get("at") == 2}
    assert rates == {("path", "alone"): 100, ("path", "conv"): 75}


def test_of_equal_entries_the_sentence_names_one_and_counts_the_others() -> None:
    counts = {"fox": (8, 8), "path+conv": (8, 8), "cope": (7, 8), "rope": (0, 8)}
    said = conclusion(found(counts), {"recall": ["flipflop"]})
    assert said == "On recall, fox and 1 more have the highest success rate of all encodings."


def test_the_columns_of_a_control_stand_together() -> None:
    names = ["none", "none+conv", "lstm", "lstm+conv"]
    _, controls = entry_order(found(dict.fromkeys(reversed(names), (1, 1))), ["flipflop"])
    assert controls == names


def test_an_encoding_stands_for_both_columns(here: Here) -> None:
    def shown(pe: str) -> set[str]:
        lines = csv_rows(here("leaderboard", f"pe={pe}", "task=flipflop", "format=csv").out)
        return {line["entry"] for line in lines}

    assert shown("cope") == {"cope", "cope+conv"}
    assert shown("cope+conv,rope") == {"cope+conv", "rope", "rope+conv"}
