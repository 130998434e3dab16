"""A table for a terminal, as markdown or as LaTeX."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from rich.cells import cell_len
from rich.style import Style
from rich.table import Table as RichTable
from rich.text import Text as RichText

from pe_lab.common.output import printable

Text = Literal["table", "markdown", "latex"]
BOLD = Style(bold=True)
EDGES = 3
"""Characters that a column takes besides its text."""
LONGEST_WORD = 24
"""A longer word, such as a path, may be broken in a table that is too wide."""


class Cell(NamedTuple):
    """The text of a cell, and whether it is the best of its column."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Table:
    """A table.

    Args:
        words: how many columns hold words; the others hold numbers.
        caption: how to read it.
        best: what the mark of the best means; shown if there is one.
        closing: rows set apart at the end.
    """

    title: str
    columns: Sequence[str]
    words: int
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    best: str = ""
    closing: Sequence[Sequence[Cell]] = field(default=())


def terminal(table: Table, width: int) -> list[RichTable]:
    """The table for a console of this width, without its caption; the best has a star.

    If it is too wide, intervals go below their means, then words are wrapped, then the numbers are
    split over several tables. Nothing is ever cut off.
    """
    lines = [*table.rows, *table.closing]
    columns = [
        [name, *(_starred(line[number]) for line in lines)]
        for number, name in enumerate(table.columns)
    ]
    whole = [max(map(cell_len, column)) for column in columns]
    if sum(whole) + EDGES * len(whole) < width:
        return [_table(table, table.title, range(len(columns)), {})]
    words, numbers = range(table.words), range(table.words, len(columns))
    widths = {}
    for number in numbers:
        name, *cells = columns[number]
        pieces = [*name.split(), *(line for cell in cells for line in _stacked(cell).split("\n"))]
        widths[number] = max(map(cell_len, pieces))
    # rich narrows the widest columns of words first, down to equal widths.
    longest = max(
        (cell_len(w) for n in words[1:] for t in columns[n] for w in t.split()), default=0
    )
    narrow = [min(whole[n], longest, LONGEST_WORD) if n else whole[n] for n in words]
    left = width - 1 - sum(narrow) - EDGES * len(narrow)
    parts: list[list[int]] = []
    room = 0
    for number in numbers:
        room -= widths[number] + EDGES
        if room < 0:
            parts.append([])
            room = left - widths[number] - EDGES
        parts[-1].append(number)
    titles = [table.title, *[f"{table.title} (continued)"] * len(parts)]
    return [
        _table(table, title, [*words, *part], widths)
        for title, part in zip(titles, parts, strict=False)
    ]


def _table(table: Table, title: str, shown: Sequence[int], widths: dict[int, int]) -> RichTable:
    """These columns of the table; those in ``widths`` with intervals below their means."""
    found = RichTable(title=title, title_justify="left")
    for number in shown:
        found.add_column(
            table.columns[number],
            justify="left" if number < table.words else "right",
            width=widths.get(number),
            no_wrap=number == 0,
            overflow="fold",
        )
    for rows, style in ((table.rows, None), (table.closing, "dim")):
        for row in rows:
            texts = {
                n: _stacked(_starred(row[n])) if n in widths else _starred(row[n]) for n in shown
            }
            found.add_row(
                *(RichText(printable(t), BOLD if row[n].best else "") for n, t in texts.items()),
                style=style,
            )
        found.add_section()
    return found


def _starred(cell: Cell) -> str:
    return f"{cell.text} *" if cell.best else cell.text


def _stacked(text: str) -> str:
    return text.replace(" (", "\n(")


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
    lines = [[_marked_down(column) for column in table.columns], sides]
    for row in (*table.rows, *table.closing):
        cells = [(_marked_down(cell.text), cell.best) for cell in row]
        lines.append([f"**{text}**" if best else text for text, best in cells])
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    parts = [_marked_down(table.title), body, _marked_down(caption(table, "Bold"))]
    return "\n\n".join(part for part in parts if part) + "\n"


def latex(table: Table) -> str:
    """The table as a LaTeX table for the package booktabs, best in bold."""

    def line(cells: Sequence[Cell]) -> str:
        written = [(_in_latex(cell.text), cell.best) for cell in cells]
        row = " & ".join(rf"\textbf{{{t}}}" if best else t for t, best in written) + r" \\"
        # Otherwise read as an argument of the rule or line break above.
        return "{}" + row if row.startswith(("[", "*")) else row

    below = f"{table.title}. {caption(table, 'Bold')}".strip()
    closing = [r"\midrule", *map(line, table.closing)] if table.closing else []
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_in_latex(below)}}}",
            rf"\begin{{tabular}}{{{'l' * table.words}{'r' * (len(table.columns) - table.words)}}}",
            r"\toprule",
            line([Cell(column) for column in table.columns]),
            r"\midrule",
            *map(line, table.rows),
            *closing,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def caption(table: Table, mark: str) -> str:
    """How to read the table; ``mark`` is what marks the best."""
    marked = any(cell.best for row in table.rows for cell in row)
    return " ".join([table.caption, f"{mark}: {table.best}" if marked else ""]).strip()


def _marked_down(text: str) -> str:
    return re.sub(r"([\\`*_|<>\[\]~])", r"\\\1", text)


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
    **{sign: "\\" + sign for sign in "&%$#_{}"},
}


def _in_latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)
