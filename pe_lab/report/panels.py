"""Charts as data: points in panels, panels in groups."""

from dataclasses import dataclass

from pe_lab.report.bands import Band
from pe_lab.report.charts import Spec


@dataclass(frozen=True)
class Point:
    """A point of a chart.

    Args:
        setting: its rank in the section.
        split: None if the panel has only one.
    """

    setting: int
    x: float
    band: Band
    split: str | None = None


@dataclass(frozen=True)
class Panel:
    """One chart.

    Args:
        split: the one it shows; None if points have splits of their own, or none.
        guess: the error of guessing.
    """

    title: str
    spec: Spec
    points: list[Point]
    split: str | None = None
    guess: float | None = None


@dataclass(frozen=True)
class Group:
    """Panels under one heading.

    Args:
        share: whether y is a share, shown in %.
    """

    name: str
    title: str
    note: str
    panels: list[Panel]
    share: bool = True

    @property
    def guessed(self) -> bool:
        """Whether a panel shows the error of guessing (read by page.html)."""
        return any(panel.guess is not None for panel in self.panels)
