"""The success rate by threshold: ``pe-lab leaderboard view=curve``, and its picture."""

from pathlib import Path

import pytest
from html_page import texts, values
from leaderboard_runs import COMMAND, SUITE, rows, run
from program import Here, assert_refused, succeeded

from docs import leaderboard
from pe_lab.report.leaderboard import threshold_chart
from pe_lab.results.leaderboard import file
from pe_lab.results.leaderboard.curve import in_common, order_at, rates_at
from pe_lab.results.leaderboard.scores import Scores, scores

FLIPFLOP = {
    # By seed: the error on each scored split; the stated threshold is 2 %.
    "rope": [0.008, 0.008, 0.5, 0.5],
    "cope": [0.015, 0.015, 0.015, 0.5],
    "lstm": [0.03, 0.03, 0.03, 0.03],
}


def found() -> Scores:
    """Three entries on flipflop; cope alone has another task."""
    runs = [
        run(entry, "flipflop", seed, [0.005, *[error] * 6])
        for entry, errors in FLIPFLOP.items()
        for seed, error in enumerate(errors)
    ]
    runs += [run("cope", "recall", seed, [0.0] * 4) for seed in range(4)]
    return scores(SUITE, rows(*runs), rows())


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "shipped.parquet"
    monkeypatch.setattr(file, "shipped", lambda name: path)
    ran = found().rows
    file.write(ran.select(*rows().columns), path)


@pytest.mark.parametrize(
    ("threshold", "shares"),
    [(0.0025, (0, 0, 0)), (0.01, (0.5, 0, 0)), (0.02, (0.5, 0.75, 0)), (0.03, (0.5, 0.75, 1))],
)
def test_one_threshold_of_all_splits(threshold: float, shares: tuple[float, ...]) -> None:
    rates = rates_at(found(), {"flipflop": ["flipflop"]}, threshold)
    assert tuple(rates[entry]["flipflop"].share for entry in FLIPFLOP) == shares
    # What fits in domain does not depend on it.
    assert not any(rates[entry]["flipflop"].unlearned for entry in FLIPFLOP)


def test_the_order_at_other_thresholds() -> None:
    orders = {
        times: [entry for entry, _ in order_at(found(), ["flipflop"], times)]
        for times in (0.5, 1, 2)
    }
    assert orders == {
        0.5: ["rope", "cope", "lstm"], 1: ["cope", "rope", "lstm"], 2: ["lstm", "cope", "rope"],
    }  # fmt: skip


def test_entries_are_compared_over_the_tasks_that_all_have() -> None:
    two = in_common(found(), ["flipflop", "recall"])
    assert two == (["rope", "cope", "lstm"], ["flipflop"])
    # A task that none has run does not count.
    assert in_common(found(), ["flipflop", "recall", "sort"]) == two
    assert in_common(found(), ["recall", "sort"]) == (["cope"], ["recall"])
    assert in_common(found(), ["sort"]) == ([], [])
    assert order_at(found(), ["sort"], 1) == []


def test_the_table_and_the_picture(here: Here, shipped: None) -> None:
    out = succeeded(here(*COMMAND, "view=curve", "task=flipflop", "format=markdown")).out
    assert "| cope (not tuned) | 0 | 0 | 0 | 75 | 75 | 75 |" in out
    assert "| lstm (not tuned) | 0 | 0 | 0 | 0 | 100 | 100 |" in out
    first = "at half the thresholds: rope 50, cope 0, lstm 0; at twice: lstm 100, cope"
    assert first in out
    assert here(*COMMAND, "view=curve", "to=curve.svg").status == 0
    drawn = Path("curve.svg").read_text("utf-8")
    assert "Success rate by threshold" in drawn
    assert "lstm" in texts(drawn)
    assert here(*COMMAND, "to=page.html").status == 0
    assert "Success rate by threshold" in Path("page.html").read_text("utf-8")
    assert_refused(here(*COMMAND, "view=across", "to=a.svg"), "view= has no effect here")
    assert_refused(here(*COMMAND, "view=curve", "thresholds=2"), "shows success rates")
    assert here(*COMMAND, "view=curve", "task=sort", "to=sort.svg").status == 1


def test_the_chart_has_every_entry_at_every_threshold() -> None:
    drawn = values(threshold_chart(found(), ["flipflop", "recall"]).spec)
    of = {(row["task"], row["entry"], row["at"]): row["rate"] for row in drawn if "rate" in row}
    assert of["flipflop", "cope", 1.4] == 0
    assert of["flipflop", "cope", 2] == 75
    assert of["recall", "cope", 0.25] == 100
    assert ("recall", "rope", 2) not in of
    limits = {row["task"]: row["limit"] for row in drawn if "limit" in row}
    assert limits == {"flipflop": 2, "recall": 5}


def test_the_picture_of_the_page_is_what_the_shipped_file_gives() -> None:
    """Its words: the rest is as the fonts of the machine are."""
    assert texts(leaderboard.CURVE.read_text("utf-8")) == texts(leaderboard.curve())
    assert leaderboard.CURVE.name in leaderboard.page("v2")
