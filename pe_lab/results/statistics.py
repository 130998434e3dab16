"""Statistics of seeds: success rates with Wilson intervals, and the sign test with
Holm's correction. docs/method.md says when each is used."""

import math
from collections.abc import Sequence

import polars as pl

from pe_lab.core.metrics import wilson

# Two differ significantly if the corrected p-value is at most this.
LEVEL = 0.05


def rate_of(value: pl.Expr, threshold: pl.Expr) -> dict[str, pl.Expr]:
    """Return the aggregations of ``with_rates``: ``k`` (values at or below the threshold; null
    without one), ``median``, ``values`` in ascending order, and ``threshold`` (the one that all
    values share, else null)."""
    shared = pl.when(threshold.n_unique() == 1).then(threshold.first())
    return {
        "k": pl.when(shared.is_not_null()).then((value <= threshold).sum()).cast(pl.Int64),
        "median": value.median(),
        "threshold": shared.cast(pl.Float64),
        "values": value.drop_nulls().sort(),
    }


def spread(value: pl.Expr, threshold: pl.Expr) -> dict[str, pl.Expr]:
    """Return aggregations over the seeds of a group, of the values that are not null: ``n``,
    ``mean``, ``sd`` (n - 1), ``least``, ``most`` and those of ``rate_of``.

    A mean has no interval: where one seed in ten fails, that of a sample without a failure misses
    it.
    """
    # Equal values have no spread; rounding would give them one.
    equal = value.min() == value.max()
    return {
        "n": value.count(),
        "mean": pl.when(equal).then(value.min()).otherwise(value.mean()),
        "sd": pl.when(equal & (value.count() > 1)).then(0.0).otherwise(value.std()),
        "least": value.min(),
        "most": value.max(),
        **rate_of(value, threshold),
    }


def with_interval(
    table: pl.DataFrame, k: str = "k", n: str = "n", low: str = "p_low", high: str = "p_high"
) -> pl.DataFrame:
    """Add the 95 % Wilson interval of k of n; null where k is null or n is 0."""
    pairs = table.select(k, n).iter_rows()
    bounds = [wilson(k, n) if n and k is not None else (None, None) for k, n in pairs]
    return table.hstack(pl.DataFrame(bounds, {low: pl.Float64, high: pl.Float64}, orient="row"))


def with_rates(table: pl.DataFrame) -> pl.DataFrame:
    """Add ``p_generalises`` (k / n), ``p_low`` and ``p_high`` (its 95 % Wilson interval) to
    a table aggregated by ``rate_of`` with its ``n``."""
    return with_interval(table).with_columns(
        k=pl.when(pl.col("n") > 0).then(pl.col("k")),
        p_generalises=pl.when(pl.col("n") > 0).then(pl.col("k") / pl.col("n")),
    )


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Correct p-values for multiple tests (Holm 1979): with m of them in ascending order,
    max over j <= i of (m - j + 1) p_j, at most 1. None stays None and does not count."""
    order = sorted((p, i) for i, p in enumerate(ps) if p is not None)
    corrected: list[float | None] = [None] * len(ps)
    largest = 0.0
    for rank, (p, i) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        corrected[i] = largest
    return corrected


def sign_test(lower: int, higher: int) -> float:
    """Return the two-sided p-value of "a run is as likely below as above the other of its seed":
    the binomial tail of the seeds at which it is lower, without ties (Dixon and Mood 1946).

    It holds for any two distributions. Brunner and Munzel's test and its permutation do not with 8
    seeds, where the runs of one side fall into two clusters about the other's: see docs/method.md.

    >>> sign_test(8, 0)
    0.0078125
    """
    n = lower + higher
    tail = sum(math.comb(n, i) for i in range(min(lower, higher) + 1))
    return min(1.0, 2 * tail / 2**n)


def least_p(n_a: int, n_b: int) -> float:
    """Return how probable it is that all of n_a values lie on one side of n_b others by chance.

    >>> least_p(4, 4)
    0.02857142857142857
    """
    return 2 / math.comb(n_a + n_b, n_a)
