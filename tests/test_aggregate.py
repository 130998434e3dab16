"""Groups of runs: which rate or mean is marked as the best, and what a group pools."""

import re

import pytest
from made import errors_of, made
from program import Here, assert_has, csv_rows

from pe_lab.results.groups import grouped, pooled
from pe_lab.results.statistics import two_clusters
from pe_lab.results.table import read_runs


def best(rows: dict[str, list[float]], by_rate: bool) -> set[str]:
    """The encodings that are marked, of these with their errors by seed."""
    for pe, values in rows.items():
        errors_of(pe, values)
    runs = grouped(read_runs(), splits=["sparse"], by_rate=by_rate)
    return set(runs.filter("best")["pe"])


def seeds(k: int, n: int) -> list[float]:
    """Errors of n seeds, of which k are up to 2 %, suite v1's threshold of flipflop's splits."""
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
        ({"a": seeds(8, 8), "b": [0.5]}, set()),
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
        ({"a": [0.1] * 4, "b": [0.2] * 4, "c": [0.1] * 3 + [0.3]}, set()),
        ({"a": [0.1] * 8, "b": [0.2]}, set()),
        ({"a": [0.1] * 8}, set()),
        ({"a": [0] * 4, "b": [0] * 4, "c": [0.5, 0.51, 0.5, 0.5]}, {"a", "b"}),
        ({"a": [0] * 4, "b": [0] * 4}, set()),
        ({"a": [0] * 4, "b": [0], "c": [0.5] * 4}, set()),
        # Equal means, 0.2, of seeds that differ: not the same result.
        ({"a": [0.19, 0.21] * 2, "b": [0.2] * 4, "c": [0.9] * 4}, set()),
    ],
)
def test_the_best_mean_is_marked_where_all_its_seeds_are_lower(
    here: Here, rows: dict[str, list[float]], marked: set[str]
) -> None:
    assert best(rows, by_rate=False) == marked


def test_best_is_among_what_was_measured_on_the_same_data(here: Here) -> None:
    errors_of("a", seeds(4, 4))
    errors_of("b", seeds(0, 4), **{"task.length": 128})
    assert not grouped(read_runs(), splits=["sparse"])["best"].any()
    errors_of("b", seeds(0, 4))
    assert grouped(read_runs(), splits=["sparse"]).filter("best")["pe"].to_list() == ["a"]


def test_no_best_among_pooled_settings(here: Here) -> None:
    for steps in (400, 800):
        errors_of("a", seeds(4, 4), **{"train.steps": steps})
    errors_of("b", seeds(0, 4))
    assert not grouped(read_runs(), ["pe"], splits=["sparse"])["best"].any()
    chosen = read_runs(**{"train.steps": 400})
    assert grouped(chosen, ["pe"], splits=["sparse"])["best"].any()


def test_the_mark_in_every_format(here: Here) -> None:
    errors_of("some_pe", [0.1] * 4)
    errors_of("other", [0.5, 0.51, 0.5, 0.51])
    words = ("results", "splits=sparse", "spread=sd")
    assert_has(here(*words).out, "10.0 ± 0.0 *", "*: the lowest mean")
    assert r"| some\_pe | 4 | **10.0 ± 0.0** |" in here(*words, "format=markdown").out
    shown = here(*words, "format=latex").out
    assert r"some\_pe & 4 & \textbf{10.0 $\pm$ 0.0} \\" in shown
    assert r"other & 4 & 50.5 $\pm$ 0.6 \\" in shown
    assert r"\caption{flipflop: error in \%. Mean $\pm$ sd over seeds." in shown
    rows = csv_rows(here(*words, "format=csv").out)
    assert {row["pe"]: row["best"] for row in rows} == {"some_pe": "true", "other": "false"}
    assert "lowest" not in here(*words, "pe=other").out


def test_the_star_of_rates_and_what_it_says(here: Here) -> None:
    """A mean beside rates has none; the sentence below the table is that of its stars."""
    errors_of("a", [0.0] * 4)
    errors_of("b", [0.5, 0.5, 0.51, 0.51])
    errors_of("c", [0.03, 0.03, 0.03, 0.03])
    for words in ((), ("splits=sparse",)):
        out = " ".join(here("results", *words).out.split())
        rate = "*: the highest k/n, its Wilson interval above those of all lower ones."
        assert_has(out, "4/4 0.0 *", rate)
        assert not re.search(r"0\.0 ± 0\.0 \*|lowest mean", out)
    means = " ".join(here("results", "spread=sd").out.split())
    assert means.count("0.0 ± 0.0 *") == 2, "of sparse and the mean"
    assert "*: the lowest mean; each of its seeds is below all others." in means
    words = ("results", "where=not pe=a", "splits=sparse", "format=markdown")
    rates = here(*words).out
    assert ("| c | 4 | 0/4 3.00 |" in rates, "**" in rates) == (True, False), "0/4 is not the best"
    means = here(*words, "spread=sd").out
    assert_has(means, "| c | 4 | **3.00 ± 0.00** |", "Bold: the lowest mean")


