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

``table.markdown()`` and ``table.latex()`` are the same table; ``table.csv()`` has every
column of the frame with exact numbers. A command ends with one call:

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

OutputFormat = Literal["table", "markdown", "latex", "csv", "json"]
# Writes a value of a column. It is not called with None, which is written as -.
Format = Callable[[Any], str]
# A heading and the cells below it.
Column = list[str]
# Longer words are written below a table that is too wide, as [1], [2], ..
LONGEST = 40


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
    cell whose ``best`` is true is the best of its column, which has a star or is bold.
    """

    frame: pl.DataFrame
    formats: Mapping[str, Format] = field(default_factory=dict)
    title: str = ""
    notes: tuple[str, ...] = ()
    headings: Mapping[str, str] = field(default_factory=dict)

    def columns(self, escape: Format = str, best: str = "{}") -> list[Column]:
        """Return the columns that are shown, as text, each with its heading first.

        Args:
            best: how the best of a column is written, ``**{}**``.
        """
        columns = []
        for name, write in (self.formats or dict.fromkeys(self.frame.columns, str)).items():
            heading, values = self.headings.get(name, name), self.frame[name].to_list()
            marks = [best if isinstance(v, dict) and v.get("best") else "{}" for v in values]
            texts = ["-" if value is None else write(value) for value in values]
            cells = [mark.replace("{}", escape(t)) for mark, t in zip(marks, texts, strict=True)]
            columns.append([escape(heading), *cells])
        return columns

    def _are_words(self) -> list[bool]:
        return [self.frame.schema[name] == pl.String for name in self.formats or self.frame.columns]

    def text(self, width: int) -> str:
        """Return the table for a terminal of this many characters.

        Words stand at the left edge of their column, numbers at the right. If the table is too
        wide, long words move below it, and the columns of numbers continue in further parts.
        """
        columns, are_words, notes = self.columns(best="{} *"), self._are_words(), self.notes
        if _width(columns) > width:
            long = [t for c, words in zip(columns, are_words, strict=True) if words for t in c]
            long = list(dict.fromkeys(text for text in long if len(text) > LONGEST))
            short = {text: f"[{number}]" for number, text in enumerate(long, 1)}
            columns = [[short.get(text, text) for text in column] for column in columns]
            notes = (*(f"{number} {text}" for text, number in short.items()), *notes)
        pads = [str.ljust if words else str.rjust for words in are_words]
        padded = [[p(t, _width([c])) for t in c] for c, p in zip(columns, pads, strict=True)]
        first = padded[: (*are_words, False).index(False)]
        parts = [first]
        for column in padded[len(first) :]:
            if len(parts[-1]) > len(first) and _width([*parts[-1], column]) > width:
                parts.append(first)
            parts[-1] = [*parts[-1], column]
        body = "\n\n".join(map(_ruled, parts))
        return "\n".join(filter(None, [self.title, body, *notes]))

    def markdown(self) -> str:
        """Return the table as GitHub's markdown, the best in bold."""
        columns = self.columns(in_markdown, "**{}**")
        head, *rows = zip(*columns, strict=True)
        sides = ["---" if words else "---:" for words in self._are_words()]
        body = "\n".join(f"| {' | '.join(line)} |" for line in (head, sides, *rows))
        notes = " ".join(map(in_markdown, self.notes))
        return "\n\n".join(filter(None, [in_markdown(self.title), body, notes])) + "\n"

    def latex(self) -> str:
        """Return the table for the packages booktabs and graphicx, the best in bold, with a label
        made of its title: ``tab:flipflop-error``."""
        columns = self.columns(in_latex, r"\textbf{{}}")
        # Without {} a line that begins with [ or * is an argument of the line break above.
        head, *rows = [f"{{}}{' & '.join(row)} \\\\" for row in zip(*columns, strict=True)]
        label = re.sub(r"\W+", "-", self.title.replace("in %", "")).strip("-")
        sides = "".join("l" if words else "r" for words in self._are_words())
        return "\n".join(
            [
                r"\begin{table}",
                r"\centering",
                rf"\caption{{{in_latex(' '.join([f'{self.title}.', *self.notes]))}}}",
                rf"\label{{tab:{label}}}",
                r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
                rf"\begin{{tabular}}{{{sides}}}",
                *(r"\toprule", head, r"\midrule", *rows, r"\bottomrule"),
                r"\end{tabular}}",
                r"\end{table}",
                "",
            ]
        )

    def csv(self) -> str:
        """Return all columns of the frame; the values of a list are separated by spaces."""
        lists = pl.col([name for name, kind in self.frame.schema.items() if kind == pl.List])
        joined = self.frame.with_columns(lists.cast(pl.List(pl.String)).list.join(" "))
        return joined.write_csv() if joined.width else ""


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
        content = {**(facts or {}), "rows": rows.to_dicts(), "notes": list(notes)}
        print(orjson.dumps(content, default=str, option=orjson.OPT_INDENT_2).decode())
        return
    if form == "table":
        lines: Iterable[str] = _texts(tables)
    else:
        parts = [Table(rows)] if form == "csv" else tables
        lines = [getattr(part, form)().removesuffix("\n") for part in parts]
    for line in filter(None, lines):
        print(line)
    for note in notes:
        print(note, file=sys.stdout if form == "table" else sys.stderr)


def _texts(tables: Sequence[Table]) -> Iterable[str]:
    """Yield the tables with an empty line between them; notes that all of them share come once."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 160
    shared = [note for note in tables[0].notes if len(tables) > 1] if tables else []
    shared = [note for note in shared if all(note in table.notes for table in tables)]
    for number, table in enumerate(tables):
        own = tuple(note for note in table.notes if note not in shared)
        yield ("\n" if number else "") + replace(table, notes=own).text(width)
    yield from shared


def _width(columns: Sequence[Column]) -> int:
    return sum(max(map(len, column)) + 2 for column in columns) - 2


def _ruled(columns: Sequence[Column]) -> str:
    """Return the heading, a rule and the rows of padded columns."""
    head, *rows = ["  ".join(line).rstrip() for line in zip(*columns, strict=True)]
    return "\n".join([head, "─" * _width(columns), *rows])


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
