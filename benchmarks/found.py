"""What a part of the benchmark is asked and what it gives back: rows, goals, tables."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rich.table import Table

T = TypeVar("T")


@dataclass(frozen=True)
class Asked:
    """How much to measure.

    ``much``: ``tiny`` shows that it runs, and measures nothing; ``quick`` takes a few rows,
    ``usual`` what `make bench` takes, ``whole`` every row, an hour and more.
    """

    much: str = "usual"
    before: Path | None = None
    """A checkout of an older version of this program, to be compared with."""
    encodings: tuple[str, ...] = ()
    """Rows of attention and steps are left to these; none: all."""
    steps: int | None = None
    """Steps of the run whose memory is watched."""

    def pick(self, tiny: T, quick: T, usual: T, whole: T | None = None) -> T:
        """One value for each amount; None for whole: as usual."""
        known = {"tiny": tiny, "quick": quick, "usual": usual}
        known["whole"] = usual if whole is None else whole
        return known[self.much]

    def wants(self, encoding: str) -> bool:
        return not self.encodings or encoding in self.encodings

    @property
    def seconds(self) -> float:
        """For one row."""
        return self.pick(0.0, 0.5, 1.5, 4.0)

    @property
    def fewest(self) -> int:
        """Rounds, at least."""
        return self.pick(1, 2, 3, 5)


@dataclass(frozen=True)
class Goal:
    """A number that was asked for: ``least`` or ``most``, and what was aimed at."""

    what: str
    value: float
    least: float | None = None
    most: float | None = None
    aim: float | None = None

    @property
    def missed(self) -> bool:
        """No number misses every goal."""
        enough = self.least is None or self.value >= self.least
        return not (enough and (self.most is None or self.value <= self.most))

    @property
    def asked(self) -> str:
        """Like ``>= 15``."""
        return f"≥ {self.least:g}" if self.most is None else f"≤ {self.most:g}"


@dataclass
class Found:
    """What a part measured."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    def kept(self) -> dict[str, Any]:
        """For the JSON file."""
        return {
            "rows": self.rows,
            "goals": [{**asdict(goal), "missed": goal.missed} for goal in self.goals],
        }


def table(title: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Cells as given; a cell that ends in ``!`` missed its goal, and its row is red where there are
    colours."""
    shown = Table(*names, title=title, title_justify="left")
    for column, cell in zip(shown.columns, rows[0] if rows else [], strict=False):
        column.justify = "right" if cell[:1].isdigit() else "left"
    for cells in rows:
        missed = any(cell.endswith("!") for cell in cells)
        shown.add_row(*cells, style="bold red" if missed else None)
    return shown


def goal_table(goals: Sequence[Goal]) -> Table:
    """Every goal with what was measured."""
    rows = []
    for goal in goals:
        aim = "" if goal.aim is None else f"{goal.aim:g}"
        mark = " !" if goal.missed else ""
        rows.append([goal.what, f"{goal.value:.3g}{mark}", goal.asked, aim])
    return table("what was asked for; ! where it is missed", ["", "is", "asked", "aim"], rows)
