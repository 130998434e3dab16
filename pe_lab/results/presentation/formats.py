"""A command's output: tables for a terminal, as markdown or as LaTeX; numbers as csv or JSON."""

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import orjson
import polars as pl
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Group
from rich.style import Style
from rich.table import Table as RichTable
from rich.text import Text as RichText

from pe_lab.core.console import console
from pe_lab.core.output import printable

Format = Literal["table", "markdown", "latex", "csv", "json"]
BOLD, ITALIC = Style(bold=True), Style(italic=True)
GAP = 2
"""Characters between two columns."""
MAX_ROWS = 40
"""Of a LaTeX table; more go on in a second one."""
MAX_STYLED_ROWS = 60
"""Of a table for the terminal; drawing thousands takes seconds."""
BREAKABLE = 16
"""A longer word may end a line behind its =, in a table that is too wide."""
LONGEST_WORD = 24
"""A longer word, such as a path, may be broken in a table that is too wide."""


class Cell(NamedTuple):
    """The text of a cell, whether it is the best of its column, and a detail behind the text, such
    as an interval, which is left out of a table that is too wide for a terminal."""

    text: str
    best: bool = False
    detail: str = ""

    @property
    def whole(self) -> str:
        return f"{self.text} {self.detail}" if self.detail else self.text


@dataclass(frozen=True)
class Table:
    """A table.

    Args:
        words: how many columns hold words; the others hold numbers.
        caption: how to read it.
        legend: what short names in it stand for.
        best, marks: what the mark of the best (shown if there is one) and other marks mean.
        closing: rows set apart at the end.
    """

    title: str
    columns: Sequence[str]
    words: int
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    legend: str = ""
    best: str = ""
    marks: str = ""
    closing: Sequence[Sequence[Cell]] = field(default=())


def print_tables(
    form: Format,
    tables: Sequence[Table],
    rows: pl.DataFrame,
    runs: pl.DataFrame | None,
    notes: Sequence[str],
    facts: dict[str, Any],
    found: str = "",
) -> None:
    """Print the tables and, never silently dropped, the runs that are not finished.

    Args:
        form: table prints the tables, the unfinished runs and the notes; markdown
            and latex the tables alone, csv ``rows`` alone, the rest going to the error output;
            json ``facts``, ``rows``, ``unfinished`` and ``notes``.
        rows: the same as the tables, one number per row, exact.
        runs: as ``read_runs`` has them; None: there are none to name.
        found: a sentence on what the tables show, the first line.
    """
    unfinished = None if runs is None else runs.filter(pl.col("state") != "finished")
    states = [] if unfinished is None else list(unfinished.iter_rows(named=True))
    lines = [*notes, *map(_state, states)]
    if form == "json":
        names = ("path", "task", "pe", "seed", "state", "step", "steps", "message")
        unfinished_rows = [{name: run[name] for name in names} for run in states]
        content = {**facts, **({"found": found} if found else {}), "rows": rows.to_dicts()}
        content |= {"unfinished": unfinished_rows, "notes": notes}
        print(orjson.dumps(content, option=orjson.OPT_INDENT_2).decode())
        return
    if form == "table":
        if found:
            console().print(found)
        _print(tables)
        for line in lines:
            console().print(line, soft_wrap=True)
        return
    if form == "csv":
        lists = pl.col([name for name, dtype in rows.schema.items() if dtype == pl.List])
        joined = rows.with_columns(lists.cast(pl.List(pl.String)).list.join(" "))
        text = joined.write_csv() if rows.width else ""
    else:
        text = "\n".join(map(markdown if form == "markdown" else latex, tables))
        text = f"{in_markdown(found)}\n\n{text}" if found and form == "markdown" else text
    print(printable(text), end="")
    for line in lines:
        print(printable(line), file=sys.stderr)


def _print(tables: Sequence[Table]) -> None:
    """What is the same below all tables stands once."""
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
        best = max(tables, key=lambda table: any(cell.best for row in table.rows for cell in row))
        # The longest also says what the others do.
        marks = max((table.marks for table in tables), key=len)
        console().print(caption(replace(best, legend="", marks=marks), "*"))


def _state(run: dict[str, Any]) -> str:
    if run["state"] == "broken":
        return str(run["message"])
    step = "" if run["step"] is None else f" at step {run['step']} of {run['steps']}"
    message = f": {run['message']}" if run["message"] else ""
    return f"{run['path']}  {run['state']}{step}{message}"


def terminal(table: Table, width: int) -> list[Group]:
    """The table for a console of this width, without caption and legend; the best has a star.

    If it is too wide, its headings are wrapped, then details are left out, then words are wrapped
    and the numbers split over several tables. No text is ever cut off.
    """
    every = range(len(table.columns))
    for text, wrapped in ((_starred, False), (_starred, True), (_short, True)):
        widths = [_width(table, n, text, wrapped) for n in every]
        if sum(widths) + GAP * len(widths) <= width + GAP:
            return [_group(table, table.title, every, widths, text)]
    words, numbers = every[: table.words], every[table.words :]
    narrow = [
        min(widths[n], LONGEST_WORD, _longest_piece(table, n)) if n else widths[n] for n in words
    ]
    left = width + GAP - sum(narrow) - GAP * len(narrow)
    parts: list[list[int]] = []
    room = 0
    for number in numbers:
        room -= widths[number] + GAP
        if room < 0:
            parts.append([])
            room = left - widths[number] - GAP
        parts[-1].append(number)
    titles = [table.title, *[f"{table.title} (continued)"] * len(parts)]
    return [
        _group(table, title, [*words, *part], {n: widths[n] for n in part}, _breakable)
        for title, part in zip(titles, parts or [[]], strict=False)
    ]


