"""The views of a task's runs in wandb: what a saved workspace shows, and in which order."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from wandb_workspaces import expr
from wandb_workspaces import workspaces as ws
from wandb_workspaces.reports.v2 import interface as wr

from pe_lab.experiment.wandb_labels import LENGTH_COLUMNS, MEAN_OOD

IN_DOMAIN_ERROR = "in_domain/error"
MOST_RUNS = 1000
"""wandb draws ten unless told."""


@dataclass(frozen=True)
class Shown:
    """What a workspace is about.

    Args:
        task: its name; a workspace is of one, whose splits are its columns.
        splits: those out of domain.
        differing: the keys in which the runs differ beside encoding and seed.
        filters: further keys of the configuration and the values that a run may have there.
        pictured: the splits of which some runs have pictures.
    """

    task: str
    splits: Sequence[str]
    differing: Sequence[str] = ()
    filters: dict[str, list[Any]] = field(default_factory=dict)
    pictured: Sequence[str] = ()

    @property
    def errors(self) -> list[str]:
        """The metrics that a comparison is about: in domain, out of domain, each split."""
        return [IN_DOMAIN_ERROR, MEAN_OOD, *(f"ood/{split}/error" for split in self.splits)]


def workspace(shown: Shown, *, entity: str, project: str, name: str) -> ws.Workspace:
    """The workspace, not saved."""
    sections = [
        ("Closing error, mean and standard deviation over seeds", _bars(shown), True),
        ("in_domain", [_curve(f"in_domain/{k}") for k in ("error", "error_seq", "loss")], True),
        ("ood", [_curve(error) for error in shown.errors[1:]], True),
        ("Error against length", [_lengths()], True),
        ("Cost against error", _costs(shown), True),
        ("pictures", _pictures(shown), True),
        ("train", [_curve("train/loss"), _curve("train/lr")], False),
        ("Where runs differ", [wr.RunComparer(diff_only="split")], False),
    ]
    groups: list[Any] = [expr.Metric("JobType")]
    groups += [expr.Config("setting")] if shown.differing else []
    return ws.Workspace(
        entity=entity,
        project=project,
        name=name,
        sections=[
            ws.Section(name=title, panels=panels, is_open=is_open)
            for title, panels, is_open in sections
            if panels
        ],
        settings=ws.WorkspaceSettings(x_axis="step", group_by_prefix="last", max_runs=MOST_RUNS),
        runset_settings=ws.RunsetSettings(
            filters=_filters(shown),
            groupby=groups,
            order=[expr.Ordering(expr.Metric("JobType")), expr.Ordering(expr.Config("seed"))],
            pinned_columns=[
                "run:displayName",
                "config:seed",
                *(f"summary:{error}" for error in shown.errors),
                "summary:params/total",
                "summary:time/train_s",
                *(f"config:{key}" for key in shown.differing),
            ],
        ),
    )


def _bars(shown: Shown) -> list[Any]:
    bars = [
        wr.BarPlot(
            title=error,
            metrics=[error],
            title_x="share of wrong answers",
            groupby=wr.Config("setting"),
            groupby_aggfunc="mean",
            groupby_rangefunc="stddev",
            max_runs_to_show=MOST_RUNS,
            max_bars_to_show=100,
        )
        for error in shown.errors
    ]
    return [*bars, wr.WeavePanelSummaryTable(table_name="splits")]


def _curve(metric: str) -> wr.LinePlot:
    return wr.LinePlot(
        title=metric,
        x="step",
        y=[metric],
        groupby=wr.Config("setting"),
        groupby_aggfunc="mean",
        groupby_rangefunc="minmax",
        max_runs_to_show=MOST_RUNS,
    )


def _lengths() -> wr.CustomChart:
    """Of each run the table that wandb_labels.py makes, a line a split."""
    split, length, error, _ = LENGTH_COLUMNS
    return wr.CustomChart(
        query={"summaryTable": {"tableKey": "lengths"}},
        chart_name="wandb/line/v0",
        chart_fields={"x": length, "y": error, "stroke": split},
        chart_strings={"title": "error against the number of tokens read"},
    )


def _costs(shown: Shown) -> list[Any]:
    worst = [wr.SummaryMetric(metric) for metric in (MEAN_OOD, IN_DOMAIN_ERROR)]
    scatters = [
        wr.ScatterPlot(title=f"{error.name} over {cost}", x=wr.SummaryMetric(cost), y=error)
        for cost in ("params/total", "time/train_s")
        for error in worst
    ]
    axes: list[Any] = [wr.Config(key) for key in ("names.pe", *shown.differing)]
    axes += [wr.SummaryMetric(m) for m in ("params/total", "time/train_s", *shown.errors)]
    columns = [wr.ParallelCoordinatesPlotColumn(axis) for axis in axes]
    return [*scatters, wr.ParallelCoordinatesPlot(columns=columns)]


def _pictures(shown: Shown) -> list[Any]:
    keys = [f"pictures/{split}" for split in shown.pictured]
    return [wr.MediaBrowser(title="What the encodings did", media_keys=keys)] if keys else []


def _filters(shown: Shown) -> Any:
    filters = [expr.Config("names.task") == shown.task]
    for key, values in shown.filters.items():
        metric = expr.Config(key)
        filters.append(metric == values[0] if len(values) == 1 else metric.isin(values))
    return expr.And(*filters)
