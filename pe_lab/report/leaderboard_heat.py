"""P(generalises) of each entry on each task as a heat map: for the page of ``pe-lab leaderboard``
and as a picture."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from textwrap import wrap
from typing import Any

from pe_lab.report.charts import Spec
from pe_lab.report.page import DEEP
from pe_lab.report.pictures import HEAT_CONFIG, SHADE, heat_texts, heat_title
from pe_lab.results.leaderboard.families import (
    Rate,
    by_family,
    entry_order,
    missing,
    ordered,
    rates_by,
)
from pe_lab.results.leaderboard.scores import Scores
from pe_lab.results.presentation.leaderboard import (
    UNLEARNED,
    display_name,
    interval_text,
    marked_share,
)

GREY_NOTE = f"Grey, {UNLEARNED}: fewer than half of the seeds learn the task in domain"
STEP = 74
"""Width of a cell of the picture, in pixels."""


@dataclass(frozen=True)
class HeatCell:
    """P(generalises) of an entry on a task.

    Args:
        text, below: in %, and its interval; what is missing where it was not run.
        shade: from 0 (all generalise) to 1 (none); None where it was not run or not learned.
        unlearned: fewer than half of its runs fit the task in domain.
    """

    text: str
    below: str = ""
    shade: float | None = None
    unlearned: bool = False

    @property
    def deep(self) -> bool:
        """Whether the shade needs light ink."""
        return self.shade is not None and self.shade > DEEP


@dataclass(frozen=True)
class HeatRow:
    """An entry.

    Args:
        entry, name: its name, and as it is shown.
        cells: one of each task.
        runs: on how many of the tasks it has a score.
    """

    entry: str
    name: str
    cells: list[HeatCell]
    runs: int


@dataclass(frozen=True)
class HeatMap:
    """The entries on each task.

    Args:
        families: of the tasks that some entry has run, in the order of the columns.
        missing: the other tasks.
        rows, controls: the entries, ordered as in the table by family, and the controls.
    """

    families: Mapping[str, list[str]]
    missing: list[str]
    rows: list[HeatRow]
    controls: list[HeatRow]


def leaderboard_heat(found: Scores, tasks: Sequence[str]) -> HeatMap:
    """Of those of the tasks that were run."""
    run = set(found.cells["task"])
    families = by_family(found.suite, [task for task in tasks if task in run])
    columns = [task for several in families.values() for task in several]
    entries, controls = entry_order(found, tasks)
    entries = ordered(entries, rates_by(found, "generalises", families))
    rates = rates_by(found, "generalises", {task: [task] for task in columns})
    rows, closing = (
        [_row(found, rates.get(entry, {}), entry, columns) for entry in several]
        for several in (entries, controls)
    )
    return HeatMap(families, [task for task in tasks if task not in run], rows, closing)


def _row(found: Scores, rates: Mapping[str, Rate], entry: str, tasks: Sequence[str]) -> HeatRow:
    cells = []
    for task in tasks:
        rate = rates.get(task)
        if rate is None:
            cells.append(HeatCell(missing(found, entry, [task])))
        else:
            shade = None if rate.unlearned else round(1 - rate.share, 3)
            texts = marked_share(rate), interval_text(rate)
            cells.append(HeatCell(*texts, shade, unlearned=rate.unlearned > 0))
    return HeatRow(entry, display_name(found, entry, tasks), cells, len(rates))


def heat_picture(heat: HeatMap, suite: str, at_least_half: bool = False) -> Spec:
    """The heat map as a chart of its own, its columns family by family.

    Args:
        suite: its title.
        at_least_half: only the entries that have run half of these tasks or more.
    """
    columns = [(family, task) for family, tasks in heat.families.items() for task in tasks]
    least = len(columns) / 2 if at_least_half else 0
    rows = [row for row in heat.rows if row.runs >= least]
    named = {row.name: row for row in rows} | {
        f"{row.name} (control)": row for row in heat.controls
    }
    values: list[dict[str, Any]] = [
        {"entry": name, "family": family, "task": task, **asdict(cell)}
        for name, row in named.items()
        for (family, task), cell in zip(columns, row.cells, strict=True)
    ]
    caption = (
        f"P(generalises) in %, suite {suite}: the share of seeds with an error at or below the "
        f"threshold, mean over splits; below, its 95 % interval. {GREY_NOTE}."
    )
    if heat.missing:
        caption += f" Not run yet: {', '.join(heat.missing)}."
    tasks = [task for _, task in columns]
    place: Spec = {
        "y": {"field": "entry", "type": "nominal", "sort": list(named), "title": None,
              "axis": {"labelLimit": 600}},
        "x": {"field": "task", "type": "nominal", "sort": tasks, "title": None,
              "axis": {"orient": "top", "labelAngle": 0}},
    }  # fmt: skip
    grey = {"mark": {"type": "rect", "color": "var(--context)"}, "encoding": place}
    return {
        "title": heat_title(wrap(caption, max(14 * len(tasks) + 12, 40))),
        "data": {"values": values},
        "facet": {"column": {"field": "family", "sort": list(heat.families), "title": None}},
        "spacing": 8,
        "resolve": {"scale": {"x": "independent"}},
        "spec": {
            "width": {"step": STEP},
            "height": {"step": 32},
            "layer": [
                {
                    "transform": [{"filter": "datum.shade !== null"}],
                    "mark": "rect",
                    "encoding": {**place, "color": SHADE},
                },
                {"transform": [{"filter": "datum.unlearned"}], **grey},
                *heat_texts(place),
            ],
        },
        "config": {**HEAT_CONFIG, "header": {"labelFontSize": 12, "labelFontWeight": "bold"}},
    }
