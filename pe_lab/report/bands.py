"""Numbers over the seeds, as charts and tables show them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import polars as pl

from pe_lab.results.presentation.cells import CLUSTERS
from pe_lab.results.statistics.intervals import NO_THRESHOLD, spread, with_interval


@dataclass(frozen=True)
class Band:
    """A number over the seeds.

    Args:
        low, high: the 95 % t interval; None for one seed, and for two clusters.
        k: how many of the n are up to the threshold; None without one.
        values: every seed, ascending.
    """

    mean: float
    low: float | None
    high: float | None
    least: float
    most: float
    n: int
    median: float
    k: int | None
    clusters: bool
    values: Sequence[float]

    @property
    def half(self) -> float | None:
        """Half the width of the interval."""
        return None if self.high is None else self.high - self.mean

    @property
    def rate(self) -> str:
        """``6/8``, with the mark of two clusters; empty for one seed and without a threshold."""
        if self.k is None or self.n == 1:
            return self.mark
        return f"{self.k}/{self.n}{self.mark}"

    @property
    def mark(self) -> str:
        return CLUSTERS if self.clusters else ""


def bands(
    rows: pl.DataFrame, by: Sequence[str], value: str, threshold: pl.Expr = NO_THRESHOLD
) -> dict[tuple[Any, ...], Band | None]:
    """The band of a column for each group; None where no row of it has a value."""
    table = with_interval(rows.group_by(by).agg(**spread(pl.col(value), threshold)))
    columns = [field.name for field in fields(Band)]
    groups = zip(table.select(by).iter_rows(), table.select(columns).iter_rows(), strict=True)
    return {key: Band(*band) if band[columns.index("n")] else None for key, band in groups}
