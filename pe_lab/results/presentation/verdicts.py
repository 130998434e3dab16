"""Verdicts of ``pe-lab why`` beside other tables. docs/why.md defines what they say."""

from collections.abc import Collection, Mapping

import polars as pl

from pe_lab.core.console import percent
from pe_lab.explain.cells import Cell as Diagnosed
from pe_lab.explain.verdict import CAUSES
from pe_lab.results.presentation.formats import Cell, Table
from pe_lab.results.verdicts import seeds_text

Verdicts = Mapping[tuple[str, str], Diagnosed]
"""(task, entry) -> its diagnosed seeds."""
COLUMN = "verdict"


def verdict_table(
    cells: Verdicts, shown: Collection[str] | None = None, splits: Collection[str] | None = None
) -> Table:
    """A row for each task and entry: the verdict, and the share of the added error that the
    intervention of this cause restores.

    Args:
        shown: the entries with a row; None: all.
        splits: the splits with rows; None: all.
    """
    rows = []
    for (task, entry), cell in cells.items():
        found = cell.verdict
        if (shown is None or entry in shown) and (splits is None or cell.split in splits):
            shares = (CAUSES.get(found.cause, ""), "oracle")
            numbers = [percent(found.shares.get(name)) for name in shares]
            words = (task, entry, cell.split, found.cause, seeds_text(cell), *numbers)
            rows.append([Cell(word) for word in words])
    return Table(
        "Why entries fail (pe-lab why): share restored of the error that the split adds, in %",
        ["task", "entry", "split", "verdict", "seeds", "restored", "oracle"],
        4,
        rows,
        "restored: by the intervention of this cause. Definitions: docs/why.md.",
    )


def with_verdicts(rows: pl.DataFrame, cells: Verdicts) -> pl.DataFrame:
    """The rows with a column of verdicts, null where a cell has none."""
    found = [(task, entry, cell.split, cell.verdict.cause) for (task, entry), cell in cells.items()]
    schema = dict.fromkeys(("task", "entry", "split", COLUMN), pl.String)
    table = pl.DataFrame(found, schema, orient="row")
    return rows.join(table, on=["task", "entry", "split"], how="left", maintain_order="left")
