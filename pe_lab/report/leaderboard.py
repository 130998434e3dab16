"""The page of ``pe-lab leaderboard``: heat map, every seed as a dot, cost beside error, profiles,
published numbers and failures, in one file that loads nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import resources
from typing import Any

import orjson
from markupsafe import Markup

from pe_lab.common.vega import vega_script
from pe_lab.report.charts import CONFIG
from pe_lab.report.leaderboard_charts import Chart, profile_chart, task_charts
from pe_lab.report.leaderboard_heat import GREY_NOTE, leaderboard_heat
from pe_lab.report.page import script_hash, templates
from pe_lab.results.leaderboard.scores import Scores
from pe_lab.results.presentation.formats import Table
from pe_lab.results.presentation.leaderboard import task_table
from pe_lab.results.presentation.leaderboard_details import (
    across_tables,
    phases_table,
    published_table,
)


@dataclass(frozen=True)
class TaskPart:
    """A task's section: its table, that of its other phases, and charts."""

    name: str
    table: Table
    others: Table | None
    charts: Sequence[Chart]


def leaderboard_page(
    found: Scores, tasks: Sequence[str], notes: Sequence[str], mark: str, command: str
) -> str:
    """The HTML of the page.

    Args:
        notes: what stands at its end.
        mark: the element by which a page is known as ours.
        command: that made it.
    """
    run = [task for task in tasks if task in set(found.cells["task"])]
    heat = leaderboard_heat(found, tasks)
    shown = [row.entry for row in (*heat.rows, *heat.controls)]
    parts = [
        TaskPart(
            task,
            task_table(found, task),
            phases_table(found, task),
            task_charts(found, task, shown),
        )
        for task in run
    ]
    profile = [profile_chart(found, run, shown)] if run else []
    charts = [chart for part in parts for chart in part.charts] + profile
    specs = {chart.id: {"config": CONFIG, **chart.spec} for chart in charts}
    source = resources.files("pe_lab.report")
    scripts = [vega_script(), (source / "leaderboard.js").read_text("utf-8")]
    return (
        templates()
        .get_template("leaderboard.html")
        .render(
            mark=Markup(mark),
            suite=found.suite.title,
            made=datetime.now().astimezone(),
            command=command,
            heat=heat,
            parts=parts,
            profile=profile,
            across=across_tables(found, run) if run else None,
            published=published_table(found, tasks),
            notes=notes,
            grey=GREY_NOTE,
            style=Markup((source / "page.css").read_text("utf-8")),
            scripts=[Markup(script) for script in scripts],
            hashes=" ".join(script_hash(script) for script in scripts),
            specs=Markup(_escaped(specs)),
        )
    )


def _escaped(value: Any) -> str:
    """JSON that cannot end the script element."""
    text = orjson.dumps(value).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
