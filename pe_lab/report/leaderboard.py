"""The page and the picture of ``pe-lab leaderboard``."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import altair as alt
import polars as pl

from pe_lab.core.errors import RunError
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.explain.verdict import DiagnosedCell
from pe_lab.report.charts import CONFIG, Chart, Spec, specification
from pe_lab.report.html import drawn, rendered
from pe_lab.suite.scores import WORST, Scores
from pe_lab.suite.tables import NOT_LEARNED, count_seeds, entries_tables, task_table

# The panels of the picture of lengths, each with its task and split.
LENGTHS = {
    "copying, 3 times the length": ("copy_unique", "long_x3"),
    "a key's value, 4 times the length": ("recall", "long_x4"),
    "brackets, wide gaps": ("brackets", "wide_gap"),
}
DOTS = "Large: the median on this split. Faint: one seed. Dashed: the largest error that passes."


def leaderboard_page(
    scores: Scores,
    tasks: Sequence[str],
    why: Mapping[tuple[str, str], DiagnosedCell],
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
    figures = {
        task: errors_figure(
            scores, {split: (task, split) for split in suite.tasks[task].thresholds}
        )
        for task in tasks
    }
    return rendered(
        "leaderboard.html",
        generator="pe-lab leaderboard",
        title=f"Which encoding generalises? Suite {suite.version}",
        made=datetime.now().astimezone(),
        command=command,
        lengths=Chart("Errors at the greatest length", "", errors_figure(scores)),
        overview=entries_tables(scores, tasks),
        columns={name: column.words for name, column in suite.columns.items()},
        entries=rows["base"].unique().sort(),
        tasks=[
            (task, task_table(scores, task, why), Chart(f"{task}: every seed", "", figures[task]))
            for task in tasks
        ],
        notes=notes,
    )


def draw_lengths(scores: Scores, form: str) -> bytes:
    """Return the picture of lengths as a file: pdf, png or svg.

    Raises:
        RunError: no run of its tasks is scored.
    """
    figure = errors_figure(scores)
    if not figure["data"]["values"]:
        tasks = ", ".join(task for task, _ in LENGTHS.values())
        raise RunError(f"figure=lengths shows {tasks}: no run of these is scored")
    return drawn({**figure, "background": "#fff"}, form)


def errors_figure(scores: Scores, panels: Mapping[str, tuple[str, str]] = LENGTHS) -> Spec:
    """Return errors as a picture: a row an encoding, its medians alone and in the suite's second
    column joined by a line, each seed a faint dot, what does not learn the task grey. Below it is
    another size, the columns ``large`` and ``large_conv``, if the suite has runs of these. An entry
    is shown if it was run on two panels or more.

    Args:
        panels: title -> a task and one of its splits.
    """
    of, first = scores.suite.columns, [*scores.suite.columns][:2]
    sizes = [[name, f"{name}_{first[-1]}"] for name in of if f"{name}_{first[-1]}" in of]
    charts, rows = [], list[dict[str, Any]]()
    for columns in [first, *sizes]:
        seeds = _errors_of(scores, panels, columns)
        words = [
            f"{name}: {' '.join(of[name].words)}"
            + f", {of[name].steps} times the steps" * (of[name].steps > 1)
            for name in columns
            if of[name].words
        ]
        head = [f"Error, suite {scores.suite.version}", DOTS] if columns == first else []
        if len(seeds) or columns == first:
            charts.append(_panels(seeds, panels, columns, [*head, *words]))
            rows += _rows(seeds, columns)
    chart = alt.vconcat(*charts, spacing=30).resolve_scale(color="independent")
    return specification(chart, rows) | {"data": {"name": "rows", "values": rows}, "config": CONFIG}


def _rows(seeds: pl.DataFrame, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return the seeds, medians, lines and limits that the panels of two columns show."""
    medians = seeds.group_by("panel", "label", "column", "shown_median", maintain_order=True).agg(
        median=pl.median("error")
    )
    lines = medians.pivot("column", index=["panel", "label"], values="median")
    lines = lines.rename({columns[0]: "from", columns[-1]: "to"}, strict=False)
    limits = seeds.select("panel", "limit").unique(maintain_order=True)
    tables = (seeds.drop("limit"), medians, lines, limits)
    return [{"size": columns[0], **row} for table in tables for row in table.to_dicts()]


