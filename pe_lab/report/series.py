"""The charts of a task: its settings and the points of every panel."""

from collections.abc import Mapping

import polars as pl

from pe_lab.core.metrics import COSTS, metric_name
from pe_lab.report.bands import Band, bands
from pe_lab.report.charts import lines, scatter
from pe_lab.report.error_vs_key import error_vs_keys
from pe_lab.report.panels import Group, Panel, Point
from pe_lab.report.sections import METRICS, Section, Setting
from pe_lab.results.frame import breakdowns, curves

MAX_SETTINGS = 60
"""Maximum of settings in the charts of a task; tables have all."""
MAX_STEPS = 60
"""Maximum of points in a learning curve."""


def charted_settings(section: Section) -> dict[int, Setting]:
    """The settings in the charts, by rank: the best of each encoding, then the best of the
    rest."""
    ranked = dict(enumerate(section.settings))
    first = {setting.pe: rank for rank, setting in reversed(ranked.items())}.values()
    best = sorted(ranked, key=lambda rank: (rank not in first, rank))[:MAX_SETTINGS]
    return {rank: ranked[rank] for rank in sorted(best)}


def groups(section: Section) -> list[Group]:
    """All charts of a task."""
    shown = charted_settings(section)
    ranks = {setting.name: rank for rank, setting in shown.items()}
    runs = section.runs.filter(pl.col("setting").is_in(list(ranks)))
    found = [
        *error_vs_keys(section, shown, runs),
        *_by_bucket(section, ranks, runs),
        *_learning(section, ranks, runs),
        _cost(shown),
    ]
    return [group for group in found if group.panels]


def _by_bucket(section: Section, ranks: dict[str, int], runs: pl.DataFrame) -> list[Group]:
    """The error inside each split, by length, distance or depth."""
    rows = breakdowns(runs)
    if rows.is_empty():
        return []
    # Buckets are 0, 1, 2, 3-4, 5-8, ..
    end = pl.col("bucket").str.extract(r"^(?:\d+-)?(-?\d+)$").cast(pl.Int64)
    rows = rows.with_columns(up_to=end)
    titles = {"length": "tokens read"}
    metrics = tuple(m for m in ("error", "loss") if rows[m].is_not_null().any())
    found = []
    for kind in rows["kind"].unique(maintain_order=True):
        panels = []
        of_kind = rows.filter(pl.col("kind") == kind)
        for split in section.splits:
            part = of_kind.filter(pl.col("split") == split)
            ends = sorted(part["up_to"].unique())
            if len(ends) < 2:
                continue
            spec = lines(f"{titles.get(kind, kind)}, up to", "ordinal", ends)
            points = _points({m: (part, m) for m in metrics}, ranks, "up_to")
            panels.append(Panel(split, spec, points, split, section.guess.get(split)))
        title = f"Error by {titles.get(kind, kind)}"
        note = "Where in its sequences a split is answered wrongly."
        found.append(Group(f"by-{kind}", title, note, panels, metrics))
    return found


def _learning(section: Section, ranks: dict[str, int], runs: pl.DataFrame) -> list[Group]:
    unread: list[str] = []
    rows = curves(runs, unread)
    left_out = "".join(f" Left out: {message}." for message in unread)
    panels = []
    for split in section.splits:
        found = {}
        for metric in METRICS:
            column = metric_name(split, metric)
            closing = None
            if column in runs.columns:
                closing = runs.select("path", "setting", "step", pl.col(column).cast(pl.Float64))
                if unread and column not in rows.columns:
                    # The last points are drawn, with the note below them.
                    rows = rows.with_columns(pl.lit(None, pl.Float64).alias(column))
            part = _thinned(rows, column, closing)
            if part is not None:
                found[metric] = part, column
        if found:
            points = _points(found, ranks, "step")
            spec = lines("step", "linear", [])
            panels.append(Panel(split, spec, points, split, section.guess.get(split)))
    note = "Measured while training on a part of each evaluation set, at the end on all of it."
    groups = [Group("learning", "Learning curves: error", note + left_out, panels)]
    loss = _thinned(rows, "train/loss", None)
    if loss is not None:
        points = _points({"loss": (loss, "train/loss")}, ranks, "step")
        panel = Panel("training", lines("step", "linear", []), points)
        note = "Cross-entropy of the scored positions of the training batches."
        groups.append(
            Group("loss", "Learning curves: training loss", note + left_out, [panel], ("loss",))
        )
    return groups


def _thinned(rows: pl.DataFrame, column: str, closing: pl.DataFrame | None) -> pl.DataFrame | None:
    """The column at no more than MAX_STEPS steps: means over equal intervals, at their ends.
    ``closing`` holds the last step of each run."""
    if column not in rows.columns:
        return None
    part = rows.select("path", "setting", "step", column)
    if closing is not None:
        part = pl.concat([part.join(closing, on=["path", "step"], how="anti"), closing])
    part = part.drop_nulls(column)
    if part.is_empty():
        return None
    if part["step"].n_unique() <= MAX_STEPS:
        return part
    width = -(-part["step"].max() // MAX_STEPS)  # type: ignore[operator]
    stretch = (-(-pl.col("step") // width)) * width
    return part.group_by("path", "setting", stretch).agg(pl.col(column).mean())


def _points(
    measured: Mapping[str, tuple[pl.DataFrame, str]], ranks: dict[str, int], x: str
) -> list[Point]:
    """A point for each setting and x. ``measured`` has, by metric, rows and the column of y."""
    found: dict[tuple[int, float], dict[str, Band]] = {}
    for metric, (rows, column) in measured.items():
        for (setting, at), band in bands(rows, ("setting", x), column).items():
            if band is not None:
                found.setdefault((ranks[setting], at), {})[metric] = band
    return [Point(rank, at, by_metric) for (rank, at), by_metric in sorted(found.items())]


def _cost(shown: dict[int, Setting]) -> Group:
    panels = []
    for key, title in COSTS.items():
        points = [
            Point(rank, cost.mean)
            for rank, setting in shown.items()
            if setting.ood["error"] and (cost := setting.cost.get(key)) and cost.mean > 0
        ]
        if points:
            panels.append(Panel(title, scatter(title, [point.x for point in points]), points))
    note = "Low and to the left is better. Times compare only on one machine with equal load."
    return Group("cost", "Mean error out of domain against cost", note, panels)
