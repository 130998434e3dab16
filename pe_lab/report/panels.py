"""Charts as data: points in panels, panels in groups."""

from collections.abc import Mapping
from dataclasses import dataclass

from pe_lab.report.bands import Band
from pe_lab.report.charts import Spec
from pe_lab.report.sections import METRICS, Section


@dataclass(frozen=True)
class Point:
    """A point of a chart.

    Args:
        setting: its rank in the section.
        bands: y, by metric; None: those of the setting at ``split``, or without a split its means.
    """

    setting: int
    x: float
    bands: Mapping[str, Band] | None = None
    split: str | None = None

    def band(self, section: Section, metric: str) -> Band | None:
        """y in this metric."""
        setting = section.settings[self.setting]
        if self.bands is not None:
            return self.bands.get(metric)
        return setting.cells[metric].get(self.split) if self.split else setting.ood[metric]


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
        metrics: those that it can show, the first where the chosen one is not among them.
    """

    name: str
    title: str
    note: str
    panels: list[Panel]
    metrics: tuple[str, ...] = METRICS

    @property
    def caption(self) -> str:
        """The note, and what the marks are, up to the name of the band."""
        marks = "Each point is a setting, bars are" if self.name == "cost" else (
            "Lines are means over seeds, bands"
        )  # fmt: skip
        if any(point.bands is None for panel in self.panels for point in panel.points):
            marks = f"Small dots are seeds. {marks}"
        return f"{self.note} {marks}"

    @property
    def guessed(self) -> bool:
        """Whether a panel shows the error of guessing."""
        return any(panel.guess is not None for panel in self.panels)
