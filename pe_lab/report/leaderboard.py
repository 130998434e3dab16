"""The page and the picture of ``pe-lab leaderboard``: success rates of entries on tasks."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import product
from typing import Any

import altair as alt
import polars as pl

from pe_lab.explain.cells import Cell as Diagnosed
from pe_lab.report.charts import CONFIG, Chart, Spec, specification
from pe_lab.report.html import rendered
from pe_lab.suite.scores import Scores
from pe_lab.suite.tables import count_seeds, entries_table, task_table

GENERATOR = "pe-lab leaderboard"
NOT_RUN, UNLEARNED = "missing", "unlearned"
LIGHT, DARK = "#e8f0f8", "#08306b"
"""The colours of success rates 0 and 100 %."""
BRIGHT = 0.6
"""From this success rate on, text is white."""


def leaderboard_page(
    scores: Scores,
    tasks: Sequence[str],
    why: Mapping[tuple[str, str], Diagnosed],
    notes: Sequence[str],
    command: str,
) -> str:
    """Return the HTML of the page.

    Args:
        why: verdicts by task and entry.
        notes: what stands at its end.
        command: the one that made it.
    """
    suite, rows = scores.suite, count_seeds(scores).filter(pl.col("task").is_in(tasks))
    return rendered(
        "pe_lab.report",
        "leaderboard.html",
        generator=GENERATOR,
        title=f"Which encoding generalises? Suite {suite.version}",
        made=datetime.now().astimezone(),
        command=command,
        overview=entries_table(scores, tasks),
        heat=Chart(
            "Success rates",
            "k of n seeds, in %, for each encoding and task.",
            heat_map(scores, tasks),
        ),
        columns={name: column.words for name, column in suite.columns.items()},
        entries=rows["base"].unique().sort(),
        tasks=[(task, task_table(scores, task, why), _seeds(scores, task)) for task in tasks],
        notes=notes,
    )


def heat_map(scores: Scores, tasks: Sequence[str], at_least_half: bool = False) -> Spec:
    """Return entries by tasks as a picture: dark where all seeds generalise, grey where most do not
    learn the task, hatched where it was not run. A cell has a part for each of the suite's first
    two columns.

    Args:
        at_least_half: only entries that have run at least half of these tasks.
    """
    suite = scores.suite
    parts = [*suite.columns][:2]
    families = {task: suite.tasks[task].family for task in tasks}
    rows = count_seeds(scores).filter(pl.col("task").is_in(tasks), pl.col("column").is_in(parts))
    cells = {(r["base"], r["task"], r["column"]): r for r in rows.iter_rows(named=True)}
    rates = rows.group_by("base", maintain_order=True).agg(
        tasks=pl.col("task").n_unique(), rate=(pl.col("k") / pl.col("n")).mean()
    )
    rates = rates.sort("tasks", "rate", descending=True, maintain_order=True)
    least = len(tasks) / 2 if at_least_half else 1
    bases = rates.filter(pl.col("tasks") >= least)["base"].to_list()
    values = [
        {"entry": base, "task": task, "group": families[task], "part": part,
         **_part(cells.get((base, task, part)))}
        for base, task, part in product(bases, tasks, parts)
    ]  # fmt: skip
    lines = [f"Seeds that generalise to every scored split, in %. Suite {suite.version}."]
    lines += [f"Left: {parts[0]}; right: {parts[1]}."] if len(parts) > 1 else []
    lines.append("Grey: fewer than half of the seeds learn the task. Hatched: not run.")
    layers = alt.layer(*_layers(tasks, bases, parts), data=alt.NamedData("rows"))
    chart: Any = layers.properties(width=alt.Step(76 // len(parts)), height=alt.Step(26)).facet(
        column=alt.Column("group:N", sort=[*dict.fromkeys(families.values())], title=None),
        spacing=8,
    )
    title = alt.TitleParams(lines, anchor="start", fontWeight="normal", fontSize=12)
    spec = specification(chart.resolve_scale(x="independent").properties(title=title), values)
    axis = {"domain": False, "ticks": False, "labelFontSize": 12, "grid": False}
    # Room for a font that is wider than the one the picture is made for.
    padding = {"left": 5 + max(map(len, bases), default=0), "right": 35, "top": 5, "bottom": 5}
    config = {"background": "#fff", "font": "inherit", "view": {"stroke": None}, "axis": axis}
    return spec | {"padding": padding, "config": config}


def _part(row: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what a part of a cell shows."""
    if row is None:
        return {"kind": NOT_RUN, "text": ""}
    share, kind = row["k"] / row["n"], "" if row["fit"] else UNLEARNED
    return {"kind": kind, "text": f"{100 * share:.0f}", "share": round(share, 3)}


def _layers(tasks: Sequence[str], names: Sequence[str], parts: Sequence[str]) -> list[alt.Chart]:
    """Return the cells, their text, and the hatching of those that were not run."""
    # At the grid's 12 pixels neighbours like copy_unique and selective_copy overlap.
    top = alt.Axis(orient="top", labelAngle=0, labelFontSize=10)
    shade = alt.Scale(domain=[0, 1], range=[LIGHT, DARK])
    cells = alt.Chart().encode(
        x=alt.X("task:N", sort=list(tasks), title=None, axis=top, scale=alt.Scale(padding=0.04)),
        xOffset=alt.XOffset("part:N", sort=list(parts)),
        y=alt.Y("entry:N", sort=list(names), title=None, axis=alt.Axis(labelLimit=600)),
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


def _seeds(scores: Scores, task: str) -> Chart:
    """Return every seed of a task as a dot on each scored split, and k/n."""
    splits = [*scores.suite.tasks[task].thresholds]
    cells = scores.cells.filter(task=task)
    entries = task_table(scores, task, {}).frame["entry"].to_list()
    dots = scores.rows.filter("counts", pl.col("error").is_not_null(), task=task)
    values: list[dict[str, Any]] = [
        {**row, "error": round(100 * row["error"], 3)}
        for row in dots.select("entry", "split", "seed", "error").iter_rows(named=True)
        if row["split"] in splits
    ]
    values += [
        {"entry": entry, "split": split, "rate": f"{k}/{n}"}
        for entry, split, k, n in cells.select("entry", "split", "k", "n").iter_rows()
    ]
    limits = scores.suite.tasks[task].thresholds
    values += [{"split": split, "limit": 100 * limit} for split, limit in limits.items()]
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
            beside.encode(x=alt.value(169), y=y, text="rate:N"),
            data=alt.NamedData("rows"),
        )
        .properties(width=165, height=alt.Step(14))
        .facet(alt.Facet("split:N", sort=splits, title=None), columns=4, spacing=20)
    )
    note = "A dot is the error of a run, the line is the threshold."
    spec = specification(chart, values) | {"config": CONFIG}
    return Chart(f"{task}: every seed", note, spec)
