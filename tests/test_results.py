"""``pe-lab results``: groups of runs, which of them is best, and the table that is printed."""

import json
import shutil
from pathlib import Path

import polars as pl
import pytest
from made import edit_summary, errors_of, made, unfinished
from program import Here, assert_has, assert_refused, csv_rows, succeeded

from pe_lab.core.errors import UsageError
from pe_lab.core.metrics import METRICS, Metric, wilson
from pe_lab.results.groups import grouped
from pe_lab.results.table import read_runs
from pe_lab.store.run_folder import RunFolder


def table(here: Here, *words: str) -> dict[str, dict[str, str]]:
    """The rows of the first table, by their first cells."""
    out = succeeded(here("results", "format=markdown", *words)).out.replace("\\", "")
    lines = out.split("\n\n")[1].splitlines()
    header, _, *body = ([cell.strip(" *") for cell in line.split("|")[1:-1]] for line in lines)
    return {row[0]: dict(zip(header, row, strict=True)) for row in body}


def best(rows: dict[str, list[float]], by_rate: bool) -> set[str]:
    """The encodings that are marked, of these with their errors by seed."""
    for pe, values in rows.items():
        errors_of(pe, values)
    runs = grouped(read_runs(), splits=["sparse"], by_rate=by_rate)
    return set(runs.filter("best")["pe"])


def seeds(k: int, n: int) -> list[float]:
    """Errors of n seeds, of which k are up to 2 %, the threshold of flipflop's splits."""
    return [0.0] * k + [0.5] * (n - k)


@pytest.mark.parametrize(
    ("rows", "marked"),
    [
        # 95 % Wilson intervals in %: 7/8 53..98, 3/8 14..69, 2/8 7..59, 1/8 2..47, 0/8 0..32.
        ({"a": seeds(7, 8), "b": seeds(1, 8)}, {"a"}),
        ({"a": seeds(7, 8), "b": seeds(2, 8)}, set()),
        ({"a": seeds(7, 8), "b": seeds(1, 8), "c": seeds(3, 8)}, set()),
        # Three seeds show nothing: 3/3 44..100, 0/3 0..56; four do: 4/4 51..100, 0/4 0..49.
        ({"a": [0.0, 0.0, 0.0], "b": [0.5, 0.51, 0.52]}, set()),
        ({"a": seeds(4, 4), "b": seeds(0, 4)}, {"a"}),
        # Ties are marked together, whatever their seeds; only ties, or one row alone, never.
        ({"a": seeds(8, 8), "b": [0.01] * 4 + [0.02] * 4, "c": seeds(0, 8)}, {"a", "b"}),
        ({"a": seeds(8, 8), "b": seeds(2, 2), "c": seeds(2, 8)}, set()),
        ({"a": seeds(8, 8), "b": seeds(8, 8)}, set()),
        ({"a": seeds(8, 8)}, set()),
        # Of 0/n none is the best, however much lower one mean is.
        ({"a": [0.03] * 8, "b": [0.9] * 8}, set()),
        # The rate decides, not the mean: 0.38 of a against 0.03 of b.
        ({"a": [0.0] * 5 + [1.0] * 3, "b": [0.03] * 10}, {"a"}),
        # One seed is never the best, nor what it ties with: 1/1 21..100; 0/1 is 0..79.
        ({"a": seeds(8, 8), "b": [0.0], "c": seeds(0, 8)}, set()),
        ({"a": seeds(30, 30), "b": [0.5]}, {"a"}),
    ],
)
def test_the_best_rate_is_marked_where_wilsons_interval_allows(
    here: Here, rows: dict[str, list[float]], marked: set[str]
) -> None:
    assert best(rows, by_rate=True) == marked


@pytest.mark.parametrize(
    ("rows", "marked"),
    [
        # Four values lie on one side of four others by chance in 2 of 70 cases, three in 2 of 20.
        ({"a": [0.09, 0.1, 0.11, 0.1], "b": [0.12, 0.2, 0.9, 0.2]}, {"a"}),
        ({"a": [0.09, 0.1, 0.11], "b": [0.19, 0.2, 0.21]}, set()),
        ({"a": [0.09, 0.1, 0.11], "b": [0.19, 0.2, 0.21, 0.2, 0.2]}, {"a"}),
        ({"a": [0.09, 0.1, 0.11, 0.1], "b": [0.11, 0.2, 0.9, 0.2]}, set()),
        ({"a": [0.1] * 8, "b": [0.2]}, set()),
        ({"a": [0.1] * 8}, set()),
        ({"a": [0] * 4, "b": [0] * 4, "c": [0.5, 0.51, 0.5, 0.5]}, {"a", "b"}),
        ({"a": [0] * 4, "b": [0] * 4}, set()),
        # Equal means, 0.2, of seeds that differ: not the same result.
        ({"a": [0.19, 0.21] * 2, "b": [0.2] * 4, "c": [0.9] * 4}, set()),
    ],
)
def test_the_best_mean_is_marked_where_all_its_seeds_are_lower(
    here: Here, rows: dict[str, list[float]], marked: set[str]
) -> None:
    assert best(rows, by_rate=False) == marked


