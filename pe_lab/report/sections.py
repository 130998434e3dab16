"""What the report says of one task: its settings, ranked, and their errors over the seeds."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from pe_lab.common.metrics import COSTS, IN_DOMAIN, TITLED
from pe_lab.results.frame import labels
from pe_lab.results.intervals import over_seeds
from pe_lab.results.reader import text

METRICS = tuple(metric.name for metric in TITLED)


@dataclass(frozen=True)
class Band:
    """A number over the seeds: mean, 95 % t interval (None for one seed), lowest and highest."""

    mean: float
    low: float | None
    high: float | None
    least: float
    most: float
    n: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Band | None":
        """The band of these seeds; None where none of them has the number."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        spread = over_seeds(known)
        alone = len(known) == 1
        return cls(
            mean=spread.mean,
            low=None if alone else spread.low,
            high=None if alone else spread.high,
            least=min(known),
            most=max(known),
            n=len(known),
        )

    @property
    def half(self) -> float | None:
        """Half the width of the interval."""
        return None if self.high is None else self.high - self.mean


@dataclass(frozen=True)
class Setting:
    """Runs that differ in the seed alone."""

    name: str
    pe: str
    told: str
    seeds: tuple[int, ...]
    cells: Mapping[str, Mapping[str, Band | None]]
    ood: Band | None
    cost: Mapping[str, Band | None]

    @property
    def label(self) -> str:
        """The encoding, and where its settings differ in what."""
        return f"{self.pe} {self.told}".strip()


@dataclass(frozen=True)
class Section:
    """One task: ``settings`` from the lowest to the highest mean error out of domain; the cells
    of a setting are found by metric and split, and ``changes`` tells what a split changes. With a
    ``note`` it is of evaluations: its splits are lengths, all of them in the mean."""

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
    told: Mapping[str, str] | None = None,
    notes: Mapping[str, str] | None = None,
) -> list[Section]:
    """One section for each task of the finished runs.

    Args:
        runs: finished runs, as ``frame.read_runs`` gives them.
        splits: their ``frame.by_split``.
        told: a setting's words; as in the tables of results without it.
        notes: a task's note.
    """
    return [
        _section(
            str(task),
            own,
            splits.filter(pl.col("task") == task),
            labels(own) if told is None else told,
            (notes or {}).get(str(task), ""),
        )
        for (task,), own in sorted(runs.group_by(["task"], maintain_order=True), key=_first)
    ]


def _first(pair: tuple[Any, Any]) -> Any:
    return pair[0]


def _section(
    task: str, runs: pl.DataFrame, splits: pl.DataFrame, told: Mapping[str, str], note: str
) -> Section:
    names = splits["split"].unique(maintain_order=True).to_list()
    names.sort(key=lambda split: split != IN_DOMAIN)
    cells: dict[str, dict[str, dict[str, Band | None]]] = {}
    for row in splits.group_by("setting", "split").agg(*METRICS).iter_rows(named=True):
        own = cells.setdefault(row["setting"], {metric: {} for metric in METRICS})
        for metric in METRICS:
            own[metric][row["split"]] = Band.of(row[metric])
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
            told=told.get(row["setting"], ""),
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
    grouped = runs.group_by("setting").agg(column)
    return {setting: Band.of(values) for setting, values in grouped.iter_rows()}


def _rank(setting: Setting) -> tuple[float, float, str]:
    inside = setting.cells["error"].get(IN_DOMAIN)
    return (
        setting.ood.mean if setting.ood else float("inf"),
        inside.mean if inside else float("inf"),
        setting.label,
    )


def task_keys(run: Mapping[str, Any]) -> dict[str, Any]:
    """The task's keys of a row of runs, without their prefix."""
    return {key[5:]: value for key, value in run.items() if key.startswith("task.")}


def override(config: Mapping[str, Any], split: str) -> dict[str, Any]:
    """What a split changes of these keys of a task."""
    start = f"splits.{split}."
    return {
        key[len(start) :]: value
        for key, value in config.items()
        if key.startswith(start) and value is not None
    }


def _changes(runs: pl.DataFrame, splits: list[str]) -> dict[str, list[str]]:
    """What each split changes, where all runs agree on it."""
    keys = [column for column in runs.columns if column.startswith("task.splits.")]
    alike = [key for key in keys if runs[key].n_unique() == 1]
    config = task_keys(runs.select(alike).row(0, named=True)) if alike else {}
    told = {split: override(config, split) for split in splits}
    return {
        split: [f"{key} {text(value)}" for key, value in own.items()] for split, own in told.items()
    }
