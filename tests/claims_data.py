"""What the shipped file of suite v2 has of entries, tasks and phases, for the tests of its page."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import polars as pl

from docs import leaderboard
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.explain.cells import cells_of
from pe_lab.results import verdicts
from pe_lab.results.leaderboard import file, scores
from pe_lab.results.leaderboard.claims import Decided
from pe_lab.results.leaderboard.scores import Scores
from pe_lab.results.presentation.needs import Need, needs
from pe_lab.results.suite import EQUAL_PARAMETERS, TUNING, load_suite

TEN = ["none", "learned", "sinusoidal", "rope", "alibi", "t5", "fire", "cope", "fox", "path"]
CONTROLS = ["conv", "lstm", "linear_attention"]
BOTH = [*TEN, *CONTROLS]


@cache
def found() -> Scores:
    return leaderboard.shipped()


@cache
def decided() -> dict[str, Decided]:
    return {one.name: one for one in leaderboard.claims()}


@cache
def at_twice_the_threshold() -> Scores:
    rows, _ = file.shipped_rows(found().suite)
    return scores.scores(found().suite.with_thresholds(2), rows, rows.clear())


def tasks() -> set[str]:
    return {*found().cells["task"]}


def same_as_in_v1(task: str) -> bool:
    there = load_suite("v1").tasks.get(task)
    return there is not None and there.digest == found().suite.tasks[task].digest


def need(task: str, of: Scores | None = None) -> Need:
    (one,) = needs(of or found(), [task])
    return one


def on_all(entry: str, task: str, of: Scores | None = None) -> list[tuple[int, int] | None]:
    """k of n seeds that generalise to every split, alone and with the convolution."""
    return [counts.get(entry) for counts in need(task, of).counts.values()]


def k(entry: str, task: str, of: Scores | None = None) -> list[int]:
    """Of eight seeds those that generalise to every split, alone and with the convolution."""
    counts = on_all(entry, task, of)
    assert all(one is not None and one[1] == 8 for one in counts), (entry, task, counts)
    return [one[0] for one in counts if one is not None]


def generalising(task: str) -> dict[str, list[int]]:
    """The entries of the suite's first part of which a seed generalises to every split -> how many
    of eight do, in each of their columns."""
    counts = {entry: k(entry, task) for entry in BOTH}
    published = on_all("path_published", task)[0]
    assert published is not None
    assert published[1] == 8
    return {e: ks for e, ks in (counts | {"path_published": [published[0]]}).items() if any(ks)}


def on_splits(entry: str, task: str, of: Scores | None = None) -> dict[str, tuple[int, int]]:
    """Split -> k of n seeds that generalise; the entry has its column's name."""
    cells = (of or found()).cells.filter(entry=entry, task=task)
    return {split: (k, n) for split, k, n in cells.select("split", "k", "n").iter_rows()}


def other_encodings(task: str) -> dict[str, tuple[int, int]]:
    """Those that only the fourth part of the suite trains -> k of n seeds, alone."""
    counts = need(task).counts["alone"]
    return {e: count for e, count in counts.items() if e not in {*BOTH, "path_published"}}


def of_split(task: str, split: str, of: Scores | None = None) -> dict[str, tuple[int, int]]:
    """Entry, with its column's name -> k of n seeds that generalise to a split."""
    cells = (of or found()).cells.filter(task=task, split=split).select("entry", "k", "n")
    return {entry: (k, n) for entry, k, n in cells.iter_rows()}


def in_both(
    entries: Sequence[str], task: str, split: str, of: Scores | None = None
) -> list[list[int]]:
    """Of eight seeds of each entry those that generalise to a split, alone and with the
    convolution."""
    counts = [
        [on_splits(f"{e}{column}", task, of)[split] for column in ("", "+conv")] for e in entries
    ]
    assert {n for both in counts for _, n in both} == {8}
    return [[k for k, _ in both] for both in counts]


def median(entry: str, task: str, split: str) -> float:
    """In %, as printed."""
    (error,) = found().cells.filter(entry=entry, task=task, split=split)["median"]
    return round(100 * float(error), 1)


def why(entry: str, task: str) -> dict[str, Any]:
    """The verdict on an entry, of the diagnoses that ship."""
    several = cells_of(verdicts.diagnosed(verdicts.shipped_diagnoses(found().suite)))
    (cell,) = (one for one in several if (one.pe, one.task) == (entry, task))
    return cell.facts()