def test_best_is_among_settings_measured_on_the_same_data(here: Here) -> None:
    errors_of("a", seeds(4, 4))
    errors_of("b", seeds(0, 4), **{"task.length": 128})
    assert not grouped(read_runs(), splits=["sparse"])["best"].any()
    errors_of("b", seeds(0, 4))
    assert grouped(read_runs(), splits=["sparse"]).filter("best")["pe"].to_list() == ["a"]


def test_the_mark_of_the_best_and_its_note(here: Here) -> None:
    errors_of("some_pe", [0.1] * 4)
    errors_of("other", [0.5, 0.51, 0.5, 0.51])
    words = ("results", "splits=sparse", "spread=sd")
    assert r"| some\_pe | 4 | **10.0 ± 0.0** |" in here(*words, "format=markdown").out
    rows = csv_rows(here(*words, "format=csv").out)
    assert {row["pe"]: row["best"] for row in rows} == {"some_pe": "true", "other": "false"}


def test_a_row_of_several_settings_is_reported(here: Here) -> None:
    for steps in (400, 800):
        errors_of("a", [0.1, 0.3], **{"train.steps": steps})
        errors_of("b", [0.2, 0.4], **{"train.steps": steps, "pe.npos": steps})
    row = grouped(read_runs(), ["pe"], splits=["sparse"]).row(0, named=True)
    assert (row["n"], row["seeds"], row["settings"]) == (4, [0, 1], 2)
    assert row["mean"] == pytest.approx(0.2)


def test_tasks_are_never_pooled(here: Here) -> None:
    errors_of("a", [0.1, 0.2])
    made("a", task="counting", errors={"in_domain": 0.0, "sparse": 0.55, "longer": 0.3})
    rows = grouped(read_runs(), ["pe"], splits=["sparse"]).select("task", "mean").rows()
    assert dict(rows) == pytest.approx({"flipflop": 0.15, "counting": 0.55})
    assert list(table(here, "sort=longer")) == ["a"], "a split that flipflop lacks"


def test_runs_that_are_not_finished_are_named(here: Here) -> None:
    folder = RunFolder(Path("runs/flipflop/rope/seed0-01234567"))
    folder.make()
    folder.set_status("running", 3, 9)
    with folder.lock():
        assert f"{folder.path}  running at step 3 of 9" in here("results").out
    assert f"{folder.path}  killed at step 3 of 9" in here("results").out
    assert_refused(here("why", f"run={folder.path}"), "is not a finished run (killed)")
    Path("empty").mkdir()
    assert_refused(here("why", "run=empty"), "empty is not a finished run (no run)")
    shutil.rmtree("runs")
    errors_of("a", [0.1, 0.2])
    errors_of("a", [0.3, 0.4], **{"train.steps": 9})
    unfinished("failed", "b")
    content = json.loads(here("results", "format=json", "by=pe").out)
    assert content["unfinished"][0]["message"] == "what went wrong"
    assert {row["split"] for row in content["rows"]} == {"ood", "in_domain", "sparse"}


def test_splits_metric_sort_and_spread(here: Here) -> None:
    for pe, value in (("a", 0.2), ("b", 0.1), ("c", 0.3)):
        made(pe, errors={"in_domain": 0.05, "sparse": value, "seeds": None if pe == "a" else value})
    assert table(here)["a"]["seeds"] == "n/a"
    # A split may have the name of another column.
    # By the mean over seeds and sparse; a could not measure both.
    assert [row["OOD mean"] for row in table(here).values()] == ["10.0", "30.0", "n/a"]
    for words, order in {
        "": "bca", "sort=-ood": "cba", "sort=sparse": "bac", "sort=-sparse": "cab",
        "sort=seeds": "bca", "sort=-seeds": "cba", "sort=-pe": "cba",
        "lr=3E-3": "bca", "pe=a splits=seeds": "a",
    }.items():  # fmt: skip
        assert list(table(here, *words.split())) == [*order]
    assert [table(here, f"metric={name}")["a"]["sparse"] for name in ("loss", "error_seq")] == [
        "0.500",
        "40.0",
    ]
    made("a", 1, errors={"in_domain": 0.05, "sparse": 0.4, "seeds": None})
    assert table(here, "spread=sd")["a"]["sparse"] == "30.0 ± 14.1"


