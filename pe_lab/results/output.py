"""A command's output: tables for a terminal or a paper, or numbers for a program."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import orjson
import polars as pl

from pe_lab.common.console import console
from pe_lab.common.output import printable
from pe_lab.results.formats import Table, Text, caption, latex, markdown, plain, terminal

MAX_STYLED_ROWS = 60
"""Of a table for the terminal; drawing thousands takes seconds."""
Format = Literal[Text, "csv", "json"]


def print_tables(
    form: Format,
    tables: Sequence[Table],
    rows: pl.DataFrame,
    runs: pl.DataFrame,
    notes: Sequence[str],
    facts: dict[str, Any],
) -> None:
    """Print the tables and, never silently dropped, the runs that are not finished.

    Args:
        form: table prints the tables, the unfinished runs and the notes; markdown
            and latex the tables alone, csv ``rows`` alone, the rest going to the error output;
            json ``facts``, ``rows``, ``unfinished`` and ``notes``.
        rows: the same as the tables, one number per row, exact.
    """
    unfinished = runs.filter(pl.col("state") != "finished")
    columns = ("path", "task", "pe", "seed", "state", "step", "steps", "message")
    lines = [*notes, *map(_state, unfinished.iter_rows(named=True))]
    if form == "json":
        states = unfinished.select(columns).to_dicts()
        content = {**facts, "rows": rows.to_dicts(), "unfinished": states, "notes": notes}
        print(orjson.dumps(content, option=orjson.OPT_INDENT_2).decode())
        return
    if form == "table":
        # What is the same below all tables stands once.
        common = tables[0].caption if len({table.caption for table in tables}) == 1 else ""
        for number, table in enumerate(tables):
            if len(table.rows) > MAX_STYLED_ROWS:
                print(printable(plain(table)))
            else:
                console().print(*terminal(table, console().width), sep="\n")
            alone = replace(table, caption="", best="", marks="") if common else table
            if below := caption(alone, "*"):
                console().print(below)
            if number < len(tables) - 1:
                console().print()
        if common:
            best = max(
                tables, key=lambda table: any(cell.best for row in table.rows for cell in row)
            )
            # The longest also says what the others do.
            marks = max((table.marks for table in tables), key=len)
            console().print(caption(replace(best, legend="", marks=marks), "*"))
        for line in lines:
            console().print(line, soft_wrap=True)
        return
    if form == "csv":
        lists = pl.col([name for name, dtype in rows.schema.items() if dtype == pl.List])
        joined = rows.with_columns(lists.cast(pl.List(pl.String)).list.join(" "))
        text = joined.write_csv() if rows.width else ""
    else:
        text = "\n".join(map(markdown if form == "markdown" else latex, tables))
    print(printable(text), end="")
    for line in lines:
        print(printable(line), file=sys.stderr)


def _state(run: dict[str, Any]) -> str:
    if run["state"] == "broken":
        return str(run["message"])
    step = "" if run["step"] is None else f" at step {run['step']} of {run['steps']}"
    message = f": {run['message']}" if run["message"] else ""
    return f"{run['path']}  {run['state']}{step}{message}"
