"""Which groups of a table are the best of their column."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import polars as pl

Rows = Sequence[tuple[int, dict[str, Any]]]
"""Rows of a table with their numbers."""


def is_best(table: pl.DataFrame, column: Sequence[str], by_rate: bool = True) -> list[bool]:
    """Whether a group is the best of its column among those measured on the same data.

    With a threshold it is the highest rate k/n, if its 95 % Wilson interval lies wholly above that
    of every group with a lower rate. Groups that tie at it are marked together, if each lies above
    all others: a highest rate of 0 has none below it.

    Where nothing in the table of the task has a threshold, or with ``by_rate`` False, it is the
    lowest mean, if its 95 % interval lies wholly below the intervals of all other groups (below
    the value of a group with one seed, the lowest of a group with two clusters). Groups that tie
    are marked together, and only if all their seeds have the same value; a group with two
    clusters is never marked.

    Never marked are a group with one seed and those that it ties with, an only group, any group
    where one pools several settings, and a mean beside rates: rates say how many seeds generalise,
    where the mean of three would have a mark that three seeds cannot give to a rate.

    Args:
        column: the keys of a column of the table, the task first.
    """
    tasks = {*table.filter(pl.col("threshold").is_not_null())[column[0]]} if by_rate else set()
    comparable: dict[tuple[Any, ...], list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    for number, row in enumerate(table.iter_rows(named=True)):
        if row["mean"] is not None:
            comparable[(*(row[key] for key in column), *row["data"])].append((number, row))
    marks = [False] * len(table)
    for rows in comparable.values():
        if any(row["settings"] > 1 for _, row in rows):
            continue
        by_mean = rows[0][1][column[0]] not in tasks
        if not by_mean and any(row["threshold"] is None for _, row in rows):
            continue
        for number in _lowest_means(rows) if by_mean else _highest_rates(rows):
            marks[number] = True
    return marks


def _highest_rates(rows: Rows) -> list[int]:
    highest = max(row["p_generalises"] for _, row in rows)
    first = [(number, row) for number, row in rows if row["p_generalises"] == highest]
    others = [row["p_high"] for _, row in rows if row["p_generalises"] < highest]
    several_seeds = all(row["n"] > 1 for _, row in first)
    above = others and min(row["p_low"] for _, row in first) > max(others)
    return [number for number, _ in first] if above and several_seeds else []


def _lowest_means(rows: Rows) -> list[int]:
    lowest = min(row["mean"] for _, row in rows)
    first = [(number, row) for number, row in rows if row["mean"] == lowest]
    floors = [
        row["least"] if row["low"] is None else row["low"]
        for _, row in rows
        if row["mean"] > lowest
    ]
    several_seeds = all(row["high"] is not None for _, row in first)
    unanimous = len(first) == 1 or all(row["sd"] == 0 for _, row in first)
    below = floors and several_seeds and first[0][1]["high"] < min(floors)
    return [number for number, _ in first] if below and unanimous else []
