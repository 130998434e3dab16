"""What a chart is made of: points in panels, panels in groups."""

from dataclasses import dataclass

from pe_lab.report.bands import Band
from pe_lab.report.charts import Spec


@dataclass(frozen=True)
class Point:
    """``setting`` is its rank in the section; ``split`` is given where a panel has several."""

    setting: int
    x: float
    band: Band
    split: str | None = None


@dataclass(frozen=True)
class Panel:
    """One chart; ``split`` is the one it shows, None where points have their own or none."""

    title: str
    spec: Spec
    points: list[Point]
    split: str | None = None
    guess: float | None = None


@dataclass(frozen=True)
class Group:
    """Panels under one heading; in ``share`` y is a share, shown in %."""

    name: str
    title: str
    note: str
    panels: list[Panel]
    share: bool = True

    @property
    def guessed(self) -> bool:
        """Whether a panel shows what guessing would get."""
        return any(panel.guess is not None for panel in self.panels)
