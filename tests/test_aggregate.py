"""Groups of runs: which mean is marked as the best, and what a group pools."""

import csv
import io

import pytest
from made import errors_of, made
from program import Here

from pe_lab.results.aggregate import grouped, pooled
from pe_lab.results.frame import read_runs


def best(**rows: list[float]) -> set[str]:
    """The encodings that are marked, of these with their errors by seed."""
    for pe, values in rows.items():
        errors_of(pe, values)
    runs = grouped(read_runs(), splits=["sparse"])
    return set(runs.filter("best")["pe"])


@pytest.mark.parametrize(
    ("rows", "marked"),
    [
        # t_{0.975, 2} sd / sqrt 3 = 2.484 sd: 0.1 +- 0.0248 against 0.2 +- 0.0248.
        ({"a": [0.09, 0.1, 0.11], "b": [0.19, 0.2, 0.21]}, {"a"}),
        # 0.1 +- 0.0248 against 0.14 +- 0.0248: they overlap.
        ({"a": [0.09, 0.1, 0.11], "b": [0.13, 0.14, 0.15]}, set()),
        ({"a": [0.09, 0.1, 0.11], "b": [0.19, 0.2, 0.21], "c": [0.12, 0.1, 0.11]}, set()),
        ({"a": [0.1], "b": [0.2, 0.21]}, set()),
        ({"a": [0.1, 0.1], "b": [0.2]}, {"a"}),
        ({"a": [0.09, 0.1, 0.11], "b": [0.12]}, set()),
        ({"a": [0.1, 0.1]}, set()),
        ({"a": [0, 0], "b": [0, 0], "c": [0.5, 0.51]}, {"a", "b"}),
        ({"a": [0, 0], "b": [0, 0]}, set()),
        ({"a": [0.1, 0.3], "b": [0.2, 0.2], "c": [0.9, 0.9]}, set()),
        ({"a": [0, 0], "b": [0], "c": [0.5, 0.51]}, set()),
        # Two clusters: their mean is not the best, and their lowest seed is what others must beat.
        ({"a": [0, 0, 0.1], "b": [0.5, 0.51]}, set()),
        ({"a": [0.1, 0.101], "b": [0.2, 0.2, 0.9]}, {"a"}),
        ({"a": [0.1, 0.101], "b": [0.05, 0.05, 0.9]}, set()),
        # Equal means, 0.2, of seeds that differ: not the same result.
        ({"a": [0.19, 0.21], "b": [0.2, 0.2], "c": [0.9, 0.9]}, set()),
    ],
)
def test_best_is_marked_where_the_interval_allows(
    here: Here, rows: dict[str, list[float]], marked: set[str]
) -> None:
    assert best(**rows) == marked


def test_best_is_among_what_was_measured_on_the_same_data(here: Here) -> None:
    errors_of("a", [0.1, 0.1])
    errors_of("b", [0.5, 0.5], **{"task.length": 128})
    assert not grouped(read_runs(), splits=["sparse"])["best"].any()
    errors_of("b", [0.5, 0.5])
    assert grouped(read_runs(), splits=["sparse"]).filter("best")["pe"].to_list() == ["a"]


def test_no_best_among_pooled_settings(here: Here) -> None:
    for steps in (400, 800):
        errors_of("a", [0.1, 0.1], **{"train.steps": steps})
    errors_of("b", [0.5, 0.5])
    assert not grouped(read_runs(), ["pe"], splits=["sparse"])["best"].any()
    chosen = read_runs(**{"train.steps": 400})
    assert grouped(chosen, ["pe"], splits=["sparse"])["best"].any()


def test_the_mark_in_every_format(here: Here) -> None:
    errors_of("some_pe", [0.1, 0.1])
    errors_of("other", [0.5, 0.51])
    words = ("results", "splits=sparse", "spread=sd")
    assert "10.0 ± 0.0 *" in here(*words).out
    assert "*: lowest mean" in here(*words).out
    assert r"| some\_pe | 2 | **10.0 ± 0.0** |" in here(*words, "format=markdown").out
    shown = here(*words, "format=latex").out
    assert r"some\_pe & 2 & \textbf{10.0 $\pm$ 0.0} \\" in shown
    assert r"other & 2 & 50.5 $\pm$ 0.7 \\" in shown
    assert r"\caption{flipflop: error in \%. Mean $\pm$ standard deviation over seeds." in shown
    rows = list(csv.DictReader(io.StringIO(here(*words, "format=csv").out)))
    assert {row["pe"]: row["best"] for row in rows} == {"some_pe": "true", "other": "false"}
    assert "lowest" not in here(*words, "pe=other").out


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
    assert "by=pe pools runs that differ in train.steps (400, 800)" in out
    assert "over runs" in out
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
