"""Tables that commands print: a polars frame, and a function that writes each of its columns.

>>> from pe_lab.core.console import percent
>>> frame = pl.DataFrame({"pe": ["rope", "cope"], "error": [0.281, 0.0004], "seed": [0, 0]})
>>> table = Table(frame, {"pe": str, "error": percent}, "flipflop: error in %", ("Seed 0.",))
>>> print(table.text(width=80))
flipflop: error in %
pe    error
───────────
rope   28.1
cope   0.04
Seed 0.

``table.markdown()`` and ``table.latex()`` are the same table; ``table.csv()`` and ``table.json()``
have every column of the frame with exact numbers. A command ends with one call:

>>> print_tables(options.format, [table])
"""

import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import orjson
import polars as pl

from pe_lab.core.output import printable

OutputFormat = Literal["table", "markdown", "latex", "csv", "json"]
Format = Callable[[Any], str]
"""Writes a value of a column. It is not called with None, which is written as ``-``."""
LONGEST = 40
"""Longer words are written below a table that is too wide, as [1], [2], .."""
NOT_A_TERMINAL = 160
"""Characters of a line where the output is not a terminal."""


def fixed(digits: int, suffix: str = "") -> Format:
    """Return a format with so many digits behind the point: ``fixed(3)(0.1)`` is 0.100."""
    return lambda value: f"{value:.{digits}f}{suffix}"


def write_value(value: Any) -> str:
    """Write numbers with at most four digits, and lists with spaces between their values."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return " ".join(map(write_value, value)) if isinstance(value, list) else str(value)


@dataclass(frozen=True)
class Column:
    """A column as text.

    Args:
        best: whether each cell is the best of its column, which is written with a star or in bold.
        holds_words: words stand at the left edge, numbers at the right.
    """

    heading: str
    cells: Sequence[str]
    best: Sequence[bool]
    holds_words: bool


@dataclass(frozen=True)
class Table:
    """A frame, and how it is shown.

    Args:
        formats: the columns that are shown, in this order, each with the function that writes its
            values; without any, all columns are shown.
        title: the line above the table.
        notes: lines below it.
        headings: what a column is called where it is not its name.

    A value may be a struct, for a cell of several numbers: its format gets a dictionary, and a
    cell whose ``best`` is true is the best of its column.
    """

    frame: pl.DataFrame
    formats: Mapping[str, Format] = field(default_factory=dict)
    title: str = ""
    notes: tuple[str, ...] = ()
    headings: Mapping[str, str] = field(default_factory=dict)

    def columns(self) -> list[Column]:
        """Return the columns that are shown, as text."""
        formats = self.formats or dict.fromkeys(self.frame.columns, write_value)
        return [
            Column(
                self.headings.get(name, name),
                [printable("-" if v is None else write(v)) for v in self.frame[name]],
                [isinstance(v, dict) and bool(v.get("best")) for v in self.frame[name]],
                self.frame.schema[name] == pl.String,
            )
            for name, write in formats.items()
        ]

    def text(self, width: int) -> str:
        """Return the table for a terminal of so many characters.

        If it is too wide, long words move below it, and the columns of numbers continue in further
        parts. The best of a column has a star.
        """
        columns, notes = _starred(self.columns()), self.notes
        if _width(columns) > width:
            columns, legend = _with_legend(columns)
            notes = (*legend, *notes)
        first = next((i for i, c in enumerate(columns) if not c.holds_words), len(columns))
        parts: list[list[Column]] = [columns[:first]]
        for column in columns[first:]:
            if len(parts[-1]) > first and _width([*parts[-1], column]) > width:
                parts.append(columns[:first])
            parts[-1] = [*parts[-1], column]
        return "\n".join(filter(None, [self.title, "\n\n".join(map(_aligned, parts)), *notes]))

    def markdown(self) -> str:
        """Return the table as GitHub's markdown, the best in bold."""
        columns = self.columns()
        lines = [[in_markdown(column.heading) for column in columns]]
        lines.append(["---" if column.holds_words else "---:" for column in columns])
        lines += _rows(columns, lambda text, best: f"**{text}**" if best else text, in_markdown)
        body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        notes = " ".join(map(in_markdown, self.notes))
        return "\n\n".join(filter(None, [in_markdown(self.title), body, notes])) + "\n"

    def latex(self) -> str:
        """Return the table for the packages booktabs and graphicx, the best in bold, with a label
        made of its title: ``tab:flipflop-error``."""
        columns = self.columns()
        rows = _rows(columns, lambda t, best: rf"\textbf{{{t}}}" if best else t, in_latex)
        heads = [in_latex(column.heading) for column in columns]
        # Without {} a line that begins with [ or * is an argument of the line break above.
        first, *lines = [f"{{}}{' & '.join(row)} \\\\" for row in (heads, *rows)]
        label = re.sub(r"\W+", "-", self.title.replace("in %", "")).strip("-")
        sides = "".join("l" if column.holds_words else "r" for column in columns)
        return "\n".join(
            [
                r"\begin{table}",
                r"\centering",
                rf"\caption{{{in_latex(' '.join([f'{self.title}.', *self.notes]))}}}",
                rf"\label{{tab:{label}}}",
                r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
                rf"\begin{{tabular}}{{{sides}}}",
                *(r"\toprule", first, r"\midrule", *lines, r"\bottomrule"),
                r"\end{tabular}}",
                r"\end{table}",
                "",
            ]
        )

    def csv(self) -> str:
        """Return all columns of the frame; the values of a list are separated by spaces."""
        lists = pl.col([name for name, kind in self.frame.schema.items() if kind == pl.List])
        joined = self.frame.with_columns(lists.cast(pl.List(pl.String)).list.join(" "))
        return printable(joined.write_csv()) if joined.width else ""

    def json(self) -> list[dict[str, Any]]:
        """Return the rows of the frame with all its columns."""
        return self.frame.to_dicts()


