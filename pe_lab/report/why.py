"""The picture of ``pe-lab why``: what interventions restore, and attention against distance."""

from collections.abc import Sequence
from typing import Any

import altair as alt
import polars as pl

from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.explain.cells import Cell
from pe_lab.explain.verdict import CAUSES, fails

Spec = dict[str, Any]
WIDTH, HEIGHT = 320, 180


def picture(cells: Sequence[Cell]) -> Spec:
    """Bars of the restored share for each intervention, seeds as ticks; beside them the
    attention mass and the margin against the distance of the answer, a line for each seed."""
    rows = [
        alt.hconcat(
            _bars(cell),
            _lines(cell, "mass", "attention on the answer"),
            _lines(cell, "margin", "margin of its logit"),
        )
        for cell in cells
    ]
    chart = alt.vconcat(*rows).configure(background="#fff").configure_view(stroke=None)
    spec: Spec = chart.to_dict()
    return spec


def _bars(cell: Cell) -> alt.LayerChart:
    names = [*CAUSES.values(), "oracle"]
    values = [
        {"intervention": row.name, "restored": 100 * row.restored, "seed": one.seed}
        for one in cell.seeds
        if fails(one.diagnosis)
        for row in one.diagnosis.rows
        if row.name in names and row.restored is not None
    ]
    title = f"{cell.task} {cell.split}, {cell.pe}"
    base = alt.Chart(pl.DataFrame(values), title=title, width=WIDTH, height=HEIGHT).encode(
        y=alt.Y("intervention:N", sort=names, title=None)
    )
    mean = alt.X("mean(restored):Q", title="added error restored (%)")
    found: alt.LayerChart = base.mark_bar(color="#7a9cc6").encode(x=mean) + base.mark_tick(
        color="#000"
    ).encode(x="restored:Q")
    return found


def _lines(cell: Cell, quantity: str, title: str) -> alt.Chart:
    values = [
        {"distance": at.distance, "value": getattr(at, quantity), "seed": one.seed, "of": at.split}
        for one in cell.seeds
        for at in one.diagnosis.distances
    ]
    base = alt.Chart(pl.DataFrame(values), width=WIDTH, height=HEIGHT)
    found: alt.Chart = base.mark_line(point=True, strokeWidth=1).encode(
        x=alt.X("distance:Q", scale=alt.Scale(type="log", base=2), title="distance (tokens)"),
        y=alt.Y("value:Q", title=title),
        color=alt.Color("of:N", title=None, sort=[IN_DOMAIN, cell.split]),
        detail="seed:N",
    )
    return found
