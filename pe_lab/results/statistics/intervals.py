"""Rates, median, mean, standard deviation and 95 % confidence interval over seeds."""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import polars as pl

from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.results.statistics.proportions import rate_of, with_rates

NO_THRESHOLD = pl.lit(None, pl.Float64)


def spread(value: pl.Expr, threshold: pl.Expr = NO_THRESHOLD) -> dict[str, pl.Expr]:
    """Aggregations for ``with_interval`` of the values that are not null: n, mean, sd (n - 1),
    least, most and those of ``rate_of``.

    >>> with_interval(runs.group_by("pe").agg(**spread(pl.col("in_domain/error"))))
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


def with_interval(table: pl.DataFrame) -> pl.DataFrame:
    """With the columns of ``with_rates``, and ``low`` and ``high``: mean ± t_95(n) sd / sqrt(n),
    null for one value and where the values fall into two clusters.

    Student's t interval takes the seeds for a sample of a normal population. Errors are bounded
    and often skewed: with few seeds it is a rough guide, and it may extend below 0.
    """
    table = with_rates(table)
    t = pl.Series([t_95(n) if n > 1 else None for n in table["n"]], dtype=pl.Float64)
    half = pl.when(~pl.col("clusters")).then(t * pl.col("sd") / pl.col("n").sqrt())
    return table.with_columns(low=pl.col("mean") - half, high=pl.col("mean") + half)


def with_clusters_of_mean(table: pl.DataFrame, keys: Sequence[str], mean: str) -> pl.DataFrame:
    """The table of ``with_interval`` with two clusters, and no interval, in the split ``mean``
    where one of the splits out of domain, which it averages, has them: its values are then of
    several kinds of run, also where they lie close together.

    Args:
        keys: those of a row, the split among them.
    """
    group = [key for key in keys if key != "split"]
    averaged = pl.col("clusters") & ~pl.col("split").is_in([mean, IN_DOMAIN])
    of_mean = (pl.col("split") == mean) & (pl.col("n") > 1)
    table = table.with_columns(pl.col("clusters") | (of_mean & averaged.any().over(group)))
    return table.with_columns(pl.when(~pl.col("clusters")).then(pl.col("low", "high")))


def over_seeds(values: Sequence[float]) -> dict[str, Any]:
    """n, mean, sd, least, most, median, clusters, low and high of these; with one value, sd and
    interval are None, with two clusters the interval."""
    table = pl.DataFrame({"value": values}, {"value": pl.Float64})
    # Outside of groups a list has to be asked for.
    found = spread(pl.col("value"))
    found["values"] = found["values"].implode()
    return with_interval(table.select(**found)).row(0, named=True)


@cache
def t_95(n: int) -> float:
    """The 97.5 % quantile of Student's t with n - 1 degrees of freedom; nan for one value."""
    if n < 2:
        return math.nan
    if n - 2 < len(_T_95):
        return _T_95[n - 2]
    from scipy.special import stdtrit

    return float(stdtrit(n - 1, 0.975))


# scipy's values for n = 2, 3, .. : importing it is a quarter of a second at every table.
_T_95 = (
    12.706204736174694,
    4.302652729749462,
    3.1824463052837078,
    2.7764451051977934,
    2.5705818356363146,
    2.4469118511449786,
    2.364624251592784,
    2.306004135204166,
    2.262157162798205,
    2.228138851986274,
    2.200985160091639,
    2.1788128296672284,
    2.1603686564627913,
    2.144786687917804,
    2.131449545559776,
    2.1199052992212546,
    2.1098155778333156,
    2.1009220402410382,
    2.0930240544083087,
    2.085963447265864,
    2.0796138447276795,
    2.0738730679040254,
    2.0686576104190486,
    2.0638985616280245,
    2.0595385527532972,
    2.0555294386428735,
    2.0518305164802846,
    2.0484071417952454,
    2.045229642132703,
)