def _panels(
    seeds: pl.DataFrame, panels: Iterable[str], columns: Sequence[str], text: list[str]
) -> Any:
    """Return the panels of two columns beside each other, below their title."""
    layers = _layers(seeds["label"].unique(maintain_order=True).to_list(), columns)
    chart: Any = alt.layer(*layers).properties(width=200, height=alt.Step(17))
    chart = chart.facet(
        alt.Facet("panel:N", sort=[*panels], title=None),
        data=alt.NamedData("rows"),
        columns=3,
        spacing=14,
    )
    title = alt.TitleParams(text, anchor="start", fontWeight="normal", fontSize=12)
    return chart.transform_filter(alt.datum.size == columns[0]).properties(title=title)


def _errors_of(
    scores: Scores, panels: Mapping[str, tuple[str, str]], columns: Sequence[str]
) -> pl.DataFrame:
    """Return a row for each panel and seed of the entries that were run on two panels or more; what
    was not learned has another colour than its column (``shown``)."""
    places = [(title, *place) for title, place in panels.items()]
    names = pl.DataFrame(places, ["panel", "task", "split"], orient="row")
    entries = count_seeds(scores).filter(pl.col("column").is_in(columns))
    entries = entries.select(
        *("task", "entry", "label", "column", "order"),
        learned=pl.col("state") != NOT_LEARNED,
    )
    inside = scores.rows.filter("counts", split=IN_DOMAIN).select(
        "run_id", fits=pl.col("error") <= pl.col("threshold")
    )
    rows = (
        scores.rows.filter("counts")
        .join(names, on=["task", "split"])
        .join(entries, on=["task", "entry"])
        .join(inside, on="run_id")
        .sort("order", "label", "panel", "seed")
    )
    enough = pl.col("panel").n_unique().over("label") >= min(2, len(panels))
    grey = pl.lit(NOT_LEARNED)
    return rows.filter(enough).select(
        *("panel", "label", "column", "seed"),
        error=100 * pl.col("error").fill_null(WORST),
        limit=100 * pl.col("threshold"),
        shown=pl.when("fits").then("column").otherwise(grey),
        shown_median=pl.when("learned").then("column").otherwise(grey),
    )


def _layers(labels: Sequence[str], columns: Sequence[str]) -> list[alt.Chart]:
    """Return the threshold, the lines, the seeds and the medians."""
    y = alt.Y("label:N", sort=list(labels), title=None)
    shown = [*columns, NOT_LEARNED]
    colours = [*("var(--c1)", "var(--c2)")[: len(columns)], "var(--context)"]
    legend, scale = alt.Legend(title=None, symbolOpacity=1), alt.Scale(domain=shown, range=colours)
    axis = alt.Axis(title="error (%)", values=[0, 1, 5, 20, 50, 100])
    rule, line, dot, point = (
        alt.Chart()
        .transform_filter(f"isValid(datum['{field}'])")
        # Small errors are told apart, too.
        .encode(x=alt.X(f"{field}:Q", scale=alt.Scale(type="sqrt", domain=[0, 100]), axis=axis))
        for field in ("limit", "from", "error", "median")
    )
    return [
        rule.mark_rule(color="var(--muted)", strokeDash=[3, 3]),
        line.mark_rule(color="var(--faint)").encode(y=y, x2="to:Q"),
        dot.mark_circle(size=22, opacity=0.3).encode(
            y=y,
            color=alt.Color("shown:N", scale=scale, legend=legend),
            tooltip=["label:N", "column:N", "seed:N", "error:Q"],
        ),
        point.mark_circle(size=75, opacity=1).encode(
            y=y, color=alt.Color("shown_median:N", scale=scale, legend=legend)
        ),
    ]