def test_a_mean_has_two_clusters_where_one_of_its_splits_has(here: Here) -> None:
    for seed, (sparse, dense) in enumerate([(0.0, 0.1), (0.0, 0.11), (0.09, 0.02), (0.1, 0.0)]):
        made("a", seed, errors={"in_domain": 0.0, "sparse": sparse, "dense": dense})
        made("b", seed, errors={"in_domain": sparse, "sparse": 0.5, "dense": 0.5})
    assert not two_clusters([0.05, 0.055, 0.055, 0.05])
    for splits in (None, ["ood"], ["in_domain", "ood", "dense"]):
        table = grouped(read_runs(), splits=splits)
        assert splits is None or table["split"].unique(maintain_order=True).to_list() == splits
        rows = {row["pe"]: row for row in table.filter(split="ood").iter_rows(named=True)}
        assert [rows[pe]["clusters"] for pe in "ab"] == [True, False]
        assert rows["a"]["mean"] == pytest.approx(0.0525)
    out = " ".join(here("results", "splits=ood").out.split())
    assert re.search(r"a 4 5\.25 ± \d\.\d\d‡ b", out)
    assert "‡: seeds in two clusters." in out


def test_what_a_group_pools_is_reported(here: Here) -> None:
    for steps in (400, 800):
        errors_of("a", [0.1, 0.3], **{"train.steps": steps})
        errors_of("b", [0.2, 0.4], **{"train.steps": steps, "pe.npos": steps})
    runs = read_runs()
    assert pooled(runs, ["pe"]) == {"train.steps": [400, 800], "pe.npos": [400, 800]}
    assert pooled(runs, ["train.steps"]) == {"pe": ["a", "b"]}
    assert pooled(runs, ["pe", "train.steps"]) == {}
    assert pooled(runs, ["pe", "setting"]) == {}
    row = grouped(runs, ["pe"], splits=["sparse"]).row(0, named=True)
    assert (row["n"], row["seeds"], row["settings"]) == (4, [0, 1], 2)
    assert row["mean"] == pytest.approx(0.2)
    out = here("results", "by=pe").out
    assert_has(out, "by=pe pools runs that differ in train.steps (400, 800)", "over runs")
    assert "pools" not in here("results", "by=pe,train.steps").out
    assert "pools" not in here("results").out


def test_keys_without_effect_are_not_pooled(here: Here) -> None:
    """eval.every changes no number where nothing stops a run early."""
    for seed, every in enumerate((4, 100)):
        made("rope", seed, **{"eval.every": every, "train.stop_below": None})
    assert pooled(read_runs(), ["pe"]) == {}
    for seed, every in enumerate((4, 100), 2):
        made("rope", seed, **{"eval.every": every, "train.stop_below": 0.01})
    assert "eval.every" in pooled(read_runs(), ["pe", "train.stop_below"])


def test_tasks_are_never_pooled(here: Here) -> None:
    errors_of("a", [0.1, 0.2])
    errors_of("a", [0.5, 0.6], task="counting")
    rows = grouped(read_runs(), ["pe"], splits=["sparse"]).select("task", "mean").rows()
    assert dict(rows) == pytest.approx({"flipflop": 0.15, "counting": 0.55})


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ({"in_domain": 0.0, "sparse": 0.5, "dense": 0.5}, {"in_domain": 0.0, "sparse": 0.0}),
        # Equal rates and means: by the error in domain.
        (
            {"in_domain": 0.0, "sparse": 0.0, "dense": 0.0},
            {"in_domain": 0.9, "sparse": 0.0, "dense": 0.0},
        ),
    ],
)
def test_what_lacks_a_split_or_errs_more_in_domain_stands_last(
    here: Here, first: dict[str, float | None], last: dict[str, float | None]
) -> None:
    for seed in range(2):
        made("first", seed, errors=first)
        made("a_last", seed, errors=last)
    out = here("results").out
    assert out.index("\nfirst ") < out.index("\na_last ")
