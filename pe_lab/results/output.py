"""How a command's tables leave it: for eyes, for a paper, or for a program."""

import sys
from collections.abc import Sequence
from typing import Any, Literal

import orjson
import polars as pl

from pe_lab.common.console import console
from pe_lab.results.tables import Sheet, Text, caption, latex, markdown, plain, terminal

MOST_ROWS = 60
"""In a table with lines around its cells: drawing thousands takes seconds."""
Format = Literal[Text, "csv", "json"]


def put(
    form: Format,
    sheets: Sequence[Sheet],
    rows: pl.DataFrame,
    runs: pl.DataFrame,
    notes: Sequence[str],
    facts: dict[str, Any],
) -> None:
    """Print the tables and, never silently dropped, the runs that are not finished.

    Args:
        form: table prints the sheets, the unfinished runs and the notes; markdown
            and latex the sheets alone, csv ``rows`` alone, the rest going to the error output;
            json ``facts``, ``rows``, ``unfinished`` and ``notes``.
        rows: the same as the sheets, a number a row, exact.
    """
    unfinished = runs.filter(pl.col("state") != "finished")
    columns = ("path", "task", "pe", "seed", "state", "step", "steps", "told")
    told = [*notes, *map(_stands, unfinished.iter_rows(named=True))]
    if form == "json":
        states = unfinished.select(columns).to_dicts()
        content = {**facts, "rows": rows.to_dicts(), "unfinished": states, "notes": notes}
        print(orjson.dumps(content, option=orjson.OPT_INDENT_2).decode())
        return
    if form == "table":
        for sheet in sheets:
            if len(sheet.rows) > MOST_ROWS:
                print(plain(sheet))
            else:
                console().print(*terminal(sheet, console().width), sep="\n")
            if told_below := caption(sheet, "*"):
                console().print(told_below, markup=False)
        for line in told:
            console().print(line, soft_wrap=True, markup=False)
        return
    if form == "csv":
        lists = pl.col([name for name, dtype in rows.schema.items() if dtype == pl.List])
        joined = rows.with_columns(lists.cast(pl.List(pl.String)).list.join(" "))
        print(joined.write_csv() if rows.width else "", end="")
    else:
        print("\n".join(map(markdown if form == "markdown" else latex, sheets)), end="")
    for line in told:
        print(line, file=sys.stderr)


def _stands(run: dict[str, Any]) -> str:
    if run["state"] == "broken":
        return str(run["told"])
    step = "" if run["step"] is None else f" at step {run['step']} of {run['steps']}"
    told = f": {run['told']}" if run["told"] else ""
    return f"{run['path']}  {run['state']}{step}{told}"
