"""What a report shows of a task: its settings, ranked, with their errors over the seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

import polars as pl

from pe_lab.core.metrics import COSTS, IN_DOMAIN, TABLED
from pe_lab.core.output import printable
from pe_lab.core.test_time import LEGEND, MARK, TEST_TIME
from pe_lab.evaluate.record import TRAINED
from pe_lab.explain.cells import Cell
from pe_lab.results.evaluations import recorded, scales, shown_encoding
from pe_lab.results.groups import SETTING
from pe_lab.results.labels import labels
from pe_lab.results.protocol import threshold
from pe_lab.results.statistics import NO_THRESHOLD, mean_rate, spread, with_rates
from pe_lab.results.table import text
from pe_lab.results.tables import tuning_note


@dataclass(frozen=True)
class Band:
    """A number over the seeds.

    Args:
        k: how many of the n are at or below the threshold; None without one.
        values: every seed, ascending.
    """

    mean: float
    n: int
    median: float
    k: int | None
    clusters: bool
    values: Sequence[float]

    @property
    def rate(self) -> str:
        """``6/8``; empty for one seed and without a threshold."""
        return "" if self.k is None or self.n == 1 else f"{self.k}/{self.n}"


@dataclass(frozen=True)
class Setting:
    """Runs that differ only in the seed.

    Args:
        differs: the keys in which it differs from other settings.
        mark: of an encoding made for test time that was trained from scratch, else empty.
        steps: the fewest that one of the runs was trained for.
        cells: the error on each split; None where the split was too long for the encoding.
        ood: the mean error over the OOD splits, or over all lengths; None where one is missing.
        everywhere: how many seeds are at or below the threshold on every OOD split.
        why: the diagnosed seeds of a split, for each split of which pe-lab why has some.
    """

    name: str
    pe: str
    differs: str
    mark: str
    seeds: tuple[int, ...]
    steps: int
    cells: Mapping[str, Band | None]
    ood: Band | None
    everywhere: int
    cost: Mapping[str, Band | None]
    why: Sequence[Cell] = ()

    @property
    def label(self) -> str:
        """The encoding with its mark, and ``differs``; safe to print."""
        return printable(f"{self.pe}{self.mark} {self.differs}").strip()

    def count(self, split: str) -> tuple[int, int]:
        """k and n of a split; no seed succeeds where the split was too long for the encoding."""
        band = self.cells.get(split)
        return (band.k or 0, band.n) if band else (0, len(self.seeds))

    def rate(self, splits: Sequence[str]) -> float | None:
        """The success rate, averaged over those of the splits that it has."""
        found = mean_rate(self.count(split) for split in splits if split in self.cells)
        return None if found is None else float(found)

    @property
    def learned(self) -> bool:
        """Whether at least half of the seeds fit the task in domain, or that was not measured."""
        k, n = self.count(IN_DOMAIN)
        return IN_DOMAIN not in self.cells or 2 * k >= n


@dataclass(frozen=True)
class Section:
    """One task, or the evaluations of one split of it: then ``splits`` are lengths.

    Args:
        settings: by success rate over the OOD splits, then by mean error, best first.
        changes: the keys that each split changes.
        rows: a row per run and split.
        thresholds: the error up to which each split counts as generalised; none for lengths.
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
    rows: pl.DataFrame = field(repr=False)
    split: str = ""
    note: str = ""

    @property
    def title(self) -> str:
        return f"{self.task}, {self.split}" if self.split else self.task

    @property
    def legend(self) -> str:
        """What the marks of settings mean; empty where none has one."""
        return LEGEND if any(setting.mark for setting in self.settings) else ""

    @property
    def ood(self) -> tuple[str, ...]:
        return tuple(split for split in self.splits if split != IN_DOMAIN)

    @property
    def worst(self) -> float:
        """The error of the worst colour: guessing, or the largest mean error if that is more."""
        means = [band.mean for s in self.settings for band in s.cells.values() if band]
        return max([*means, *(guess for guess in self.guess.values() if guess)], default=1.0) or 1.0

    @property
    def representatives(self) -> list[Setting]:
        """One setting of each encoding: that with the most seeds, of these with the fewest keys
        that differ. No result decides, as the best of several looks better than it is."""
        first: dict[str, Setting] = {}
        for setting in self.settings:
            known = first.setdefault(setting.pe, setting)
            first[setting.pe] = min(known, setting, key=_departure)
        return [setting for setting in self.settings if first[setting.pe] is setting]

    @property
    def colour_order(self) -> list[int]:
        """The ranks of the settings in the order of colours: one of each encoding first."""
        chosen = {setting.name for setting in self.representatives}
        return sorted(
            range(len(self.settings)), key=lambda rank: self.settings[rank].name not in chosen
        )


