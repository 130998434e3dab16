"""The page and the picture of ``pe-lab leaderboard``: success rates of entries on tasks."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import product
from types import MappingProxyType
from typing import Any

import altair as alt
import polars as pl

from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.report.charts import CONFIG, Chart, Spec, specification
from pe_lab.report.html import rendered
from pe_lab.report.tables import NOT_RUN, UNLEARNED, Cell, Column, Grid, Row, of_grid
from pe_lab.results.leaderboard import families
from pe_lab.results.leaderboard.families import (
    Rate,
    by_family,
    compared_columns,
    entry_order,
    halves,
    ordered,
    rates_by,
)
from pe_lab.results.leaderboard.scores import Scores
from pe_lab.results.presentation.formats import Table
from pe_lab.results.presentation.leaderboard import (
    display_name,
    interval_text,
    marked_share,
    task_table,
)
from pe_lab.results.presentation.verdicts import Verdicts, verdict_table

GENERATOR = "pe-lab leaderboard"


def leaderboard_grid(
    found: Scores,
    tasks: Sequence[str],
    why: Verdicts = MappingProxyType({}),
) -> Grid:
    """Entries by tasks, the controls last.

    Args:
        why: verdicts, shown on hovering.
    """
    run = set(found.cells["task"])
    by = by_family(found.suite, [task for task in tasks if task in run])
    columns = [Column(task, link=f"task-{task}", group=f) for f, of in by.items() for task in of]
    names = [column.name for column in columns]
    entries, controls = entry_order(found, tasks)
    rates = rates_by(found, "generalises", {task: [task] for task in names})
    entries = ordered(entries, rates_by(found, "generalises", by))
    caption = (
        "In %: the success rate, averaged over the scored splits; below, its 95 % interval. "
        "Grey, °: fewer than half of the seeds fit the task in domain. Hatched: no score."
    )
    if missing := [task for task in tasks if task not in run]:
        caption += f" Not run yet: {', '.join(missing)}."
    return Grid(
        f"Success rate by entry and task, suite {found.suite.title}",
        caption,
        "entry",
        columns,
        [
            Row(
                display_name(found, entry, names),
                "(control)" if entry in controls else "",
                [_cell(found, rates.get(entry, {}), entry, task, why) for task in names],
            )
            for entry in (*entries, *controls)
        ],
    )


def _cell(found: Scores, rates: Mapping[str, Rate], entry: str, task: str, why: Verdicts) -> Cell:
    rate = rates.get(task)
    if rate is None:
        reason = families.missing(found, entry, [task])
        return Cell("" if reason == families.NOT_RUN else reason, kind=NOT_RUN, title=reason)
    text, below = marked_share(rate), interval_text(rate)
    title = why[task, entry].sentence if (task, entry) in why else ""
    if rate.unlearned:
        return Cell(text, below, kind=UNLEARNED, order=rate.share, title=title)
    return Cell(text, below, round(rate.share, 3), order=rate.share, title=title)


def leaderboard_page(
    found: Scores, tasks: Sequence[str], why: Verdicts, notes: Sequence[str], command: str
) -> str:
    """The HTML of the page.

    Args:
        why: verdicts of tasks and entries.
        notes: what is at its end.
        command: that made it.
    """
    grid = leaderboard_grid(found, tasks, why=why)
    run = [column.name for column in grid.columns]
    return rendered(
        "pe_lab.report",
        "leaderboard.html",
        generator=GENERATOR,
        title=f"Which encoding generalises? Suite {found.suite.title}",
        made=datetime.now().astimezone(),
        command=command,
        overview=grid,
        columns={name: column.words for name, column in found.suite.columns.items()},
        entries=dict.fromkeys(
            halves(found.suite, entry)[0].split()[0]
            for several in entry_order(found, run)
            for entry in several
        ),
        tasks=[
            (task, [task_table(found, task), _verdicts(task, why)], _seeds(found, task))
            for task in run
        ],
        notes=notes,
    )


def _verdicts(task: str, why: Verdicts) -> Table:
    """Those of a task, which its rows need not name."""
    made = verdict_table({key: why[key] for key in why if key[0] == task})
    return replace(made, columns=made.columns[1:], rows=[row[1:] for row in made.rows])


LIGHT, DARK = "#e8f0f8", "#08306b"
"""Of success rates 0 and 100 %."""
BRIGHT = 0.6
"""From this success rate on, text is white."""


def heat_map(
    found: Scores,
    tasks: Sequence[str],
    at_least_half: bool = False,
    shown: Collection[str] | None = None,
) -> Spec:
    """Entries by tasks as a picture: dark where all seeds generalise, grey where most do not learn
    the task, hatched where it was not run. A cell has a part for each of the suite's first two
    columns.

    Args:
        at_least_half: only the entries that have run half of these tasks or more.
        shown: these entries; None: all that have run one of these tasks.
    """
    suite = found.suite
    run = [task for task in tasks if task in {*found.cells["task"]}]
    by = by_family(suite, run)
    rates = rates_by(found, "generalises", {task: [task] for task in run})
    parts = compared_columns(suite)
    least = len(run) / 2 if at_least_half else 1
    both = entry_order(found, tasks)
    # A row for the first of both columns that is there: an own entry may have the second alone.
    both_shown = [e for e in (*both[0], *both[1]) if shown is None or e in shown]
    of_parts = [(halves(suite, e), e) for e in both_shown]
    of_parts.sort(key=lambda pair: pair[0][1] == parts[0])
    row = {base: entry for (base, part), entry in of_parts if part in parts}
    entries, controls = (
        [e for e in several if e in row.values() and len(rates.get(e, {})) >= least]
        for several in both
    )
    entries = ordered(entries, rates_by(found, "generalises", by))
    of_half = {halves(suite, entry): of for entry, of in rates.items()}
    values = []
    for entry, (family, of), part in product((*entries, *controls), by.items(), parts):
        name = display_name(found, entry, run) + (" (control)" if entry in controls else "")
        rated = of_half.get((halves(suite, entry)[0], part), {})
        values += [
            {"row": name, "column": task, "group": family, "part": part, **_part(rated.get(task))}
            for task in of
        ]
    lines = [f"Success rate in %, averaged over the scored splits, suite {suite.title}."]
    lines += [f"Left: {parts[0]}; right: {parts[1]}."] if len(parts) > 1 else []
    lines.append("Grey, °: fewer than half of the seeds learn the task. Hatched: not run.")
    if left := [task for task in tasks if task not in run]:
        lines.append(f"Not run yet: {', '.join(left)}.")
    layers = alt.layer(*_halves(run, values, parts), data=alt.NamedData("rows"))
    chart: Any = layers.properties(width=alt.Step(76 // len(parts)), height=alt.Step(26)).facet(
        column=alt.Column("group:N", sort=list(by), title=None), spacing=8
    )
    title = alt.TitleParams(lines, anchor="start", fontWeight="normal", fontSize=12)
    spec = specification(chart.resolve_scale(x="independent").properties(title=title), values)
    return of_grid(spec, {value["row"] for value in values}, len(run))


def _part(rate: Rate | None) -> dict[str, Any]:
    """What a part of a cell shows."""
    if rate is None:
        return {"kind": NOT_RUN, "text": ""}
    kind = UNLEARNED if rate.unlearned else ""
    return {"kind": kind, "text": marked_share(rate), "share": round(rate.share, 3)}


def _halves(
    tasks: Sequence[str], values: Sequence[Mapping[str, Any]], parts: Sequence[str]
) -> list[alt.Chart]:
    """The cells, their text, and the hatching of those that were not run."""
    names = list(dict.fromkeys(value["row"] for value in values))
    # At the grid's 12 pixels neighbours like copy_unique and selective_copy overlap.
    top = alt.Axis(orient="top", labelAngle=0, labelFontSize=10)
    shade = alt.Scale(domain=[0, 1], range=[LIGHT, DARK])
    cells = alt.Chart().encode(
        x=alt.X("column:N", sort=list(tasks), title=None, axis=top, scale=alt.Scale(padding=0.04)),
        xOffset=alt.XOffset("part:N", sort=list(parts)),
        y=alt.Y("row:N", sort=names, title=None, axis=alt.Axis(labelLimit=600)),
    )
    white = f"datum.kind === '' && datum.share >= {BRIGHT}"
    ink = alt.condition(white, alt.value("#fff"), alt.value("#222"))
    return [
        cells.transform_filter("datum.kind === ''")
        .mark_rect(stroke="#fff")
        .encode(color=alt.Color("share:Q", scale=shade, legend=None)),
        cells.transform_filter(f"datum.kind === '{UNLEARNED}'").mark_rect(
            color="var(--context)", stroke="#fff"
        ),
        cells.transform_filter(f"datum.kind === '{NOT_RUN}'").mark_text(color="#bbb", text="╱╱"),
        cells.mark_text(fontSize=11).encode(text="text:N", color=ink),
    ]


def _seeds(
    found: Scores,
    task: str,
    shown: Collection[str] | None = None,
    splits: Collection[str] | None = None,
    width: int = 165,
    columns: int = 4,
) -> Chart:
    """Every seed as a dot on each scored split, and k/n.

    Args:
        shown: these entries; None: all.
        splits: these splits; None: all.
        width: of a panel.
        columns: panels beside each other.
    """
    one = found.suite.tasks[task]
    chosen = [s for s in (IN_DOMAIN, *one.generalises) if splits is None or s in splits]
    listed = [entry for several in entry_order(found, [task]) for entry in several]
    entries = [entry for entry in listed if shown is None or entry in shown]
    entries = ordered(entries, rates_by(found, "generalises", {task: [task]}))
    values = _seed_values(found, task, entries, chosen)
    scale = alt.Scale(type="sqrt", domain=[0, 100], clamp=True)
    axis = alt.Axis(title="error (%)", values=[0, 1, 5, 20, 50, 100])
    y = alt.Y("entry:N", sort=entries, title=None)
    dot = alt.Chart().transform_filter("isValid(datum.error)")
    dot = dot.mark_circle(size=26, opacity=0.55, color="var(--c1)")
    limit = alt.Chart().mark_rule(color="var(--c2)", strokeDash=[3, 3])
    beside = alt.Chart().transform_filter("isValid(datum.rate)")
    beside = beside.mark_text(align="left", color="var(--muted)")
    chart = (
        alt.layer(
            limit.encode(x=alt.X("limit:Q", scale=scale, axis=axis)),
            dot.encode(
                x=alt.X("error:Q", scale=scale, axis=axis),
                y=y,
                tooltip=["entry:N", "seed:N", "error:Q"],
            ),
            beside.encode(x=alt.value(width + 4), y=y, text="rate:N"),
            data=alt.NamedData("rows"),
        )
        .properties(width=width, height=alt.Step(14))
        .facet(alt.Facet("split:N", sort=chosen, title=None), columns=columns, spacing=20)
    )
    note = "A dot is the error of a run, the line is the threshold."
    spec = specification(chart, values) | {"config": CONFIG}
    return Chart(f"{task}: every seed", note, spec)


def _seed_values(
    found: Scores, task: str, entries: Sequence[str], splits: Sequence[str]
) -> list[dict[str, Any]]:
    """Rows with the error of a seed, with k/n of an entry, and with the threshold of a split."""
    shown = pl.col("split").is_in(splits) & pl.col("entry").is_in(entries)
    dots = found.rows.filter(pl.col("counts") & pl.col("error").is_not_null() & shown, task=task)
    cells = found.cells.filter(shown, task=task).select("entry", "split", "k", "n")
    limits = [(split, found.suite.tasks[task].threshold(split)) for split in splits]
    return [
        *(
            {**row, "error": round(100 * row["error"], 3)}
            for row in dots.select("entry", "split", "seed", "error").iter_rows(named=True)
        ),
        *(
            {"entry": entry, "split": split, "rate": f"{k}/{n}"}
            for entry, split, k, n in cells.iter_rows()
        ),
        *({"split": split, "limit": 100 * at} for split, at in limits if at is not None),
    ]
