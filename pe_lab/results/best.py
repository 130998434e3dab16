"""Which groups of a table are the best of their column."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import polars as pl


def is_best(table: pl.DataFrame, column: Sequence[str]) -> list[bool]:
    """Whether a group is the best of its column, judged by the intervals over seeds.

    It is the lowest mean, if its 95 % interval lies wholly below the intervals of all other groups
    measured on the same data (below the value of a group with one seed, the lowest of a group with
    two clusters). Groups that tie are marked together, and only if all their seeds have the same
    value. Never marked are a group with one seed or two clusters, an only group, and any group
    where one pools several settings.
    """
    comparable: dict[tuple[Any, ...], list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    columns = (*column, "data", "n", "mean", "sd", "low", "high", "least", "settings")
    for number, row in enumerate(table.select(columns).iter_rows(named=True)):
        if row["mean"] is not None:
            comparable[(*(row[key] for key in column), *row["data"])].append((number, row))
    marks = [False] * len(table)
    for rows in comparable.values():
        lowest = min(row["mean"] for _, row in rows)
        first = [(number, row) for number, row in rows if row["mean"] == lowest]
        floors = [
            row["least"] if row["low"] is None else row["low"]
            for _, row in rows
            if row["mean"] > lowest
        ]
        several_seeds = all(row["high"] is not None for _, row in first)
        unanimous = len(first) == 1 or all(row["sd"] == 0 for _, row in first)
        one_setting = all(row["settings"] == 1 for _, row in rows)
        below = bool(floors) and several_seeds and first[0][1]["high"] < min(floors)
        if below and unanimous and one_setting:
            for number, _ in first:
                marks[number] = True
    return marks
