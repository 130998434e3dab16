"""A published number beside our seeds: on which side of them it lies, and how they are written."""

from collections.abc import Mapping
from typing import Any

import polars as pl

from pe_lab.common.console import percent
from pe_lab.core.metrics import wilson
from pe_lab.results.cell_text import CLUSTERS
from pe_lab.results.published import Published

RULE = (
    "Within ours: the published number, as rounded, lies between the lowest and the highest of our "
    "seeds, each widened to the 95 % Wilson interval of that single run; ours lower, ours higher: "
    "it lies beyond them. No verdict: one seed, or seeds in two clusters with the number in their "
    "range, where it may be near none of them."
)
LISTED = 8
"""Most seeds whose values are listed."""
MEDIAN = 3
"""Fewest seeds whose median is shown."""
SEEDS = (
    "Seeds of ours: k/n with an error up to the threshold, of three or more the median, and each "
    f"of them (above {LISTED} lowest..highest)."
)
UNRATED_SEEDS = (
    f"Seeds of ours: of three or more the median, and each of them (above {LISTED} "
    "lowest..highest)."
)


def verdict(number: Published, cell: Mapping[str, Any]) -> str:
    """On which side of our seeds a published number lies, as ``RULE`` says.

    Args:
        cell: of our seeds ``n``, ``range_low`` and ``range_high`` (the lowest and the highest
            bound of ``with_bounds``) and ``clusters`` (whether they fall into two).
    """
    if cell["n"] < 2:
        return "one seed: no verdict"
    if number.high < cell["range_low"]:
        return "ours higher"
    if number.low > cell["range_high"]:
        return "ours lower"
    return "two clusters: no verdict" if cell["clusters"] else "within ours"


def with_bounds(runs: pl.DataFrame, share: str, n: str) -> pl.DataFrame:
    """With ``<share>_low`` and ``<share>_high``, the 95 % Wilson interval of each run's share of n
    answers or sequences; null where the run did not measure it."""
    pairs = runs.select(share, n).iter_rows()
    found = [(None, None) if None in pair else wilson(pair[0] * pair[1], pair[1]) for pair in pairs]
    return runs.with_columns(
        pl.Series(f"{share}_low", [low for low, _ in found], pl.Float64),
        pl.Series(f"{share}_high", [high for _, high in found], pl.Float64),
    )


def seeds_text(cell: Mapping[str, Any]) -> str:
    """Our seeds: ``2/3‡ 1.00: 0.0 1.00 22.0``, k of n, ‡ where they fall into two clusters, the
    median of three or more, and each of them (above ``LISTED`` the lowest and the highest). One
    seed alone is its value.

    Args:
        cell: ``n``, ``k`` (None: no threshold), ``median``, ``clusters`` and ``values``, ascending.
    """
    n, values = cell["n"], cell["values"]
    each = " ".join(map(percent, values))
    if n > LISTED:
        each = f"{percent(values[0])}..{percent(values[-1])}"
    if n == 1:
        return each
    mark = CLUSTERS if cell["clusters"] else ""
    rate = "" if cell["k"] is None else f"{cell['k']}/{n}{mark}"
    if n >= MEDIAN:
        rate = f"{rate or f'median{mark}'} {percent(cell['median'])}"
    return f"{rate}: {each}" if rate else mark + each
