"""The text of a table's cell: rates, median, mean and spread over seeds."""

from collections.abc import Sequence
from typing import Any, Literal

import polars as pl

from pe_lab.common.console import percent
from pe_lab.core.metrics import IN_DOMAIN, is_share
from pe_lab.results.presentation.formats import Cell

Spread = Literal["rates", "sd", "interval", "both"]
CLUSTERS = "‡"
"""Marks a cell whose seeds fall into two clusters."""
CLUSTERED = f"{CLUSTERS}: seeds in two clusters; no interval."


def cell_text(cell: dict[str, Any] | None, n: int, metric: str, spread: Spread) -> Cell:
    """A cell of a table.

    Args:
        cell: a row of ``aggregate.grouped``; None: there is none.
        n: the seeds of the table's row; shown where those of the cell are fewer.
    """
    if cell is None:
        return Cell("")
    if cell["not_finite"]:
        return Cell("not finite")
    if not cell["n"]:
        return Cell("n/a")
    if spread == "rates" and cell["n"] > 1 and cell.get("threshold") is not None:
        # Where all seeds agree, the median says it.
        mean = "" if cell["sd"] == 0 else f"({_mean(cell, metric, 'sd')})"
        return Cell(_rates(cell), cell["best"], mean)
    text = _mean(cell, metric, spread) + (CLUSTERS if cell["clusters"] else "")
    return Cell(text if cell["n"] == n else f"{text} n={cell['n']}", cell["best"])


def _rates(cell: dict[str, Any]) -> str:
    """``6/8 0.31``: k of n, and the median."""
    mark = CLUSTERS if cell["clusters"] else ""
    return f"{cell['k']}/{cell['n']}{mark} {percent(cell['median'])}"


def _mean(cell: dict[str, Any], metric: str, spread: Spread) -> str:
    mean, sd, low, high = (cell[name] for name in ("mean", "sd", "low", "high"))
    digits, shares = 3, is_share(metric)
    if shares:
        # As many for all as the mean needs: 0.03 is not 0.
        digits = 2 if 0 < mean < 0.1 else 1
        mean, sd, low, high = (v if v is None else 100 * v for v in (mean, sd, low, high))
    text = f"{mean:.{digits}f}"
    if sd is not None and spread != "interval":
        text += f" ± {sd:.{digits}f}"
    if low is not None and spread in ("interval", "both"):
        if shares:
            low, high = max(0.0, low), min(100.0, high)
        text += f" [{low:.{digits}f}, {high:.{digits}f}]"
    return text


def has_rates(table: pl.DataFrame, spread: Spread) -> bool:
    """Whether a cell of the table shows k/n."""
    if spread != "rates" or "threshold" not in table.columns:
        return False
    return table.filter(pl.col("n") > 1)["threshold"].count() > 0


def how_to_read(table: pl.DataFrame, spread: Spread) -> str:
    """The caption of a table with these cells."""
    if (table["n"] <= 1).all():
        return "One run per row: the spread over seeds is unknown."
    over = "seeds" if (table["settings"] == 1).all() else "runs"
    if has_rates(table, spread):
        return f"k/n: {over} with an error up to the threshold; median; mean ± sd over {over}."
    return {
        "both": f"Mean ± sd over {over} [95 % interval of the mean].",
        "interval": f"Mean over {over} [95 % interval of the mean].",
    }.get(spread, f"Mean ± sd over {over}.")


def thresholds(table: pl.DataFrame) -> str:
    """``2 % (in_domain: 1 %)``: the thresholds of the splits, the most frequent first."""
    of_split = dict(table.select("split", "threshold").unique(maintain_order=True).iter_rows())
    inside = of_split.pop(IN_DOMAIN, None)
    shown = {split: f"{100 * limit:.6g} %" for split, limit in of_split.items()}
    values: Sequence[str] = list(shown.values())
    first = max(dict.fromkeys(values), key=values.count, default="")
    others = [f"{split}: {text}" for split, text in shown.items() if text != first]
    if inside is not None and f"{100 * inside:.6g} %" != first:
        others.insert(0, f"{IN_DOMAIN}: {100 * inside:.6g} %")
    if not first:
        return others[0].removeprefix(f"{IN_DOMAIN}: ")
    return f"{first} ({', '.join(others)})" if others else first
