"""A table of coloured cells, for the page of the leaderboard."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from pe_lab.report.charts import Spec

NOT_RUN = "missing"
UNLEARNED = "unlearned"


@dataclass(frozen=True)
class Cell:
    """A cell of a grid.

    Args:
        text, below: in the cell, and in small print below.
        share: the place of its colour from 0, the worst, to 1, the best; None without a colour.
        kind: ``missing`` (not run) or ``unlearned``, which have colours of their own.
        order: what its column is sorted by.
        title: shown on hovering.
    """

    text: str
    below: str = ""
    share: float | None = None
    kind: str = ""
    order: float | None = None
    title: str = ""


@dataclass(frozen=True)
class Column:
    """A column: its name, notes below it, the id of what it links to, and its group."""

    name: str
    notes: Sequence[str] = ()
    link: str = ""
    group: str = ""


@dataclass(frozen=True)
class Row:
    """A row: its name, what is below the name, and a cell for each column."""

    name: str
    below: str
    cells: Sequence[Cell]


@dataclass(frozen=True)
class Grid:
    """A table of coloured cells."""

    title: str
    caption: str
    corner: str
    columns: Sequence[Column]
    rows: Sequence[Row] = field(default_factory=list)

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The groups of the columns, each with its number of columns; empty without groups."""
        found = [(name, len(list(of))) for name, of in groupby(c.group for c in self.columns)]
        return found if any(name for name, _ in found) else []


def of_grid(spec: Spec, rows: Iterable[str], columns: int) -> Spec:
    """A grid on white, with room for a font that is a sixth wider than the one it is made for: a
    letter of 12 pixels takes 6. The title is wider than a grid of few columns."""
    axis = {"domain": False, "ticks": False, "labelFontSize": 12, "grid": False}
    left, right = max(map(len, rows), default=0), 60 if columns < 8 else 0
    return spec | {
        "padding": {"left": 5 + left, "right": 5 + right, "top": 5, "bottom": 5},
        "config": {"background": "#fff", "font": "inherit", "view": {"stroke": None}, "axis": axis},
    }
