"""The report as one HTML file: an overview, a sentence for each task, and the rest folded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pe_lab.common.html import rendered
from pe_lab.report.charts import Chart, charts
from pe_lab.report.data import Section
from pe_lab.report.facts import Counts, Settings, settings
from pe_lab.report.inspected import Inspected
from pe_lab.report.tables import Grid, overview, sentence, table

GENERATOR = "pe-lab report"


@dataclass(frozen=True)
class Page:
    """The content of the page.

    Args:
        evaluated: the sections of evaluations, shown with their tasks.
        unread: a message for each file that cannot be read.
    """

    title: str
    command: str
    made: datetime
    with_versions: str
    trained: Sequence[Section]
    evaluated: Sequence[Section]
    states: Mapping[str, int]
    unfinished: Sequence[Sequence[str]]
    unread: Sequence[str]
    provenance: Mapping[str, Counts]
    inspected: Inspected


@dataclass(frozen=True)
class Part:
    """What the page shows of a section."""

    name: str
    grid: Grid
    charts: Sequence[Chart]
    note: str


@dataclass(frozen=True)
class Task(Part):
    """What the page shows of a task."""

    sentence: str
    settings: Settings
    evaluated: Sequence[Part]


def render(page: Page) -> str:
    """The HTML of the page."""
    tasks = [
        Task(
            *_shown(section),
            sentence(section),
            settings(section.runs),
            [Part(*_shown(since)) for since in page.evaluated if since.task == section.task],
        )
        for section in page.trained
    ]
    return rendered(
        "pe_lab.report",
        "report.html",
        generator=GENERATOR,
        title=page.title,
        page=page,
        tasks=tasks,
        overview=overview(page.trained),
    )


def _shown(section: Section) -> tuple[str, Grid, list[Chart], str]:
    return section.split or section.task, table(section), charts(section), section.note