def restored(entry: str, task: str, intervention: str) -> int:
    """The share in % of the added error."""
    return round(100 * why(entry, task)["shares"][intervention])


def chosen(entry: str, task: str) -> float:
    """The learning rate of the score."""
    (rate,) = {*found().cells.filter(entry=entry, task=task)["lr"].drop_nulls()}
    return float(rate)


def tuning_errors(entry: str, task: str, split: str, lr: float) -> list[float]:
    """Of each tuning run at a rate, both seeds of which were trained."""
    rows = found().rows.filter(entry=entry, task=task, split=split, phase=TUNING, lr=lr)
    assert len(rows) == len(found().suite.protocol.tuning_seeds)
    return rows["error"].to_list()


def half(entry: str, task: str, of: Scores) -> tuple[bool, bool]:
    """Whether at least half of the seeds fit, and whether half generalise to every split."""
    every = on_all(entry, task, of)[0]
    assert every is not None
    fit, n = on_splits(entry, task, of)[IN_DOMAIN]
    assert n == every[1]
    return 2 * fit >= n, 2 * every[0] >= n


@cache
def changed_by_twice_the_steps() -> list[dict[tuple[str, str], bool]]:
    """Whether half fit, and whether half generalise, with twice the steps, where it changes."""
    once, twice = scores.paired(found(), "steps_x2")
    assert {*once.cells["n"]} == {*twice.cells["n"]} == {3}
    cells = {
        (entry, task): (half(entry, task, once), half(entry, task, twice))
        for entry in ("rope", "alibi", "cope", "fox", "path")
        for task in {*twice.cells["task"]}
    }
    assert len(cells) == 35
    return [{cell: b[at] for cell, (a, b) in cells.items() if a[at] != b[at]} for at in (0, 1)]


def steps_of(entry: str, task: str, of: Scores) -> int:
    (steps,) = {*of.rows.filter("counts", entry=entry, task=task)["steps"]}
    return int(steps)


def parameters(entry: str, task: str) -> int:
    (of,) = {*found().rows.filter("counts", entry=entry, task=task)["parameters"]}
    return int(of)


@cache
def of_equal_size() -> dict[tuple[str, str], tuple[int, int]]:
    """Entry and task -> how many of five seeds generalise to every split, and how many do with as
    many parameters as RoPE."""
    own, equal = (
        {
            (entry, task): counts["alone"][entry]
            for task, counts in ((one.task, one.counts) for one in needs(of, [*tasks()]))
            for entry in counts["alone"]
        }
        for of in scores.paired(found(), EQUAL_PARAMETERS)
    )
    assert {n for of in (own, equal) for _, n in of.values()} == {5}
    assert len(own) == len(equal) == 15
    return {key: (own[key][0], equal[key][0]) for key in own}


def switched(rows: pl.DataFrame) -> pl.DataFrame:
    """Of each run that was made again, whether it generalises to every split, first and again."""
    limits = pl.col("split") != IN_DOMAIN, pl.col("threshold").is_not_null()
    reached = (
        (pl.col(one).fill_null(1) <= pl.col("threshold")).all().alias(one)
        for one in ("error", "again")
    )
    again = rows.filter(pl.col("again").is_not_null(), *limits)
    return again.group_by("entry", "task", "seed").agg(reached)


@cache
def made_again() -> dict[tuple[str, str], tuple[int, int, int]]:
    """Entry and task -> how many of eight seeds generalise to every split, first and again, and how
    many of them do once only."""
    switches = (pl.col("error") != pl.col("again")).sum().alias("switches")
    counts = (
        switched(found().rows.filter("counts"))
        .group_by("entry", "task")
        .agg(pl.len(), pl.col("error", "again").sum(), switches)
    )
    assert {*counts["len"]} == {8}
    return {(entry, task): (a, b, c) for entry, task, _, a, b, c in counts.iter_rows()}


def equal_size_again(entry: str, task: str) -> int:
    """Of five seeds with as many parameters as RoPE those that generalise when made again."""
    rows = found().rows.filter(phase=EQUAL_PARAMETERS, entry=entry, task=task)
    made = switched(rows)
    assert len(made) == 5
    return int(made["again"].sum())
