"""How much a part measures, and the table it returns."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rich.table import Table

T = TypeVar("T")


@dataclass(frozen=True)
class Scope:
    """How much to measure.

    Args:
        name: ``usual``; ``quick``: few rows and rounds; ``tiny``: that it runs, for tests.
        before: a checkout of an older version to compare with (part main_job).
    """

    name: str = "usual"
    before: Path | None = None

    def pick(self, tiny: T, quick: T, usual: T) -> T:
        """One value for each scope."""
        return {"tiny": tiny, "quick": quick, "usual": usual}[self.name]

    @property
    def seconds(self) -> float:
        """Time to spend on one row."""
        return self.pick(0.0, 1.0, 3.0)

    @property
    def rounds(self) -> int:
        """The least number of rounds."""
        return self.pick(1, 2, 3)


@dataclass
class Measured:
    """The rows of a part, for the JSON file, and the table to print."""

    table: Table
    rows: list[dict[str, Any]] = field(default_factory=list)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table whose columns of numbers are right-aligned."""
    made = Table(*columns, title=title, title_justify="left")
    for column, cell in zip(made.columns, rows[0] if rows else [], strict=False):
        column.justify = "right" if cell[:1].isdigit() else "left"
    for cells in rows:
        made.add_row(*cells)
    return made
