"""A section of the report: the settings of one task, ranked, and their errors over the seeds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from pe_lab.common.metrics import COSTS, IN_DOMAIN, TITLED
from pe_lab.report.bands import Band, bands
from pe_lab.results.labels import labels
from pe_lab.results.reader import text

METRICS = tuple(metric.name for metric in TITLED)


@dataclass(frozen=True)
class Setting:
    """Runs that differ only in the seed."""

    name: str
    pe: str
    differs: str
    seeds: tuple[int, ...]
    cells: Mapping[str, Mapping[str, Band | None]]
    ood: Band | None
    cost: Mapping[str, Band | None]

    @property
    def label(self) -> str:
        """The encoding, and the keys in which the setting differs from others."""
        return f"{self.pe} {self.differs}".strip()


@dataclass(frozen=True)
class Section:
    """One task: ``settings`` from the lowest to the highest mean error out of domain; the cells
    of a setting are by metric and split, and ``changes`` has the keys that a split changes. With
    a ``note`` it is of evaluations: its splits are lengths, all of them in the mean."""

    task: str
    splits: tuple[str, ...]
    settings: tuple[Setting, ...]
    guess: Mapping[str, float | None]
    changes: Mapping[str, list[str]]
    runs: pl.DataFrame = field(repr=False)
    note: str = ""

    @property
    def ood(self) -> tuple[str, ...]:
        """The splits out of domain."""
        return tuple(split for split in self.splits if split != IN_DOMAIN)


def sections(
    runs: pl.DataFrame,
    splits: pl.DataFrame,
    differs: Mapping[str, str] | None = None,
    notes: Mapping[str, str] | None = None,
) -> list[Section]:
    """One section for each task of the finished runs.

    Args:
        runs: finished runs, as ``frame.read_runs`` gives them.
        splits: their ``frame.by_split``.
        differs: the keys in which a setting differs; None: its ``labels``.
        notes: a task's note.
    """
    return [
        _section(
            str(task),
            part,
            splits.filter(pl.col("task") == task),
            labels(part) if differs is None else differs,
            (notes or {}).get(str(task), ""),
        )
        for (task,), part in sorted(runs.group_by(["task"], maintain_order=True), key=_first)
    ]


def _first(pair: tuple[Any, Any]) -> Any:
    return pair[0]


def _section(
    task: str, runs: pl.DataFrame, splits: pl.DataFrame, differs: Mapping[str, str], note: str
) -> Section:
    names = splits["split"].unique(maintain_order=True).to_list()
    names.sort(key=lambda split: split != IN_DOMAIN)
    cells: dict[str, dict[str, dict[str, Band | None]]] = {}
    for metric in METRICS:
        for (setting, split), band in bands(splits, ("setting", "split"), metric).items():
            cells.setdefault(setting, {metric: {} for metric in METRICS})[metric][split] = band
    ood = _over_runs(
        splits.filter(pl.col("split") != IN_DOMAIN)
        .group_by("setting", "path")
        .agg(pl.col("error").mean()),
        "error",
    )
    costs = {key: _over_runs(runs, key) for key in COSTS}
    settings = [
        Setting(
            name=row["setting"],
            pe=row["pe"],
            differs=differs.get(row["setting"], ""),
            seeds=tuple(sorted(row["seed"])),
            cells=cells[row["setting"]],
            ood=ood.get(row["setting"]),
            cost={key: cost.get(row["setting"]) for key, cost in costs.items()},
        )
        for row in runs.group_by("setting", "pe").agg("seed").iter_rows(named=True)
    ]
    settings.sort(key=_rank)
    guess = dict(
        splits.group_by("split", maintain_order=True).agg(pl.col("guess").mean()).iter_rows()
    )
    changes = _changes(runs, names)
    return Section(task, tuple(names), tuple(settings), guess, changes, runs, note)


def _over_runs(runs: pl.DataFrame, column: str) -> dict[str, Band | None]:
    if column not in runs.columns:
        return {}
    return {setting: band for (setting,), band in bands(runs, ("setting",), column).items()}


def _rank(setting: Setting) -> tuple[float, float, str]:
    inside = setting.cells["error"].get(IN_DOMAIN)
    return (
        setting.ood.mean if setting.ood else float("inf"),
        inside.mean if inside else float("inf"),
        setting.label,
    )


def task_keys(run: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the task in a row of runs, without their prefix."""
    return {key[5:]: value for key, value in run.items() if key.startswith("task.")}


def override(config: Mapping[str, Any], split: str) -> dict[str, Any]:
    """The keys of a task that a split changes, with their values."""
    start = f"splits.{split}."
    return {
        key[len(start) :]: value
        for key, value in config.items()
        if key.startswith(start) and value is not None
    }


def _changes(runs: pl.DataFrame, splits: list[str]) -> dict[str, list[str]]:
    """The keys that each split changes, if they have one value in all runs."""
    keys = [column for column in runs.columns if column.startswith("task.splits.")]
    alike = [key for key in keys if runs[key].n_unique() == 1]
    config = task_keys(runs.select(alike).row(0, named=True)) if alike else {}
    return {
        split: [f"{key} {text(value)}" for key, value in override(config, split).items()]
        for split in splits
    }