def test_the_highest_rates_come_first_then_the_lowest_means(here: Here) -> None:
    """The rate is the mean over the splits out of domain, the mean breaks a tie; one seed has a
    rate, too, and last is what lacks one of its splits."""
    # Of sparse and dense: 2/2 and 1/2, 1/2 and 2/2, 0/2 twice, 1/2 twice.
    runs = {
        "late": ([0.0, 0.0], [0.0, 1.0]),
        "early": ([0.0, 0.4], [0.0, 0.0]),
        "low": ([0.03, 0.03], [0.03, 0.03]),
        "half": ([0.0, 0.04], [0.04, 0.0]),
        "one": ([0.0], [0.04]),
        "short": ([0.0, 0.0], [None, None]),
    }
    for pe, (sparse, dense) in runs.items():
        for seed, pair in enumerate(zip(sparse, dense, strict=True)):
            inside = 0.0 if pe == "low" else 0.5
            made(pe, seed, errors={"in_domain": inside, "sparse": pair[0], "dense": pair[1]})
    rows = table(here)
    assert list(rows) == ["early", "late", "half", "one", "low", "short"]
    assert list(rows["low"]) == ["encoding", "n", "in_domain", "sparse", "dense", "OOD mean"]
    assert list(table(here, "sort=ood")) == ["half", "one", "low", "early", "late", "short"]


def test_rates_and_medians(here: Here) -> None:
    """Thresholds of flipflop: 1 % in domain, 2 % of the splits."""
    for seed, error in enumerate([0.0, 0.01, 0.03, 0.04]):
        made("a", seed, errors={"in_domain": error, "sparse": error})
    for seed, error in enumerate([0.0, 0.36, 0.0]):
        made("b", seed, errors={"in_domain": 0.0, "sparse": error})
    made("c", 0, errors={"in_domain": 0.5, "sparse": 0.5})
    rows = table(here)
    assert (rows["a"]["in_domain"], rows["a"]["sparse"]) == ("2/4 2.00",) * 2
    assert (rows["b"]["in_domain"], rows["b"]["sparse"]) == ("3/3 0.0", "2/3 0.0")
    assert (rows["b"]["OOD mean"], rows["c"]["sparse"]) == ("12.0 ± 20.8", "50.0")
    assert table(here, "threshold=0.4")["b"]["sparse"] == "3/3 0.0"
    content = json.loads(here("results", "format=json", "pe=b").out)["rows"]
    row = next(row for row in content if row["split"] == "sparse")
    names = ("k", "n", "median", "threshold", "values", "best")
    assert [row[name] for name in names] == [2, 3, 0.0, 0.02, [0.0, 0.0, 0.36], False]
    assert (row["p_generalises"], row["p_low"], row["p_high"]) == (2 / 3, *wilson(2, 3))
    assert (content[-1]["split"], content[-1]["k"]) == ("ood", None)
    loss = json.loads(here("results", "format=json", "metric=loss", "splits=sparse").out)["rows"]
    assert [loss[0][name] for name in ("k", "p_generalises", "threshold")] == [None] * 3


def test_a_loss_that_is_not_finite_and_one_that_was_not_measured(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run from before there was a metric lacks it; one whose loss overflowed has null."""
    mine = Metric("mine", float, "nats", column="mine", lower_is_better=True, may_overflow=True)
    monkeypatch.setattr("pe_lab.results.groups.METRICS", (*METRICS, mine))
    made("old")
    for seed, value in enumerate((0.5, None)):
        run = made("new", seed, **{"task.length": 64 + seed})
        edit_summary(
            run.path,
            lambda s, value=value: s["metrics"].update(
                {"in_domain/mine": 0.5, "ood/sparse/mine": value}
            ),
        )
    groups = grouped(read_runs(), ["pe", "task.length"], "mine", ["sparse"])
    counts = groups.select("pe", "n", "not_finite").sort("pe", "n").rows()
    assert counts == [("new", 0, 1), ("new", 1, 0), ("old", 0, 0)]
    assert groups.filter(pl.col("not_finite") > 0)["mean"].to_list() == [None]
    assert_has(here("results", "metric=mine", "by=pe,length").out, "not finite", "n/a")


def test_nothing_to_show(here: Here) -> None:
    Path("runs").mkdir()
    assert "no runs in runs: " in succeeded(here("results")).out
    with pytest.raises(UsageError, match="nothing to group"):
        grouped(read_runs())
    unfinished("failed", "b")
    done = succeeded(here("results", "format=csv"))
    assert (done.out.strip(), "what went wrong" in done.err) == ("", True)