def _width(table: Table, number: int, text: Callable[[Cell], str], wrapped: bool) -> int:
    name = table.columns[number]
    head = name.split() or [""] if wrapped and number >= table.words else [name]
    cells = (text(row[number]) for row in (*table.rows, *table.closing))
    return max(map(cell_len, (*head, *cells)))


def _group(
    table: Table,
    title: str,
    shown: Sequence[int],
    widths: Sequence[int] | dict[int, int],
    text: Callable[[Cell], str],
) -> Group:
    """The title and these columns; those without a width may be wrapped."""
    found = RichTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    for number in shown:
        known = isinstance(widths, dict) and number not in widths
        found.add_column(
            table.columns[number],
            justify="left" if number < table.words else "right",
            width=None if known else widths[number],
            no_wrap=number == 0,
            overflow="fold",
        )
    for rows, style in ((table.rows, None), (table.closing, "dim")):
        for row in rows:
            cells = (RichText(printable(text(row[n])), BOLD if row[n].best else "") for n in shown)
            found.add_row(*cells, style=style)
    # A title of the table itself would be wrapped to its width.
    return Group(RichText(printable(title), ITALIC), found)


def _starred(cell: Cell) -> str:
    return f"{cell.whole} *" if cell.best else cell.whole


def _short(cell: Cell) -> str:
    text = cell.text.replace(" ± ", "±")
    return f"{text}*" if cell.best else text


def _breakable(cell: Cell) -> str:
    """With a space behind each = of a long word, where a line may end."""
    words = _short(cell).split(" ")
    return " ".join(w.replace("=", "= ") if len(w) > BREAKABLE else w for w in words)


def _longest_piece(table: Table, number: int) -> int:
    cells = (_breakable(row[number]) for row in table.rows)
    pieces = (piece for text in (table.columns[number], *cells) for piece in text.split())
    return max(map(cell_len, pieces), default=0)


def plain(table: Table) -> str:
    """The table as aligned columns without borders, for any number of rows."""
    rows = [table.columns, *(list(map(_starred, r)) for r in (*table.rows, *table.closing))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [str.ljust if n < table.words else str.rjust for n in range(len(widths))]
    lines = [
        "  ".join(side(text, width) for side, text, width in zip(sides, row, widths, strict=True))
        for row in rows
    ]
    return "\n".join([table.title, *map(str.rstrip, lines)])


def markdown(table: Table) -> str:
    """The table as GitHub's markdown, best in bold."""
    sides = ["---" if n < table.words else "---:" for n in range(len(table.columns))]
    lines = [[in_markdown(column) for column in table.columns], sides]
    for row in (*table.rows, *table.closing):
        cells = [(in_markdown(cell.whole), cell.best) for cell in row]
        lines.append([f"**{text}**" if best else text for text, best in cells])
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    parts = [in_markdown(table.title), body, in_markdown(caption(table, "Bold"))]
    return "\n\n".join(part for part in parts if part) + "\n"


def in_markdown(text: str) -> str:
    """The text as markdown shows it."""
    return re.sub(r"([\\`*_|<>~]|\[(?![-+]?\d[\d.]*, ))", r"\\\1", text)


def latex(table: Table) -> str:
    """The table for the packages booktabs and graphicx, best in bold: scaled down to the width of
    the text where it is wider, in parts of ``MAX_ROWS`` rows, with labels tab:flipflop-error."""
    parts = range(0, max(len(table.rows), 1), MAX_ROWS)
    return "\n".join(_latex_part(table, start) for start in parts)


def _latex_part(table: Table, start: int) -> str:
    def line(cells: Sequence[Cell]) -> str:
        written = [(in_latex(cell.whole), cell.best) for cell in cells]
        row = " & ".join(rf"\textbf{{{t}}}" if best else t for t, best in written) + r" \\"
        # Otherwise read as an argument of the rule or line break above.
        return "{}" + row if row.startswith(("[", "*")) else row

    title = table.title + (" (continued)" if start else "")
    below = f"{title}. {caption(table, 'Bold')}".strip()
    name = re.sub(r"\W+", "-", table.title.replace("%", "")).strip("-").removesuffix("-in")
    number = f"-{start // MAX_ROWS + 1}" if start else ""
    closing = [r"\midrule", *map(line, table.closing)] if table.closing else []
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{in_latex(below)}}}",
            rf"\label{{tab:{name}{number}}}",
            r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
            rf"\begin{{tabular}}{{{'l' * table.words}{'r' * (len(table.columns) - table.words)}}}",
            r"\toprule",
            line([Cell(column) for column in table.columns]),
            r"\midrule",
            *map(line, table.rows[start : start + MAX_ROWS]),
            *closing,
            r"\bottomrule",
            r"\end{tabular}}",
            r"\end{table}",
            "",
        ]
    )


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "±": r"$\pm$",
    "−": r"$-$",
    "≠": r"$\neq$",
    **{sign: "\\" + sign for sign in "&%$#_{}"},
}


def in_latex(text: str) -> str:
    """The text as LaTeX sets it."""
    return "".join(_LATEX.get(letter, letter) for letter in text)


def caption(table: Table, mark: str) -> str:
    """The legend, and how to read the table; ``mark`` is what marks the best."""
    marked = bool(table.best) and any(cell.best for row in table.rows for cell in row)
    best = f"{mark}: {table.best}" if marked else ""
    parts = [part for part in (table.legend, table.caption, table.marks, best) if part]
    return " ".join([*(part.removesuffix(".") + "." for part in parts[:-1]), *parts[-1:]])
