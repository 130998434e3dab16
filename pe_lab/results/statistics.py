"""Statistics of seeds: success rates with Wilson intervals, two clusters, and the sign test with
Holm's correction. docs/method.md says when each is used."""

import math
from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean

import polars as pl

from pe_lab.core.metrics import IN_DOMAIN, OOD, wilson

# 5 % quantiles of the ratio of ``two_clusters`` for n normal values, by 400 000 draws each.
CRITICAL = {3: 0.0007, 4: 0.014, 5: 0.039, 6: 0.065, 7: 0.087}
# For 8 and more: two clusters of equal size whose means are 6 standard deviations apart.
LARGEST_RATIO = 0.1
# Clusters nearer than this (2 percentage points) are one, however tight.
SMALLEST_GAP = 0.02
# The errors of one cluster are at least so many times those of the other.
FACTOR = 4
# Of a corrected p-value, up to which two differ significantly.
LEVEL = 0.05


def two_clusters(values: Sequence[float | None], threshold: float | None = None) -> bool:
    """Return whether the values of several seeds fall into two clusters, as 0, 0.22, 0 do: a mean
    then describes neither.

    Either of two rules suffices.

    1. Three or more values, split where the squares within both parts, W, are smallest: W / T,
       with T the squares about the common mean, is below a critical value (the test of Engelman
       and Hartigan 1969), and the gap between the parts is at least ``SMALLEST_GAP``. For 3 to 7
       values the critical value is that which normal values reach in 5 % of samples; from 8 on it
       is ``LARGEST_RATIO``, which normal values reach less often (4 % at 8, below 0.1 % at 20).
       Hartigan's dip test needs more values than benches have seeds: it cannot reject with three.
    2. With a threshold: some values at or below it, others at least ``FACTOR`` times as large, none
       between; or three or more on either side, ``SMALLEST_GAP`` apart, those above at least
       ``FACTOR`` times as large as those below, as where most seeds are near zero and the others
       lie anywhere above. Normal values do so at any mean in less than 2 % of samples of 2 to 5
       and less than 3 % of 8 where their standard deviation is at most a third of their mean;
       where it is half of the mean, in up to 7 % of 2, 12 % of 5 and 17 % of 8.
    """
    ordered = sorted(value for value in values if value is not None)
    if len(ordered) < 2 or ordered[-1] - ordered[0] < SMALLEST_GAP:
        return False
    if threshold and _parted_by(threshold, ordered):
        return True
    if len(ordered) < 3:
        return False
    n, mean = len(ordered), fmean(ordered)
    squares = sum((value - mean) ** 2 for value in ordered)
    # Squares between two parts of sizes k and n - k whose deviations sum to s and -s.
    sums = accumulate(value - mean for value in ordered[:-1])
    between = [s * s * n / (k * (n - k)) for k, s in enumerate(sums, 1)]
    cut = max(range(n - 1), key=between.__getitem__)
    gap = ordered[cut + 1] - ordered[cut]
    return gap >= SMALLEST_GAP and 1 - between[cut] / squares < CRITICAL.get(n, LARGEST_RATIO)


def _parted_by(threshold: float, ordered: Sequence[float]) -> bool:
    below = [value for value in ordered if value <= threshold]
    above = ordered[len(below) :]
    if not below or not above:
        return False
    several = min(len(below), len(above)) > 2 and above[0] - below[-1] >= SMALLEST_GAP
    return above[0] >= FACTOR * (below[-1] if several else threshold)


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
    """Add ``p_generalises`` (k / n), ``p_low`` and ``p_high`` (its 95 % Wilson interval) and
    ``clusters`` to a table aggregated by ``rate_of`` with its ``n``."""
    clusters = [two_clusters(*row) for row in table.select("values", "threshold").iter_rows()]
    return with_interval(table).with_columns(
        k=pl.when(pl.col("n") > 0).then(pl.col("k")),
        p_generalises=pl.when(pl.col("n") > 0).then(pl.col("k") / pl.col("n")),
        clusters=pl.Series(clusters, dtype=pl.Boolean),
    )


def with_clusters_of_mean(table: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Mark the split ``ood`` where one of the splits that it averages has two clusters: its values
    are then of several kinds of run, also where they lie close together.

    Args:
        keys: those of a row, the split among them.
    """
    group = [key for key in keys if key != "split"]
    averaged = pl.col("clusters") & ~pl.col("split").is_in([OOD, IN_DOMAIN])
    of_mean = (pl.col("split") == OOD) & (pl.col("n") > 1)
    return table.with_columns(pl.col("clusters") | (of_mean & averaged.any().over(group)))


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