def _departure(setting: Setting) -> tuple[int, int, str]:
    return -len(setting.seeds), len(setting.differs.split()), setting.differs


def sections(
    runs: pl.DataFrame,
    splits: pl.DataFrame,
    where: str | None = None,
    why: Mapping[str, Sequence[Cell]] = MappingProxyType({}),
) -> list[Section]:
    """One section for each task.

    Args:
        runs: finished runs, as ``frame.read_runs`` gives them.
        splits: their ``frame.by_split``.
        where: the condition that selected the runs.
        why: setting -> its diagnosed seeds.
    """
    found = []
    for (task,), part in sorted(runs.group_by("task", maintain_order=True), key=lambda p: p[0]):
        of_task, note = splits.filter(pl.col("task") == task), _pooled(part, where)
        one = section(part, of_task, labels(part), note=note)
        settings = (replace(s, why=why.get(s.name, ())) for s in one.settings)
        found.append(replace(one, settings=tuple(settings)))
    return found


def _pooled(runs: pl.DataFrame, where: str | None) -> str:
    """That tuning runs of a suite are pooled with others, if they are."""
    notes = tuning_note(runs, SETTING, where)
    return " ".join(f"In the table and the charts {note}." for note in notes)


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
    cells: dict[str, dict[str, Band | None]] = {}
    for (setting, name), band in bands(splits, ("setting", "split"), "error", limit).items():
        cells.setdefault(setting, {})[name] = band
    # Null where one of the splits was not measured; of evaluations, too, where one is missing.
    per_run = splits.filter(pl.col("split") != IN_DOMAIN).group_by("setting", "path").agg(
        pl.when(pl.col("error").is_not_null().all() & (pl.len() >= (len(names) if split else 1)))
        .then(pl.col("error").mean()),
        everywhere=(pl.col("error").fill_null(float("inf")) <= limit).all(),
    )  # fmt: skip
    ood = _over_runs(per_run, "error")
    everywhere = dict(per_run.group_by("setting").agg(pl.col("everywhere").sum()).iter_rows())
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
            ood=_of_its_splits(ood.get(row["setting"]), cells[row["setting"]]),
            everywhere=everywhere.get(row["setting"], 0),
            cost={key: cost.get(row["setting"]) for key, cost in costs.items()},
        )
        for row in runs.group_by("setting", "pe").agg("seed", "step").iter_rows(named=True)
    ]
    guess = splits.group_by("split", maintain_order=True).agg(pl.col("guess").mean())
    changes = changes_of(runs, names)
    found = Section(
        task, tuple(names), (), dict(guess.iter_rows()), limits, changes, runs, splits, split, note
    )
    several = any(len(setting.seeds) > 1 for setting in settings)
    ranked = sorted(settings, key=lambda one: _rank(one, found.ood if limits and several else ()))
    return replace(found, settings=tuple(ranked))


def _of_its_splits(mean: Band | None, cells: Mapping[str, Band | None]) -> Band | None:
    """The mean; of two clusters where a split that it averages is."""
    averaged = (band for split, band in cells.items() if split != IN_DOMAIN)
    if mean is None or mean.n == 1 or not any(band and band.clusters for band in averaged):
        return mean
    return replace(mean, clusters=True)


def _over_runs(runs: pl.DataFrame, column: str) -> dict[str, Band | None]:
    if column not in runs.columns:
        return {}
    return {setting: band for (setting,), band in bands(runs, ("setting",), column).items()}


