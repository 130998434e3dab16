"""Tables for a terminal, a README or a paper: the same cells in three formats."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from rich.markup import escape
from rich.table import Table

Text = Literal["table", "markdown", "latex"]


class Cell(NamedTuple):
    """What stands in a cell, and whether it is the best of its column."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Sheet:
    """A table's title, columns and rows; the first ``words`` columns hold words, the others
    numbers. ``caption`` says how to read it and ``best`` what the mark means, where there is one;
    ``closing`` rows stand apart at the end."""

    title: str
    columns: Sequence[str]
    words: int
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    best: str = ""
    closing: Sequence[Sequence[Cell]] = field(default=())


def terminal(sheet: Sheet) -> Table:
    """The sheet for a console, less its caption; a star stands for best."""
    table = Table(title=escape(sheet.title), title_justify="left")
    for number, column in enumerate(sheet.columns):
        table.add_column(escape(column), justify="left" if number < sheet.words else "right")
    for rows, style in ((sheet.rows, None), (sheet.closing, "dim")):
        for row in rows:
            cells = [f"[bold]{escape(c.text)} *[/]" if c.best else escape(c.text) for c in row]
            table.add_row(*cells, style=style)
        table.add_section()
    return table


def plain(sheet: Sheet) -> str:
    """The same as aligned columns, however many rows."""
    rows = [sheet.columns, *([f"{c.text} *" if c.best else c.text for c in row]
                             for row in (*sheet.rows, *sheet.closing))]  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [str.ljust if n < sheet.words else str.rjust for n in range(len(widths))]
    lines = [
        "  ".join(side(text, width) for side, text, width in zip(sides, row, widths, strict=True))
        for row in rows
    ]
    return "\n".join([sheet.title, *map(str.rstrip, lines)])


def markdown(sheet: Sheet) -> str:
    """The sheet as GitHub's markdown, best in bold."""
    sides = ["---" if n < sheet.words else "---:" for n in range(len(sheet.columns))]
    lines = [[_marked_down(column) for column in sheet.columns], sides]
    for row in (*sheet.rows, *sheet.closing):
        cells = [(_marked_down(cell.text), cell.best) for cell in row]
        lines.append([f"**{text}**" if best else text for text, best in cells])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    parts = [_marked_down(sheet.title), table, _marked_down(caption(sheet, "Bold"))]
    return "\n\n".join(part for part in parts if part) + "\n"


def latex(sheet: Sheet) -> str:
    """The sheet as a LaTeX table for the package booktabs, best in bold."""

    def line(cells: Sequence[Cell]) -> str:
        written = [(_in_latex(cell.text), cell.best) for cell in cells]
        return " & ".join(rf"\textbf{{{t}}}" if best else t for t, best in written) + r" \\"

    below = f"{sheet.title}. {caption(sheet, 'Bold')}".strip()
    closing = [r"\midrule", *map(line, sheet.closing)] if sheet.closing else []
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_in_latex(below)}}}",
            rf"\begin{{tabular}}{{{'l' * sheet.words}{'r' * (len(sheet.columns) - sheet.words)}}}",
            r"\toprule",
            line([Cell(column) for column in sheet.columns]),
            r"\midrule",
            *map(line, sheet.rows),
            *closing,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def caption(sheet: Sheet, mark: str) -> str:
    """How to read the sheet, where best has this mark."""
    marked = any(cell.best for row in sheet.rows for cell in row)
    return " ".join([sheet.caption, f"{mark}: {sheet.best}" if marked else ""]).strip()


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
