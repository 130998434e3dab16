"""A wandb workspace over the runs of a task, made with wandb-workspaces."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from wandb_workspaces import expr
from wandb_workspaces import workspaces as ws
from wandb_workspaces.reports.v2 import interface as wr

from pe_lab.core.metrics import CHARTED, COSTS, IN_DOMAIN, MEAN_OOD, metric_name
from pe_lab.experiment.tracking import LENGTH_COLUMNS

MAX_RUNS = 1000
"""wandb's default is ten."""

OVER_SEEDS: dict[str, Any] = {
    "groupby": wr.Config("setting"),
    "groupby_aggfunc": "mean",
    "max_runs_to_show": MAX_RUNS,
}


def workspace(
    task: str,
    splits: Iterable[str],
    *,
    keys: Sequence[str],
    filters: Mapping[str, Sequence[Any]],
    entity: str,
    project: str,
    name: str,
) -> ws.Workspace:
    """The workspace, not saved.

    Args:
        splits: the task's, whose errors are charts and columns.
        keys: configuration keys, besides encoding and seed, in which the runs differ.
        filters: further configuration keys, and the values that a run may have.
    """
    errors = [MEAN_OOD, *(metric_name(s, "error") for s in splits if s != IN_DOMAIN)]
    in_domain = [metric_name(IN_DOMAIN, metric.name) for metric in CHARTED]
    closing = [in_domain[0], *errors]
    sections = [
        ("Closing error, mean and standard deviation over seeds", _bars(closing), True),
        ("in_domain", _curves(in_domain), True),
        ("ood", _curves(errors), True),
        ("Error against length", [_error_by_length()], True),
        ("Cost against error", _costs(keys, closing), True),
        ("train", _curves(["train/loss", "train/lr"]), False),
        ("Where runs differ", [wr.RunComparer(diff_only="split")], False),
    ]
    conditions = [expr.Config("names.task") == task]
    for key, values in filters.items():
        value = expr.Config(key)
        conditions.append(value == values[0] if len(values) == 1 else value.isin(list(values)))
    return ws.Workspace(
        entity=entity,
        project=project,
        name=name,
        sections=[
            ws.Section(name=title, panels=panels, is_open=is_open)
            for title, panels, is_open in sections
            if panels
        ],
        settings=ws.WorkspaceSettings(x_axis="step", group_by_prefix="last", max_runs=MAX_RUNS),
        runset_settings=ws.RunsetSettings(
            filters=expr.And(*conditions),
            groupby=[expr.Metric("JobType"), *([expr.Config("setting")] if keys else [])],
            order=[expr.Ordering(expr.Metric("JobType")), expr.Ordering(expr.Config("seed"))],
            pinned_columns=[
                "run:displayName",
                "config:seed",
                *(f"summary:{metric}" for metric in (*closing, *COSTS)),
                *(f"config:{key}" for key in keys),
            ],
        ),
    )


def _bars(metrics: Sequence[str]) -> list[Any]:
    style = {"title_x": "share of wrong answers", "max_bars_to_show": 100, **OVER_SEEDS}
    bars = [wr.BarPlot(title=m, metrics=[m], groupby_rangefunc="stddev", **style) for m in metrics]
    return [*bars, wr.WeavePanelSummaryTable(table_name="splits")]


def _curves(metrics: Sequence[str]) -> list[Any]:
    return [
        wr.LinePlot(title=m, x="step", y=[m], groupby_rangefunc="minmax", **OVER_SEEDS)
        for m in metrics
    ]


def _error_by_length() -> wr.CustomChart:
    """One line per split, from the table ``lengths`` of each run."""
    split, length, error, _ = LENGTH_COLUMNS
    return wr.CustomChart(
        query={"summaryTable": {"tableKey": "lengths"}},
        chart_name="wandb/line/v0",
        chart_fields={"x": length, "y": error, "stroke": split},
        chart_strings={"title": "error against the number of tokens read"},
    )


def _costs(keys: Sequence[str], errors: Sequence[str]) -> list[Any]:
    scatters = [
        wr.ScatterPlot(
            title=f"{error} over {cost}", x=wr.SummaryMetric(cost), y=wr.SummaryMetric(error)
        )
        for cost in COSTS
        for error in (MEAN_OOD, errors[0])
    ]
    axes: list[Any] = [wr.Config(key) for key in ("names.pe", *keys)]
    axes += [wr.SummaryMetric(metric) for metric in (*COSTS, *errors)]
    columns = [wr.ParallelCoordinatesPlotColumn(axis) for axis in axes]
    return [*scatters, wr.ParallelCoordinatesPlot(columns=columns)]
