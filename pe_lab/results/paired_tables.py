"""The tables of ``pe-lab compare a=A b=B``."""

from typing import Any

import polars as pl

from pe_lab.common.console import percent
from pe_lab.results.cell_text import CLUSTERS, rate_intervals, thresholds
from pe_lab.results.formats import Cell, Table
from pe_lab.results.paired import EXACT


def paired_tables(tests: pl.DataFrame) -> list[Table]:
    """A table for each pair of settings."""
    tables = []
    for part in tests.partition_by("task", "setting_a", "setting_b", maintain_order=True):
        rows = part.rows(named=True)
        first = max(rows, key=lambda row: row["n"])
        a, b = first["a"], first["b"]
        several = tests.filter(task=first["task"])["setting_a"].n_unique() > 1
        chosen = f", {first['differs']}" if several and first["differs"] else ""
        caption = (
            f"Seeds {','.join(map(str, first['seeds']))}; settings {first['setting_a']} and "
            f"{first['setting_b']}. "
        )
        if first["n"] <= 1:
            few = "One seed" if first["n"] else "No split that both were measured on"
            caption += f"{few}: nothing can be tested."
        else:
            caption += _how_to_read(part, first)
        tables.append(
            Table(
                title=f"{first['task']}: error in %, {a} against {b}, seed by seed{chosen}",
                columns=["split", a, b, "difference", "p (t)", "Holm", "p (flips)", "Holm"],
                words=1,
                rows=[_cells(row, first["n"]) for row in rows],
                caption=caption,
            )
        )
    return tables


def _how_to_read(part: pl.DataFrame, first: dict[str, Any]) -> str:
    n, exact = first["n"], "exact" if first["n"] <= EXACT else "10 000 random"
    marked = part.select(pl.any_horizontal("clusters", "clusters_a", "clusters_b").any()).item()
    clustered = ""
    if marked:
        clustered = (
            f" {CLUSTERS}: seeds in two clusters; differences in two clusters have no interval and "
            "no t-test."
        )
    counts = [(row[f"k_{side}"], row["n"]) for row in part.iter_rows(named=True) for side in "ab"]
    return (
        f"Of each: k/n, the seeds with an error of at most {thresholds(part)}, the median and, in "
        "parentheses where it fits and the seeds differ, the mean. "
        f"{rate_intervals(counts)}. "
        f"Difference: {first['a']} - {first['b']} in percentage points, its mean and in "
        f"parentheses the 95 % interval (Student's t, paired).{clustered} p: paired t-test and "
        f"{exact} sign flips, two-sided; Holm: corrected over the splits. With {n} seeds sign "
        f"flips cannot go below p = {first['p_least']:.3g}."
    )


def _cells(row: dict[str, Any], most: int) -> list[Cell]:
    """A line of the table.

    Args:
        most: seeds of the table; shown where those of the row are fewer.
    """
    if not row["n"]:
        return [Cell(text) for text in (row["split"], *["n/a"] * 3, *["-"] * 4)]
    difference = f"{100 * row['difference']:+.2f}"
    if row["clusters"]:
        difference += CLUSTERS
    elif row["p_t"] is not None:
        difference += f" ({100 * row['low']:+.2f}..{100 * row['high']:+.2f})"
    elif row["n"] > 1:
        difference += " at every seed"
    ps = ["-" if row[p] is None else f"{row[p]:.3g}"
          for p in ("p_t", "p_t_holm", "p_flips", "p_flips_holm")]  # fmt: skip
    split = row["split"] if row["n"] == most else f"{row['split']} n={row['n']}"
    return [Cell(split), _side(row, "a"), _side(row, "b"), *map(Cell, (difference, *ps))]


def _side(row: dict[str, Any], side: str) -> Cell:
    """``7/12‡ 1.05 (3.25)``: k of n, the median, and the mean where the seeds differ."""
    errors = row[f"errors_{side}"]
    if len(errors) == 1:
        return Cell(percent(errors[0]))
    mark = CLUSTERS if row[f"clusters_{side}"] else ""
    mean = "" if min(errors) == max(errors) else f"{100 * row[f'mean_{side}']:.2f}"
    rate = f"{row[f'k_{side}']}/{row['n']}{mark}"
    return Cell(f"{rate} {percent(row[f'median_{side}'])}", detail=mean)