def print_tables(
    form: OutputFormat,
    tables: Sequence[Table],
    rows: pl.DataFrame | None = None,
    notes: Sequence[str] = (),
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Print tables and notes in one of the five formats.

    Args:
        rows: what csv and json have in place of the tables' frames: a number a row, exact.
        notes: lines below the tables. With csv, markdown and latex they go to the error output.
        facts: further keys of json, beside ``rows`` and ``notes``.
    """
    if rows is None:
        frames = [table.frame for table in tables]
        rows = pl.concat(frames, how="diagonal_relaxed") if frames else pl.DataFrame()
    if form == "json":
        content = {**(facts or {}), "rows": Table(rows).json(), "notes": list(notes)}
        print(orjson.dumps(content, default=str, option=orjson.OPT_INDENT_2).decode())
    elif form == "table":
        for line in _texts(tables, line_width()):
            print(line)
        for note in notes:
            print(printable(note))
    else:
        parts = [Table(rows)] if form == "csv" else tables
        print("\n".join(getattr(part, form)() for part in parts), end="")
        for note in notes:
            print(printable(note), file=sys.stderr)


def line_width() -> int:
    """Return the characters of a line: those of the terminal, else ``NOT_A_TERMINAL``."""
    width = shutil.get_terminal_size((NOT_A_TERMINAL, 24)).columns
    return width if sys.stdout.isatty() else NOT_A_TERMINAL


def _texts(tables: Sequence[Table], width: int) -> Iterable[str]:
    """Yield the tables with an empty line between them; notes that all of them share come once."""
    shared = [note for note in tables[0].notes if len(tables) > 1] if tables else []
    shared = [note for note in shared if all(note in table.notes for table in tables)]
    for number, table in enumerate(tables):
        own = tuple(note for note in table.notes if note not in shared)
        yield ("\n" if number else "") + replace(table, notes=own).text(width)
    yield from shared


def _starred(columns: Sequence[Column]) -> list[Column]:
    """Return the columns with a star behind the best; the others have space for one."""
    ends = [
        [" *" if best else "  " * any(column.best) for best in column.best] for column in columns
    ]
    return [
        replace(column, cells=list(map(str.__add__, column.cells, of_column)))
        for column, of_column in zip(columns, ends, strict=True)
    ]


def _with_legend(columns: Sequence[Column]) -> tuple[list[Column], list[str]]:
    """Replace words longer than ``LONGEST`` by [1], [2], ..; return what these stand for, too."""
    words = [text for column in columns if column.holds_words for text in column.cells]
    long = dict.fromkeys(text for text in words if len(text) > LONGEST)
    numbers = {text: f"[{number}]" for number, text in enumerate(long, 1)}
    shorter = [replace(c, cells=[numbers.get(text, text) for text in c.cells]) for c in columns]
    return shorter, [f"{number} {text}" for text, number in numbers.items()]


def _width(columns: Sequence[Column]) -> int:
    return sum(max(map(len, (c.heading, *c.cells))) + 2 for c in columns) - 2


def _aligned(columns: Sequence[Column]) -> str:
    """Return heading, rule and rows with two spaces between columns."""
    padded = []
    for column in columns:
        texts = [column.heading, *column.cells]
        pad = str.ljust if column.holds_words else str.rjust
        padded.append([pad(text, max(map(len, texts))) for text in texts])
    lines = ["  ".join(line).rstrip() for line in zip(*padded, strict=True)]
    return "\n".join([*lines[:1], "─" * _width(columns), *lines[1:]])


def _rows(
    columns: Sequence[Column], mark: Callable[[str, bool], str], escape: Format
) -> list[list[str]]:
    marked = [
        [mark(escape(text), best) for text, best in zip(c.cells, c.best, strict=True)]
        for c in columns
    ]
    return [list(row) for row in zip(*marked, strict=True)]


def in_markdown(text: str) -> str:
    """Return the text with the signs that markdown reads escaped; intervals ``[1, 2]`` stay."""
    return re.sub(r"([\\`*_|<>~]|\[(?![-+]?\d[\d.]*, ))", r"\\\1", text)


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
    """Return the text with the signs that LaTeX reads escaped."""
    return "".join(_LATEX.get(letter, letter) for letter in text)
