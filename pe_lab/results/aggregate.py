"""Runs in groups: a metric's mean, standard deviation and 95 % interval over their seeds."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import polars as pl

from pe_lab.common.errors import UsageError
from pe_lab.common.metrics import PREFIXES
from pe_lab.common.suggest import did_you_mean
from pe_lab.results.frame import compared_keys, places
from pe_lab.results.intervals import t_95
from pe_lab.results.query import unknown
from pe_lab.results.reader import text

SETTING = ("pe", "setting")
"""What runs have in common that differ only in the seed (and the task, which is always kept)."""


def grouped(
    runs: pl.DataFrame,
    by: Sequence[str] = SETTING,
    metric: str = "error",
    splits: Sequence[str] | None = None,
) -> pl.DataFrame:
    """One row for each group of finished runs and split.

    Columns: ``task``, those of ``by``, ``split``, ``n`` (values), ``seeds``, ``mean``, ``sd``
    (n - 1), ``low`` and ``high`` (95 % interval of the mean, Student's t; like ``sd`` null for
    one value), ``best`` (see ``_best``), ``settings`` (how many are pooled: above 1 the interval
    is not one over seeds alone), ``not_finite`` (losses that JSON cannot hold; with any, the mean
    is null), ``guess``. ``n`` is 0 where no run has the metric: the split is too long for the
    encoding, or the runs did not measure it.

    Args:
        by: keys whose values make a group; tasks are never pooled.
        metric: error, error_seq, loss, ..: what follows the split in a metric's name.
        splits: those wanted, in this order; all without it.

    Raises:
        UsageError: a key, metric or split is not there.

    >>> grouped(read_runs("runs"), by=["pe", "model.d_model"], splits=["sparse"])
    """
    finished = runs.filter(pl.col("state") == "finished")
    group = _group(runs, by)
    # Lazily: of two hundred columns these are a few.
    lazy = finished.with_columns(pl.struct(_data_keys(runs)).hash().alias("data")).lazy()
    long = pl.concat(
        lazy.filter(pl.col("task") == task, pl.col("splits").list.contains(split)).select(
            *group,
            pl.col("seed").alias("_seed"),
            pl.struct("data", _number(runs, f"{place}/n_seq")).hash().alias("data"),
            pl.lit(split).alias("split"),
            pl.col("setting").alias("_setting"),
            _number(runs, f"{place}/{metric}").alias("value"),
            _number(runs, f"{place}/guess").alias("guess"),
            _number(runs, f"{place}/error").is_not_null().alias("measured"),
        )
        for task in finished["task"].unique().sort()
        for split, place in _columns(runs, task, metric, splits).items()
    ).collect()
    value = pl.col("value")
    # Equal values have no spread; rounding would give them one.
    equal = value.min() == value.max()
    table = long.group_by(*group, "split", maintain_order=True).agg(
        n=value.count(),
        seeds=pl.col("_seed").unique().sort(),
        mean=pl.when(equal).then(value.min()).otherwise(value.mean()),
        sd=pl.when(equal & (value.count() > 1)).then(0.0).otherwise(value.std()),
        settings=pl.col("_setting").n_unique(),
        not_finite=(value.is_null() & pl.col("measured") & (metric == "loss")).sum(),
        guess=pl.col("guess").mean(),
        data=pl.col("data").unique().sort(),
    )
    whole = pl.col("not_finite") == 0
    table = table.with_columns(pl.when(whole).then(pl.col("mean", "sd")))
    ts = pl.Series([t_95(n) if n > 1 else None for n in table["n"]], dtype=pl.Float64)
    half = ts * pl.col("sd") / pl.col("n").sqrt()
    table = table.with_columns(low=pl.col("mean") - half, high=pl.col("mean") + half)
    best = _best(table) if metric.startswith(("error", "loss")) else [False] * len(table)
    return table.with_columns(best=pl.Series(best, dtype=pl.Boolean)).select(
        *group, "split", "n", "seeds", "mean", "sd", "low", "high", "best", "settings",
        "not_finite", "guess",
    )  # fmt: skip


def pooled(runs: pl.DataFrame, by: Sequence[str]) -> dict[str, list[Any]]:
    """The keys, the seed apart, that vary among the finished runs of some group, and the values
    that they have there: what a mean over the group is silent about."""
    finished = runs.filter(pl.col("state") == "finished")
    group = _group(runs, by)
    keys = [k for k in ("pe", "positions", *compared_keys(runs)) if k in runs.columns]
    keys = [key for key in keys if key not in group and finished[key].n_unique() > 1]
    if finished.is_empty() or not keys:
        return {}
    several = finished.select(pl.col(keys).n_unique().over(group) > 1)
    found = {
        key: finished.filter(several[key])[key].unique().sort().to_list()
        for key in keys
        if several[key].any()
    }
    # What follows from another key is told by that one.
    follows = [f"{key}." for key in ("pe", "positions") if key in found]
    if any(key.startswith("task.") and not key.startswith("task.splits.") for key in found):
        follows.append("task.splits.")
    return {key: values for key, values in found.items() if not key.startswith(tuple(follows))}


def pooled_told(runs: pl.DataFrame, by: Sequence[str]) -> list[str]:
    """The sentence for what is ``pooled``, if anything is."""
    found = pooled(runs, by)
    if not found:
        return []
    keys = ", ".join(
        f"{key} ({', '.join(map(text, values[:5]))}{', ..' if len(values) > 5 else ''})"
        for key, values in found.items()
    )
    return [
        f"by={','.join(by)} pools runs that differ in {keys}: the spread is not one over seeds "
        "alone; add these keys to by, or give them a value"
    ]


def _group(runs: pl.DataFrame, by: Sequence[str]) -> list[str]:
    for key in by:
        if key not in runs.columns:
            raise UsageError(f"by={','.join(by)}: {unknown(key, runs.columns)}")
        if key.startswith(PREFIXES) or key == "splits":
            raise UsageError(
                f"by={','.join(by)}: {key} is measured, give keys of the configuration"
            )
    return ["task", *(key for key in dict.fromkeys(by) if key != "task")]


def _columns(
    runs: pl.DataFrame, task: str, metric: str, splits: Sequence[str] | None
) -> dict[str, str]:
    """split -> the prefix of its metrics, for the wanted splits of a task, in their order."""
    every = {place.removeprefix("ood/"): place for place in places(runs)}
    for split in splits or ():
        if split not in every:
            raise UsageError(f"splits={','.join(splits or ())}: {did_you_mean(split, every)}")
    names = [name.rpartition("/") for name in runs.columns if name.startswith(PREFIXES)]
    kinds = {kind for place, _, kind in names if place in every.values()}
    if metric not in kinds:
        raise UsageError(f"metric={metric}: {did_you_mean(metric, kinds)}")
    own = places(runs.filter(task=task))
    wanted = [every[split] for split in splits] if splits else own
    return {place.removeprefix("ood/"): place for place in wanted if place in own}


def _number(runs: pl.DataFrame, name: str) -> pl.Expr:
    """The column, or nulls where no run has it."""
    return (pl.col(name) if name in runs.columns else pl.lit(None)).cast(pl.Float64)


def _data_keys(runs: pl.DataFrame) -> list[str]:
    """The keys that make the sequences a split is measured on."""
    made_by = ("task.", "contents.", "eval.sequences")
    return [key for key in compared_keys(runs) if key.startswith(made_by)]


def _best(table: pl.DataFrame) -> list[bool]:
    """Whether a group is the best at a split, as far as its seeds can tell.

    Marked is the lowest mean whose 95 % interval lies wholly below those of all other groups
    that were measured on the same data; of a group with one seed, below its value. Groups that
    tie are marked together, and only where all their seeds have the same value. Never marked are
    one seed, the only group, and any group of a table that pools several settings.
    """
    rivals: dict[tuple[Any, ...], list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    columns = ("task", "split", "data", "n", "mean", "sd", "low", "high", "settings")
    for number, row in enumerate(table.select(columns).iter_rows(named=True)):
        if row["mean"] is not None:
            rivals[row["task"], row["split"], tuple(row["data"])].append((number, row))
    marks = [False] * len(table)
    for rows in rivals.values():
        lowest = min(row["mean"] for _, row in rows)
        first = [(number, row) for number, row in rows if row["mean"] == lowest]
        floors = [
            row["mean"] if row["n"] == 1 else row["low"] for _, row in rows if row["mean"] > lowest
        ]
        seeds_tell = all(row["n"] > 1 for _, row in first)
        same = len(first) == 1 or all(row["sd"] == 0 for _, row in first)
        alone = all(row["settings"] == 1 for _, row in rows)
        if floors and seeds_tell and same and alone and first[0][1]["high"] < min(floors):
            for number, _ in first:
                marks[number] = True
    return marks