def _rank(setting: Setting, splits: Sequence[str]) -> tuple[float, float, float, str]:
    """The place of a setting, by its success rate on these splits first; last if one is missing."""
    ood, inside = (
        band.mean if band else float("inf") for band in (setting.ood, setting.cells.get(IN_DOMAIN))
    )
    counts = [(band.k, band.n) if (band := setting.cells.get(s)) else (None, 0) for s in splits]
    rate = mean_rate(counts) if splits else 0
    return float("inf") if rate is None else -float(rate), ood, inside, setting.label


def bands(
    rows: pl.DataFrame, by: Sequence[str], value: str, threshold: pl.Expr = NO_THRESHOLD
) -> dict[tuple[Any, ...], Band | None]:
    """The band of a column for each group; None where no row of it has a value."""
    table = with_rates(rows.group_by(by).agg(**spread(pl.col(value), threshold)))
    columns = [field.name for field in fields(Band)]
    groups = zip(table.select(by).iter_rows(), table.select(columns).iter_rows(), strict=True)
    return {key: Band(*band) if band[columns.index("n")] else None for key, band in groups}


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


def changes_of(runs: pl.DataFrame, splits: Sequence[str]) -> dict[str, list[str]]:
    """The keys that each split changes, if they have one value in all runs."""
    keys = [column for column in runs.columns if column.startswith("task.splits.")]
    alike = [key for key in keys if runs[key].n_unique() == 1]
    config = task_keys(runs.select(alike).row(0, named=True)) if alike else {}
    return {
        split: [f"{key} {text(value)}" for key, value in override(config, split).items()]
        for split in splits
    }


def evaluated(runs: pl.DataFrame, where: str | None = None) -> tuple[list[Section], list[str]]:
    """The sections of recorded evaluations, and a message for each file that cannot be read.

    A setting is one of the runs with an encoding, the splits are the lengths.

    Args:
        runs: as ``frame.read_runs`` gives them.
        where: the condition that selected the runs.
    """
    rows, unread = recorded(runs)
    if rows.is_empty():
        return [], unread
    names = labels(runs.filter(pl.col("path").is_in(rows["path"].unique().to_list())))
    found = evaluated_sections(rows, runs, names, where)
    return sorted(found, key=lambda section: section.title), unread


def evaluated_sections(
    rows: pl.DataFrame, runs: pl.DataFrame, names: Mapping[str, str], where: str | None = None
) -> list[Section]:
    """The sections of these evaluations, one for each task and split.

    Args:
        rows: as ``results.evaluations.recorded`` or ``evaluate`` gives them.
        runs: the runs that they are of, with any others.
        names: the keys in which each setting of the runs differs.
        where: the condition that selected the runs.
    """
    trained = pl.col("encoding") == TRAINED
    cells = rows.sort("tokens", maintain_order=True).join(
        runs.select("path", "step"), on="path", how="left", maintain_order="left"
    ).select(
        "path", "task", "seed", "step", *TABLED,
        of_split=pl.col("split"),
        split=pl.col("tokens").cast(pl.String),
        pe=pl.when(trained).then("pe").otherwise("encoding"),
        setting=pl.format("{} {}", "setting", shown_encoding()),
        trained_as=pl.col("setting"),
        role=pl.when(trained).then(pl.lit("as trained"))
        .otherwise(pl.format("in place of {}", "pe")),
    )  # fmt: skip
    differs = {
        setting: f"{role} {names.get(trained_as, '')}".strip()
        for setting, role, trained_as in cells.select("setting", "role", "trained_as").iter_rows()
    }
    found = []
    for (task, split), part in cells.group_by("task", "of_split", maintain_order=True):
        of_split = rows.filter(pl.col("task") == task, pl.col("split") == split)
        measured = runs.filter(pl.col("path").is_in(of_split["path"].unique().to_list()))
        notes = [f"{note[0].upper()}{note[1:]}." for note in scales(of_split)]
        runs_of = part.unique(["path", "setting"], maintain_order=True)
        note = " ".join(filter(None, [*notes, _pooled(measured, where)]))
        found.append(section(runs_of, part, differs, str(split), note))
    return found
