"""The charts of the leaderboard's page: every seed as a dot, cost beside error, profiles."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.report.charts import Spec
from pe_lab.results.leaderboard.across import normalised
from pe_lab.results.leaderboard.scores import WORST, Scores
from pe_lab.results.statistics.across_tasks import performance_profile

TAUS = [0.0, 0.01, 0.02, 0.05, *(n / 20 for n in range(2, 21))]


@dataclass(frozen=True)
class Chart:
    """A drawing: where it stands, what it shows, and its Vega-Lite specification."""

    id: str
    title: str
    caption: str
    spec: Spec


def task_charts(found: Scores, task: str, order: Sequence[str]) -> list[Chart]:
    """Every seed as a dot on each split; cost beside error."""
    one = found.suite.tasks[task]
    rows = found.rows.filter(
        pl.col("counts") & pl.col("threshold").is_not_null() & (pl.col("task") == task)
    )
    shown = [entry for entry in order if entry in set(rows["entry"])]
    splits = [IN_DOMAIN, *one.generalises]
    dots = [
        {"entry": entry, "split": split, "seed": seed, "error": round(100 * error, 3)}
        for entry, split, seed, error in rows.filter(pl.col("error").is_not_null())
        .select("entry", "split", "seed", "error")
        .iter_rows()
    ]
    limits = [
        {"split": split, "limit": 100 * limit}
        for split in splits
        if (limit := one.threshold(split)) is not None
    ]
    cost = dict(found.cells.filter(pl.col("task") == task).select("entry", "cost").iter_rows())
    means = rows.filter(pl.col("split") != IN_DOMAIN).group_by("entry", maintain_order=True)
    ood = means.agg(pl.col("error").fill_null(WORST).median())
    points = [
        {"entry": entry, "cost": round(cost[entry], 3), "error": round(100 * error, 3)}
        for entry, error in ood.iter_rows()
        if cost.get(entry) is not None
    ]
    seeds = Chart(
        f"seeds-{task}",
        f"{task}: every seed",
        "A dot is a run, its error on the split in %; the line is the threshold.",
        _dots(dots, limits, shown, splits),
    )
    beside = Chart(
        f"cost-{task}",
        f"{task}: cost beside error",
        "Time of training, divided by rope's, and the median error out of domain in %.",
        _scatter(points),
    )
    return [seeds, beside] if points else [seeds]


def _dots(
    dots: list[dict[str, Any]],
    limits: list[dict[str, Any]],
    entries: Sequence[str],
    splits: Sequence[str],
) -> Spec:
    y = {"field": "entry", "type": "nominal", "sort": list(entries), "title": None,
         "axis": {"grid": True, "domain": False, "ticks": False, "minExtent": 90}}  # fmt: skip
    panels = []
    for split in splits:
        limit = [row["limit"] for row in limits if row["split"] == split]
        x = {"field": "error", "type": "quantitative", "title": "error, %",
             "scale": {"type": "sqrt", "domainMin": 0, "domainMax": 100, "clamp": True},
             "axis": {"values": [0, 1, 5, 20, 50, 100]}}  # fmt: skip
        tip = [{"field": name} for name in ("entry", "seed", "error")]
        dot = {"type": "circle", "size": 26, "opacity": 0.55, "color": "var(--c1)"}
        line = {"type": "rule", "stroke": "var(--c2)", "strokeDash": [3, 3]}
        panels.append(
            {
                "title": {"text": split, "anchor": "start", "fontSize": 11},
                "width": 165,
                "height": {"step": 14},
                "data": {"values": [row for row in dots if row["split"] == split]},
                "layer": [
                    {
                        "data": {"values": [{"error": value} for value in limit]},
                        "mark": line,
                        "encoding": {"x": x},
                    },
                    {"mark": dot, "encoding": {"x": x, "y": y, "tooltip": tip}},
                ],
            }
        )
    return {"concat": panels, "columns": 4}


def _scatter(points: list[dict[str, Any]]) -> Spec:
    place: Spec = {
        "x": {"field": "cost", "type": "quantitative", "title": "time of training, rope = 1",
              "scale": {"type": "log", "nice": False, "padding": 20}},
        "y": {"field": "error", "type": "quantitative", "title": "median OOD error, %",
              "scale": {"type": "sqrt"}},
    }  # fmt: skip
    tip = [{"field": name} for name in ("entry", "cost", "error")]
    mark = {"type": "circle", "size": 60, "color": "var(--c1)", "opacity": 0.7}
    text = {"type": "text", "align": "left", "dx": 6, "fontSize": 10, "fill": "var(--muted)"}
    return {
        "width": 560,
        "height": 260,
        "data": {"values": points},
        "layer": [
            {"mark": mark, "encoding": {**place, "tooltip": tip}},
            {"mark": text, "encoding": {**place, "text": {"field": "entry"}}},
        ],
    }


def profile_chart(found: Scores, tasks: Sequence[str], order: Sequence[str]) -> Chart:
    """Performance profiles over these tasks of the entries that have run them all, the suite's ten
    encodings in colour."""
    values = {e: of for e, of in normalised(found, tasks).items() if set(tasks) <= set(of)}
    rows = [
        {"entry": entry, "tau": tau, "share": round(share, 4)}
        for entry in order
        if entry in values
        for tau, share in zip(TAUS, performance_profile(values[entry], TAUS), strict=True)
    ]
    top = [entry for entry in found.suite.protocol.more_seeds_for if entry in values]
    colour = {"field": "entry", "type": "nominal", "sort": top, "title": None,
              "scale": {"scheme": "tableau10", "domain": top}}  # fmt: skip
    chosen = {"field": "entry", "oneOf": top}
    place: Spec = {
        "x": {"field": "tau", "type": "quantitative", "title": "error relative to guessing"},
        "y": {"field": "share", "type": "quantitative", "title": "share of runs",
              "scale": {"domain": [0, 1]}},
        "detail": {"field": "entry"},
        "tooltip": [{"field": name} for name in ("entry", "tau", "share")],
    }  # fmt: skip
    grey = {"type": "line", "strokeWidth": 1, "stroke": "var(--context)"}
    spec: Spec = {
        "width": 640,
        "height": 280,
        "data": {"values": rows},
        "layer": [
            {"transform": [{"filter": {"not": chosen}}], "mark": grey, "encoding": place},
            {
                "transform": [{"filter": chosen}],
                "mark": {"type": "line", "strokeWidth": 2},
                "encoding": {**place, "color": colour},
            },
        ],
    }
    caption = (
        f"The share of runs whose error, relative to guessing, is at most x: higher is better. Of "
        f"the {len(values)} entries that have run {', '.join(tasks)}."
    )
    return Chart("profile", "Performance profiles", caption, spec)
