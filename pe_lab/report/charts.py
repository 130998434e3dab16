"""The charts of a report, as Vega-Lite: each seed a dot, their median a line or a point.

A chart is made of rows with the columns ``label`` (the encoding and its setting), ``panel``, ``x``
and ``value``. It shows the first eight labels of an order; the table beside it has the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import altair as alt
import polars as pl

from pe_lab.core.metrics import COSTS, IN_DOMAIN, metric_name
from pe_lab.results.table import breakdowns, by_split, curves

if TYPE_CHECKING:
    from pe_lab.explain.inspect import Inspection

Spec = dict[str, Any]
COLOURS = [f"var(--c{number})" for number in range(1, 9)]
CONFIG: Spec = {
    "background": None,
    "font": "inherit",
    "view": {"stroke": None},
    "axis": {
        **dict.fromkeys(("labelColor", "titleColor"), "var(--muted)"),
        **dict.fromkeys(("domainColor", "tickColor"), "var(--faint)"),
        "gridColor": "var(--line)",
        "titleFontWeight": "normal",
    },
    "legend": {"labelColor": "var(--ink)", "labelLimit": 400, "orient": "bottom", "columns": 4},
    "header": {"labelColor": "var(--ink)", "labelFontWeight": "bold"},
    "title": {"color": "var(--ink)", "subtitleColor": "var(--muted)"},
}  # fmt: skip
"""Colours are CSS variables of page.css, so that light, dark and print need one drawing."""
MOST_STEPS = 60
"""Points of a learning curve."""
MOST_HEADS, MOST_CELLS = 4, 4096
"""Heads of a picture of attention, and cells of each."""
SEEDS = "Dots are seeds, the line or large point is their median."


@dataclass(frozen=True)
class Chart:
    """A chart with what it shows in words."""

    title: str
    note: str
    spec: Spec


def charts_of_task(
    runs: pl.DataFrame, label: pl.Expr, order: Sequence[str], thresholds: Mapping[str, float]
) -> list[Chart]:
    """The charts of the finished runs of one task: error by split, by tokens read, by property of
    the answer, along training, and against cost.

    Args:
        label: names a run's encoding and setting.
        order: all labels, the best first.
        thresholds: split -> the error up to which it counts as generalised.
    """
    rows = by_split(runs).join(runs.select("path", label=label), on="path")
    splits = rows["split"].unique(maintain_order=True).to_list()
    errors = rows.select("label", x="split", panel=pl.lit(""), value=100 * pl.col("error"))
    axis = alt.Axis(title=None, labelAngle=-30)
    x = alt.X("x:N", sort=splits, axis=axis)
    limits = [{"x": split, "limit": 100 * limit} for split, limit in thresholds.items()]
    spec = draw(errors, x, order, line=False, extra=limits, width=max(280, 110 * len(splits)))
    note = f"{SEEDS} The dashes are the thresholds up to which a run counts as generalised."
    charts = [Chart("Error by split", note, spec)]
    by = breakdowns(runs).join(runs.select("path", label=label), on="path")
    for kind in by["kind"].unique(maintain_order=True):
        end = pl.col("bucket").str.extract(r"^(?:\d+-)?(-?\d+)$").cast(pl.Int64)
        part = by.filter(pl.col("kind") == kind).select(
            "label", x=end, panel="split", value=100 * pl.col("error")
        )
        x = alt.X("x:O", axis=alt.Axis(title=f"{kind}, up to", labelAngle=0, labelOverlap=True))
        note = f"Where in a split answers are wrong. {SEEDS}"
        charts.append(Chart(f"Error by {kind}", note, draw(part, x, order)))
    return [
        *charts,
        *_along_training(runs, label, order, splits),
        *_against_cost(runs, label, order, [split for split in splits if split != IN_DOMAIN]),
    ]


def _along_training(
    runs: pl.DataFrame, label: pl.Expr, order: Sequence[str], splits: Sequence[str]
) -> list[Chart]:
    metrics = curves(runs).join(runs.select("path", label=label), on="path")
    names = {metric_name(split, "error"): split for split in splits}
    columns = [name for name in names if name in metrics.columns]
    long = metrics.unpivot(columns, index=["label", "seed", "step"], variable_name="panel")
    if not columns or long["value"].is_null().all():
        return []
    width = -(-max(long["step"]) // MOST_STEPS)
    stretch = -(-pl.col("step") // width) * width
    long = long.drop_nulls("value").with_columns(pl.col("panel").replace(names))
    thinned = long.group_by("label", "seed", "panel", x=stretch, maintain_order=True).agg(
        value=100 * pl.mean("value")
    )
    x = alt.X("x:Q", axis=alt.Axis(title="step", tickCount=4, format="~s"))
    note = "Measured on a part of each evaluation set while training. The band is all seeds."
    return [Chart("Learning curves", note, draw(thinned, x, order, dots=False))]


def _against_cost(
    runs: pl.DataFrame, label: pl.Expr, order: Sequence[str], splits: Sequence[str]
) -> list[Chart]:
    costs = [key for key in COSTS if key in runs.columns]
    ood = by_split(runs).filter(pl.col("split").is_in(splits)).group_by("path").agg(
        value=100 * pl.when(pl.col("error").is_not_null().all()).then(pl.mean("error"))
    )  # fmt: skip
    rows = runs.with_columns(pl.col(costs).cast(pl.Float64)).join(ood, on="path")
    long = rows.select("value", *costs, label=label).unpivot(
        costs, index=["label", "value"], variable_name="panel", value_name="x"
    )
    long = long.filter(pl.col("x") > 0).drop_nulls("value")
    if long.is_empty():
        return []
    x = alt.X("x:Q", scale=alt.Scale(type="log", nice=False, padding=20), axis=alt.Axis(title=None))
    long = long.with_columns(pl.col("panel").replace(COSTS))
    note = (
        f"The mean of {', '.join(splits)}: low and to the left is better. Times compare only on "
        "one machine with equal load."
    )
    spec = draw(long, x, order, line=False, y_title="OOD mean (%)")
    return [Chart("OOD mean against cost", note, spec)]


def chart_of_attention(inspection: "Inspection") -> Chart:
    """The attention weights of the highest ranked heads, or the encoding's own quantity: a row for
    each query, a column for each key. The last row is the first wrong answer, if there is one."""
    queries = inspection.queries
    wrong = [a for a in inspection.answers if not a.correct and a.position in queries][:1]
    last = wrong[0].position if wrong else queries[-1]
    rows = list(enumerate(queries))[: queries.index(last) + 1]
    values = []
    for head in inspection.heads[:MOST_HEADS]:
        for row, query in rows[-max(1, MOST_CELLS // (last + 1)) :]:
            values += [
                {"panel": f"{head.name}: {head.default_map}", "query": query, "key": key,
                 "value": round(float(head.maps[head.default_map][row, key]), 3),
                 "token": inspection.tokens[key]}
                for key in range(query + 1)
            ]  # fmt: skip
    cells = alt.Chart(alt.NamedData("rows")).mark_rect().encode(
        x=alt.X("key:O", axis=None), y=alt.Y("query:O", axis=None),
        color=alt.Color("value:Q", scale=alt.Scale(scheme="blues"), legend=None),
        tooltip=["query:O", "key:O", "token:N", alt.Tooltip("value:Q", format=".2f")],
    ).properties(width=240, height=240)  # fmt: skip
    chart = cells.facet(alt.Facet("panel:N", title=None), columns=4)
    notes = [f"The last row is asked for {a.target} and answers {a.prediction}." for a in wrong]
    notes += [inspection.summary, "pe-lab inspect shows every head."]
    spec = specification(chart, values) | {"config": CONFIG}
    return Chart(inspection.heading, " ".join(notes), spec)


def draw(
    rows: pl.DataFrame,
    x: alt.X,
    order: Sequence[str],
    *,
    line: bool = True,
    dots: bool = True,
    y_title: str = "error (%)",
    extra: Sequence[dict[str, Any]] = (),
    width: int = 280,
) -> Spec:
    """The specification of a chart of ``rows`` (see the module).

    Args:
        line: whether medians are joined by a line, with the range of the seeds as a band.
        dots: whether each seed is a dot.
        extra: rows with a ``limit``, drawn as a short dash.
    """
    shown = list(order[: len(COLOURS)])
    rows = rows.filter(pl.col("label").is_in(shown)).drop_nulls(["value", "x"])
    colour = alt.Color("label:N", scale=alt.Scale(domain=shown, range=COLOURS[: len(shown)]),
                       legend=alt.Legend(title=None))  # fmt: skip
    scale = alt.Scale(type="sqrt", domainMin=0, nice=False)

    def y(field: str) -> alt.Y:
        return alt.Y(field, scale=scale, axis=alt.Axis(title=y_title, format="~r"))

    base = alt.Chart().transform_filter("isValid(datum.value)")
    place: dict[str, Any] = {"x": x, "color": colour}
    if not line and x.to_dict()["type"] == "nominal":  # type: ignore[call-overload]
        place["xOffset"] = alt.XOffset("label:N", scale=alt.Scale(domain=shown))
    layers = [
        base.mark_point(filled=True, size=30 if line else 60).encode(
            **place, y=y("median(value):Q"),
            tooltip=["label:N", alt.Tooltip("median(value):Q", format=".3~r")],
        )
    ]  # fmt: skip
    if line:
        layers.insert(0, base.mark_line().encode(**place, y=y("median(value):Q")))
        band = base.mark_area(opacity=0.08)
        layers.insert(0, band.encode(**place, y=y("min(value):Q"), y2="max(value):Q"))
    if dots:
        layers.append(base.mark_circle(size=14, opacity=0.5).encode(**place, y=y("value:Q")))
    if extra:
        limit = alt.Chart().transform_filter("isValid(datum.limit)")
        layers.append(limit.mark_tick(size=90, color="var(--muted)").encode(x=x, y=y("limit:Q")))
    panels = rows["panel"].unique(maintain_order=True).to_list()
    chart: Any = alt.layer(*layers, data=alt.NamedData("rows")).properties(width=width, height=190)
    if panels != [""]:
        facet = alt.Facet("panel:N", sort=panels, title=None)
        chart = chart.facet(facet, columns=3).resolve_scale(x="independent")
    values = [*rows.select("label", "panel", "x", "value").to_dicts(), *extra]
    return specification(chart, values) | {"config": CONFIG}


def specification(chart: Any, rows: Sequence[Mapping[str, Any]]) -> Spec:
    """The Vega-Lite of a chart of ``rows``, which Altair would copy at every step."""
    spec: Spec = chart.to_dict(validate=False)
    return spec | {"data": {"values": rows}}
