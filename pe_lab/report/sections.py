"""A section of the report: the settings of one task, ranked, and their metrics over the seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from pe_lab.core.metrics import COSTS, IN_DOMAIN, TITLED
from pe_lab.core.test_time import LEGEND, MARK, TEST_TIME
from pe_lab.report.bands import Band, bands
from pe_lab.report.changes import changes_of
from pe_lab.results.aggregate import SETTING
from pe_lab.results.labels import labels
from pe_lab.results.presentation.notes import pooled_note
from pe_lab.results.statistics.intervals import NO_THRESHOLD
from pe_lab.results.statistics.proportions import mean_rate
from pe_lab.results.suite import threshold

METRICS = tuple(metric.name for metric in TITLED)


@dataclass(frozen=True)
class Setting:
    """Runs that differ only in the seed.

    Args:
        differs: the keys in which it differs from other settings.
        steps: the fewest that one of the runs was trained for.
        mark: of an encoding made for test time that was trained from scratch, else empty.
        cells: the metrics of each split, by metric and split.
        ood: the means over the out-of-domain splits, or over all lengths, by metric; None where
            one of them was not measured, of two clusters where the seeds are on one of them.
    """

    name: str
    pe: str
    differs: str
    mark: str
    seeds: tuple[int, ...]
    steps: int
    cells: Mapping[str, Mapping[str, Band | None]]
    ood: Mapping[str, Band | None]
    cost: Mapping[str, Band | None]

    @property
    def label(self) -> str:
        """The encoding with its mark, and ``differs``."""
        return f"{self.pe}{self.mark} {self.differs}".strip()


@dataclass(frozen=True)
class Section:
    """One task, or the evaluations of one split of it: then ``splits`` are lengths.

    Args:
        settings: where cells show rates from the highest to the lowest mean of them over the splits
            out of domain; equal ones, and else all, from the lowest to the highest mean error out
            of domain (or over lengths).
        changes: the keys that each split changes.
        thresholds: of each split, the error up to which it counts as generalised; none of lengths.
        split: the split of the evaluations, else empty.
        note: what the evaluations are, or which runs of a table were made for tuning.
    """

    task: str
    splits: tuple[str, ...]
    settings: tuple[Setting, ...]
    guess: Mapping[str, float | None]
    thresholds: Mapping[str, float]
    changes: Mapping[str, list[str]]
    runs: pl.DataFrame = field(repr=False)
    split: str = ""
    note: str = ""

    @property
    def title(self) -> str:
        return f"{self.task}, {self.split}" if self.split else self.task

    @property
    def legend(self) -> str:
        """What the marks of settings say; empty where none has one."""
        return LEGEND if any(setting.mark for setting in self.settings) else ""

    @property
    def rated(self) -> bool:
        """Whether a cell of its table shows k/n of several seeds."""
        bands = (band for of in self.settings for band in of.cells["error"].values() if band)
        return any(band.k is not None and band.n > 1 for band in bands)

    @property
    def ood(self) -> tuple[str, ...]:
        """The splits out of domain."""
        return tuple(split for split in self.splits if split != IN_DOMAIN)

    @property
    def colour_order(self) -> list[int]:
        """The ranks of the settings in the order in which charts colour them: from the best, but
        first those with at least as many seeds and steps as all others."""
        seeds = max((len(setting.seeds) for setting in self.settings), default=0)
        steps = max((setting.steps for setting in self.settings), default=0)

        def lacking(rank: int) -> int:
            setting = self.settings[rank]
            return (len(setting.seeds) < seeds) + (setting.steps < steps)

        return sorted(range(len(self.settings)), key=lambda rank: (lacking(rank), rank))


def sections(runs: pl.DataFrame, splits: pl.DataFrame, where: str | None = None) -> list[Section]:
    """One section for each task.

    Args:
        runs: finished runs, as ``frame.read_runs`` gives them.
        splits: their ``frame.by_split``.
        where: the condition that selected the runs.
    """
    return [
        section(
            part,
            splits.filter(pl.col("task") == task),
            labels(part),
            note="".join(f"{text}." for text in in_charts(part, where)),
        )
        for (task,), part in sorted(runs.group_by(["task"], maintain_order=True), key=_first)
    ]


def in_charts(runs: pl.DataFrame, where: str | None) -> list[str]:
    """That tuning runs of a suite are pooled with others, if they are."""
    return [f"In the table and the charts {note}" for note in pooled_note(runs, SETTING, where)]


def _first(pair: tuple[Any, Any]) -> Any:
    return pair[0]


def section(
    runs: pl.DataFrame,
    splits: pl.DataFrame,
    differs: Mapping[str, str],
    split: str = "",
    note: str = "",
) -> Section:
    """The section of runs of one task.

    Args:
        runs: with the columns ``task``, ``setting``, ``pe``, ``seed``, ``step`` and the costs.
        splits: a row per run and split, with the columns of ``frame.by_split``.
        differs: the keys in which each setting differs.
        split, note: see ``Section``.
    """
    names = splits["split"].unique(maintain_order=True).to_list()
    names.sort(key=lambda name: name != IN_DOMAIN)
    task = runs["task"][0]
    limits = {} if split else {name: threshold(task, name) for name in names}
    limit = pl.col("split").replace_strict(limits, default=None, return_dtype=pl.Float64)
    cells: dict[str, dict[str, dict[str, Band | None]]] = {}
    ood = {}
    for metric in METRICS:
        rated = limit if metric == "error" else NO_THRESHOLD
        for (setting, name), band in bands(splits, ("setting", "split"), metric, rated).items():
            cells.setdefault(setting, {m: {} for m in METRICS})[metric][name] = band
        means = _over_runs(_means(splits, metric, len(names) if split else 1), metric)
        ood[metric] = {
            setting: _of_its_splits(mean, cells[setting][metric]) for setting, mean in means.items()
        }
    costs = {key: _over_runs(runs, key) for key in COSTS}
    settings = [
        Setting(
            name=row["setting"],
            pe=row["pe"],
            differs=differs.get(row["setting"], ""),
            mark=MARK if row["pe"] in TEST_TIME and not split else "",
            seeds=tuple(sorted(row["seed"])),
            steps=min(row["step"]),
            cells=cells[row["setting"]],
            ood={metric: of_metric.get(row["setting"]) for metric, of_metric in ood.items()},
            cost={key: cost.get(row["setting"]) for key, cost in costs.items()},
        )
        for row in runs.group_by("setting", "pe").agg("seed", "step").iter_rows(named=True)
    ]
    guess = dict(
        splits.group_by("split", maintain_order=True).agg(pl.col("guess").mean()).iter_rows()
    )
    changes = changes_of(runs, names)
    found = Section(task, tuple(names), tuple(settings), guess, limits, changes, runs, split, note)
    outside = [name for name in names if name != IN_DOMAIN] if found.rated else []
    ranked = sorted(settings, key=lambda setting: _rank(setting, outside))
    return replace(found, settings=tuple(ranked))


def _means(splits: pl.DataFrame, metric: str, least: int) -> pl.DataFrame:
    """The mean of each run over its splits out of domain; null where one of them could not be
    measured, or where there are fewer than ``least``."""
    out = splits.filter(pl.col("split") != IN_DOMAIN).group_by("setting", "path")
    complete = pl.col(metric).is_not_null().all() & (pl.len() >= least)
    return out.agg(pl.when(complete).then(pl.col(metric).mean()))


def _of_its_splits(mean: Band | None, cells: Mapping[str, Band | None]) -> Band | None:
    """The mean, of two clusters and without interval where a split that it averages is."""
    averaged = (band for split, band in cells.items() if split != IN_DOMAIN)
    if mean is None or mean.n == 1 or not any(band and band.clusters for band in averaged):
        return mean
    return replace(mean, clusters=True, low=None, high=None)


def _over_runs(runs: pl.DataFrame, column: str) -> dict[str, Band | None]:
    if column not in runs.columns:
        return {}
    return {setting: band for (setting,), band in bands(runs, ("setting",), column).items()}


def _rank(setting: Setting, outside: Sequence[str]) -> tuple[float, float, float, str]:
    """The place of a setting, by k/n on these splits first, if there are any."""
    found = setting.ood["error"], setting.cells["error"].get(IN_DOMAIN)
    ood, inside = (band.mean if band else float("inf") for band in found)
    bands = (setting.cells["error"].get(split) for split in outside)
    rate = mean_rate((band.k, band.n) if band else (None, 0) for band in bands) if outside else 0
    return float("inf") if rate is None else -float(rate), ood, inside, setting.label
