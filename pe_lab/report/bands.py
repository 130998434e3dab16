"""Numbers over the seeds, as charts and tables show them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from pe_lab.results.intervals import spread, with_interval


@dataclass(frozen=True)
class Band:
    """A number over the seeds: mean, 95 % t interval (None for one seed), least and most."""

    mean: float
    low: float | None
    high: float | None
    least: float
    most: float
    n: int

    @property
    def half(self) -> float | None:
        """Half the width of the interval."""
        return None if self.high is None else self.high - self.mean


def bands(rows: pl.DataFrame, by: Sequence[str], value: str) -> dict[tuple[Any, ...], Band | None]:
    """The band of a column for each group; None where no row of it has a value."""
    table = with_interval(rows.group_by(by).agg(**spread(pl.col(value))))
    columns = ("mean", "low", "high", "least", "most", "n")
    groups = zip(table.select(by).iter_rows(), table.select(columns).iter_rows(), strict=True)
    return {key: None if band[-1] == 0 else Band(*band) for key, band in groups}
