"""Success rates, medians and means over seeds, and whether the seeds fall into two clusters."""

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import accumulate
from statistics import fmean

import polars as pl

from pe_lab.core.metrics import IN_DOMAIN, wilson

CRITICAL = {3: 0.0007, 4: 0.014, 5: 0.039, 6: 0.065, 7: 0.087}
"""5 % quantiles of the ratio of ``two_clusters`` for n normal values, by 400 000 draws each."""
LARGEST_RATIO = 0.1
"""For 8 and more: two clusters of equal size whose means are 6 standard deviations apart."""
SMALLEST_GAP = 0.02
"""Clusters nearer than this (2 percentage points) are one, however tight."""
FACTOR = 4
"""The errors of one cluster are at least so many times those of the other."""


def two_clusters(values: Sequence[float | None], threshold: float | None = None) -> bool:
    """Whether the values of several seeds fall into two clusters, as 0, 0.22, 0 do: a mean then
    describes neither.

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
    found = sorted(value for value in values if value is not None)
    if len(found) < 2 or found[-1] - found[0] < SMALLEST_GAP:
        return False
    if threshold and _apart(found, threshold):
        return True
    if len(found) < 3:
        return False
    n, mean = len(found), fmean(found)
    squares = sum((value - mean) ** 2 for value in found)
    # Squares between two parts of sizes k and n - k whose deviations sum to s and -s.
    sums = accumulate(value - mean for value in found[:-1])
    between = [s * s * n / (k * (n - k)) for k, s in enumerate(sums, 1)]
    cut = max(range(n - 1), key=between.__getitem__)
    gap = found[cut + 1] - found[cut]
    return gap >= SMALLEST_GAP and 1 - between[cut] / squares < CRITICAL.get(n, LARGEST_RATIO)


def _apart(ordered: Sequence[float], threshold: float) -> bool:
    below = [value for value in ordered if value <= threshold]
    above = ordered[len(below) :]
    if not below or not above:
        return False
    several = min(len(below), len(above)) > 2 and above[0] - below[-1] >= SMALLEST_GAP
    return above[0] >= FACTOR * (below[-1] if several else threshold)


def stratified_interval(strata: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """The 95 % interval of the mean of several independent proportions, each of the same weight.

    With proportions p_i of n_i and their Wilson intervals l_i to u_i, it reaches from p - sqrt(sum
    of (w (p_i - l_i))^2) to p + sqrt(sum of (w (u_i - p_i))^2), where p is the mean of the p_i and
    w is 1 / their number: the method of variance estimates recovery (Zou and Donner 2008,
    doi:10.1002/sim.3095). For one proportion it is the Wilson interval. The strata stay as they
    are: it speaks of other draws within them, not of other strata. Unlike a bootstrap it has a
    width where all draws are alike.

    Drawn proportions (tests/test_statistics.py) are covered in 96 % of cases on average, and, as
    by Wilson's interval, in 83 % at worst, where all are near 0 or near 1.

    Args:
        strata: of each p_i and n_i. A p_i may be the mean of draws between 0 and 1: their variance
            is at most that of as many draws of 0 or 1, so that the interval is then too wide.
    """
    weight = 1 / len(strata)
    share = sum(p for p, _ in strata) * weight
    pairs = [(p, *wilson(p * n, n)) for p, n in strata]
    below = math.hypot(*(weight * (p - low) for p, low, _ in pairs))
    above = math.hypot(*(weight * (high - p) for p, _, high in pairs))
    return max(0.0, share - below), min(1.0, share + above)


def mean_rate(counts: Iterable[tuple[int | None, int]]) -> Fraction | None:
    """The mean of these k / n, exact, so that equal means tie; None where one has no k, or there
    is none.

    >>> mean_rate([(1, 3), (2, 3)]) == mean_rate([(4, 8)])
    True
    """
    shares = [None if k is None else Fraction(k, n) for k, n in counts]
    known = [share for share in shares if share is not None]
    return sum(known, Fraction(0)) / len(known) if known and len(known) == len(shares) else None


def rate_of(value: pl.Expr, threshold: pl.Expr) -> dict[str, pl.Expr]:
    """Aggregations for ``with_rates``: ``k`` (values at or below their threshold; null without
    one), ``median``, ``threshold`` and ``values``, in ascending order.

    A group's threshold is the one that all its values share, else null.
    """
    shared = pl.when(threshold.n_unique() == 1).then(threshold.first())
    return {
        "k": pl.when(shared.is_not_null()).then((value <= threshold).sum()).cast(pl.Int64),
        "median": value.median(),
        "threshold": shared.cast(pl.Float64),
        "values": value.drop_nulls().sort(),
    }


def with_rates(table: pl.DataFrame) -> pl.DataFrame:
    """A table aggregated by ``rate_of`` and with ``n``, with ``p_generalises`` (k / n), ``p_low``
    and ``p_high`` (its 95 % Wilson interval) and ``clusters``."""
    pairs = [
        (None, None) if k is None or not n else wilson(k, n)
        for k, n in table.select("k", "n").iter_rows()
    ]
    clusters = [two_clusters(*row) for row in table.select("values", "threshold").iter_rows()]
    return table.with_columns(
        k=pl.when(pl.col("n") > 0).then(pl.col("k")),
        p_generalises=pl.when(pl.col("n") > 0).then(pl.col("k") / pl.col("n")),
        p_low=pl.Series([low for low, _ in pairs], dtype=pl.Float64),
        p_high=pl.Series([high for _, high in pairs], dtype=pl.Float64),
        clusters=pl.Series(clusters, dtype=pl.Boolean),
    )


NO_THRESHOLD = pl.lit(None, pl.Float64)


def spread(value: pl.Expr, threshold: pl.Expr = NO_THRESHOLD) -> dict[str, pl.Expr]:
    """Aggregations for ``with_rates`` of the values that are not null: n, mean, sd (n - 1), least,
    most and those of ``rate_of``. ``with_rates(runs.group_by("pe").agg(**spread(..)))``.

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


def with_clusters_of_mean(table: pl.DataFrame, keys: Sequence[str], mean: str) -> pl.DataFrame:
    """The table of ``with_rates`` with two clusters in the split ``mean`` where one of the splits
    out of domain, which it averages, has them: its values are then of several kinds of run, also
    where they lie close together.

    Args:
        keys: those of a row, the split among them.
    """
    group = [key for key in keys if key != "split"]
    averaged = pl.col("clusters") & ~pl.col("split").is_in([mean, IN_DOMAIN])
    of_mean = (pl.col("split") == mean) & (pl.col("n") > 1)
    return table.with_columns(pl.col("clusters") | (of_mean & averaged.any().over(group)))
