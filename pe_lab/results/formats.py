"""A table for a terminal, as markdown or as LaTeX."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Group
from rich.style import Style
from rich.table import Table as RichTable
from rich.text import Text as RichText

from pe_lab.common.output import printable
from pe_lab.results.escape import in_latex, in_markdown

Text = Literal["table", "markdown", "latex"]
BOLD, ITALIC = Style(bold=True), Style(italic=True)
GAP = 2
"""Characters between two columns."""
MAX_ROWS = 40
"""Of a LaTeX table; more go on in a second one."""
LONG_WORD = 14
"""A longer word of a table that is too wide may be broken after =."""
LONGEST_WORD = 24
"""A longer word, such as a path, may be broken in a table that is too wide."""


class Cell(NamedTuple):
    """The text of a cell, whether it is the best of its column, and what stands behind the text in
    parentheses, left out of a table that is too wide for a terminal."""

    text: str
    best: bool = False
    detail: str = ""

    @property
    def whole(self) -> str:
        return f"{self.text} ({self.detail})" if self.detail else self.text


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


def terminal(table: Table, width: int) -> list[Group]:
    """The table for a console of this width, without caption and legend; the best has a star.

    If it is too wide, 1.0 ± 0.2 becomes 1.0±0.2, then details are left out, then intervals go
    below their means, then words are wrapped, at = too where they are long, then the numbers are
    split over several tables. No text is ever cut off.
    """
    for text in (_starred, _narrow, _short):
        columns = [
            [name, *(text(line[number]) for line in (*table.rows, *table.closing))]
            for number, name in enumerate(table.columns)
        ]
        whole = [max(map(cell_len, column)) for column in columns]
        if sum(whole) + GAP * len(whole) <= width + GAP:
            return [_table(table, table.title, range(len(columns)), {}, text)]
    words, numbers = range(table.words), range(table.words, len(columns))
    for number in words[1:]:
        columns[number] = list(map(_breakable, columns[number]))
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
        _table(table, title, [*words, *part], widths, lambda cell: _breakable(_short(cell)))
        for title, part in zip(titles, parts or [[]], strict=False)
    ]


def _table(
    table: Table,
    title: str,
    shown: Sequence[int],
    widths: dict[int, int],
    text: Callable[[Cell], str],
) -> Group:
    """The title and these columns; those in ``widths`` have intervals below their means."""
    found = RichTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
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
            texts = {n: _stacked(text(row[n])) if n in widths else text(row[n]) for n in shown}
            found.add_row(
                *(RichText(printable(t), BOLD if row[n].best else "") for n, t in texts.items()),
                style=style,
            )
    # A title of the table itself would be wrapped to its width.
    return Group(RichText(printable(title), ITALIC), found)


def _starred(cell: Cell) -> str:
    return f"{cell.whole} *" if cell.best else cell.whole


def _narrow(cell: Cell) -> str:
    return _starred(cell).replace(" ± ", "±").replace(" *", "*")


def _short(cell: Cell) -> str:
    return _narrow(cell._replace(detail=""))


def _breakable(text: str) -> str:
    """With a space behind each = of a long word."""
    words = text.split(" ")
    return " ".join(w.replace("=", "= ") if len(w) > LONG_WORD else w for w in words)


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
    lines = [[in_markdown(column) for column in table.columns], sides]
    for row in (*table.rows, *table.closing):
        cells = [(in_markdown(cell.whole), cell.best) for cell in row]
        lines.append([f"**{text}**" if best else text for text, best in cells])
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    parts = [in_markdown(table.title), body, in_markdown(caption(table, "Bold"))]
    return "\n\n".join(part for part in parts if part) + "\n"


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


def caption(table: Table, mark: str) -> str:
    """The legend, and how to read the table; ``mark`` is what marks the best."""
    marked = bool(table.best) and any(cell.best for row in table.rows for cell in row)
    best = f"{mark}: {table.best}" if marked else ""
    parts = [part for part in (table.legend, table.caption, table.marks, best) if part]
    return " ".join([*(part.removesuffix(".") + "." for part in parts[:-1]), *parts[-1:]])
