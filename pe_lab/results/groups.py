"""Groups of runs: what a setting is called, and success rate, median, mean and standard deviation
over its seeds.

A setting is called by the keys in which it departs from the task's preset and the defaults, as far
as the settings beside it do not share them.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import polars as pl

from pe_lab.core.config_dir import choices, conf
from pe_lab.core.errors import UsageError, check_known
from pe_lab.core.files import read_yaml
from pe_lab.core.metrics import (
    IN_DOMAIN,
    METRICS,
    NOT_FINITE,
    OOD,
    metric_name,
    metric_prefix,
    threshold,
)
from pe_lab.results.statistics import LEVEL, least_p, spread, with_rates
from pe_lab.results.table import (
    FACTS,
    compared_keys,
    flat,
    measured,
    splits_of,
    text,
)
from pe_lab.store.run_id import ONLY_EARLY_STOPPING

# Columns of ``grouped`` that depend on a threshold.
RATES = ("k", "p_generalises", "p_low", "p_high", "threshold")
# Metrics that a threshold can be of; only of errors per answer does the suite have one.
RATED = ("error", "error_generated", "error_seq")
# The keys that runs share which differ only in the seed; the task is always a key.
SETTING = ("pe", "setting")
# A row of ``table.read_runs``.
Run = Mapping[str, Any]
# setting -> key -> value.
Values = dict[str, dict[str, str]]
_SHORTENED = ("task.", "pe.", "positions.", "model.", "train.", "eval.")


def grouped(
    runs: pl.DataFrame,
    by: Sequence[str] = SETTING,
    metric: str = "error",
    splits: Sequence[str] | None = None,
    limit: float | None = None,
    by_rate: bool = True,
) -> pl.DataFrame:
    """Return one row for each group of finished runs and split.

    The split ``ood`` is the mean over all splits out of domain, for each run.

    Columns: ``task``, those of ``by``, ``split``, ``n`` (values), ``seeds``, ``mean``, ``sd``
    (n - 1; null for one value), ``best`` (see ``best_rows``), ``settings`` (how many are pooled:
    above 1 the spread is not one over seeds alone), ``not_finite`` (losses that JSON cannot hold;
    with any, the mean is null), ``guess``; and of ``statistics``: ``k`` (runs with an error up to
    ``threshold``, of errors on single splits only), ``p_generalises``, ``p_low``, ``p_high``
    (95 %, Wilson), ``median``, ``threshold`` and ``values``, ascending. ``n`` is 0
    where no run has the metric: the split is too long for the encoding, or the runs did not
    measure it.

    Args:
        by: a list of full keys whose values make a group; tasks are never pooled.
        metric: error, error_seq, loss, ..: what follows the split in a metric's name.
        splits: those to show, in this order; None: all and, where the metric has a mean, ``ood``.
        limit: the threshold of all splits; None: those of the suites (``metrics.threshold``).
        by_rate: whether the best is judged by k/n where there is a threshold, else by the mean.

    Raises:
        UsageError: an unknown key, metric or split, or no finished run.

    >>> grouped(read_runs("runs"), by=["pe", "model.d_model"], splits=["sparse"])
    """
    finished = runs.filter(state="finished")
    if finished.is_empty():
        raise UsageError("none of these runs is finished: there is nothing to group")
    finished = finished.with_columns(_data=pl.struct(data_keys(runs)).hash())
    keys, parts = ["task", *group_keys(by, runs.columns)], []
    for (task,), of_task in finished.sort("task", maintain_order=True).group_by(
        "task", maintain_order=True
    ):
        shown = selected_splits(runs, str(task), metric, splits)
        parts += [
            _values(of_task, split, keys, metric, _threshold(str(task), split, metric, limit))
            for split in shown
        ]
    return summarized(pl.concat(parts), [*keys, "split"], ("task", "split"), metric, by_rate)


def _values(
    runs: pl.DataFrame, split: str, keys: Sequence[str], metric: str, limit: float | None
) -> pl.DataFrame:
    """Return what ``summarized`` reads of the runs of a task that have a split, or the mean."""
    of_split = [s for s in splits_of(runs) if s != IN_DOMAIN] if split == OOD else [split]
    overflown = pl.col(NOT_FINITE).str.split(" ")
    sizes = [measured(runs, one, "n_seq").alias(one) for one in of_split]
    return runs.filter(pl.lit(split == OOD) | pl.col("splits").list.contains(split)).select(
        *keys,
        split=pl.lit(split),
        _seed="seed",
        _setting="setting",
        _data=pl.struct("_data", *sizes).hash(),
        _value=measured(runs, split, metric),
        _guess=measured(runs, split, "guess"),
        _not_finite=pl.any_horizontal(
            overflown.list.contains(metric_name(one, metric)) for one in of_split
        ),
        _threshold=pl.lit(limit, pl.Float64),
    )


def summarized(
    values: pl.DataFrame,
    keys: Sequence[str],
    column: Sequence[str],
    metric: str,
    by_rate: bool = True,
) -> pl.DataFrame:
    """Return one row for each combination of ``keys``, with the columns of ``grouped`` after them.

    Args:
        values: a row for each run and split: the keys, ``_seed``, ``_setting``, ``_data`` (a hash
            of what the split was measured on), ``_value``, ``_guess``, ``_not_finite``
            (whether a missing value was infinite or NaN) and ``_threshold`` (the largest error
            that counts as generalised).
        column: the keys of a column of the table, in which the best is marked.
        by_rate: as in ``grouped``.
    """
    described = [one for one in METRICS if one.name == metric.removesuffix("_generated")]
    may_overflow = any(one.may_overflow for one in described)
    table = values.group_by(keys, maintain_order=True).agg(
        **spread(pl.col("_value"), pl.col("_threshold")),
        seeds=pl.col("_seed").unique().sort(),
        settings=pl.col("_setting").n_unique(),
        not_finite=(pl.col("_value").is_null() & pl.col("_not_finite") & may_overflow).sum(),
        guess=pl.col("_guess").mean(),
        data=pl.col("_data").unique().sort(),
    )
    whole = pl.col("not_finite") == 0
    table = with_rates(table.with_columns(pl.when(whole).then(pl.col("mean", "sd"))))
    table = table.with_row_index("_row")
    best = (
        best_rows(table, column, by_rate) if any(one.lower_is_better for one in described) else []
    )
    return table.with_columns(best=pl.col("_row").is_in([*best])).select(
        *keys, "n", "seeds", *RATES, "median", "values",
        "mean", "sd", "best", "settings", "not_finite", "guess",
    )  # fmt: skip


def group_keys(by: Sequence[str], columns: Sequence[str]) -> list[str]:
    """Return the keys of ``by``, each once, without task.

    Raises:
        UsageError: a key is not a column.
    """
    known = [c for c in columns if c != NOT_FINITE and FACTS.get(c) != pl.List(pl.String)]
    check_known(f"by={','.join(by)}: none of the runs has a key {{}}", by, known)
    return [key for key in dict.fromkeys(by) if key != "task"]


def selected_splits(
    runs: pl.DataFrame, task: str, metric: str, splits: Sequence[str] | None
) -> list[str]:
    """Return the selected splits that a task has; UsageError for an unknown split or metric."""
    every = splits_of(runs)
    mean = [OOD] if f"{OOD}/{metric}" in runs.columns else []
    check_known("splits={}", splits, [*mean, *every])
    places = set(map(metric_prefix, every))
    names = (name.rpartition("/") for name in runs.columns)
    check_known("metric={}", [metric], {name for place, _, name in names if place in places})
    measured = splits_of(runs.filter(task=task))
    if len(measured) > 1:
        measured = [*measured, *mean]
    return [split for split in splits or measured if split in measured]


def _threshold(task: str, split: str, metric: str, limit: float | None) -> float | None:
    """Return the threshold of an error on a split; None for a mean and other metrics."""
    if split == OOD or metric not in RATED:
        return None
    return threshold(task, split) if limit is None and metric != "error_seq" else limit


def data_keys(runs: pl.DataFrame) -> list[str]:
    """Return the keys that determine the sequences of a split."""
    made_by = ("task.", "contents.", "eval.sequences")
    return [key for key in compared_keys(runs) if key.startswith(made_by)]


def best_rows(table: pl.DataFrame, column: Sequence[str], by_rate: bool = True) -> list[int]:
    """Return the ``_row`` of each group that is the best of its column among those measured on the
    same data.

    With a threshold it is the highest rate k/n, if its 95 % Wilson interval lies wholly above that
    of every group with a lower rate. Groups that tie at it are marked together, if each lies above
    all others: a highest rate of 0 has none below it.

    Where nothing in the table of the task has a threshold, or with ``by_rate`` False, it is the
    group of which every seed lies below every seed of all other groups, if so many seeds lie so by
    chance in at most 5 % of cases: four of each. Groups that tie are marked together, and only if
    all their seeds have the same value.

    Never marked are a group with one seed and those that it ties with, an only group, any group
    where one pools several settings, and a mean beside rates: rates say how many seeds generalise.

    Args:
        column: the keys of a column of the table, the task first.
    """
    rated = {*table.filter(pl.col("threshold").is_not_null())[column[0]]} if by_rate else set()
    comparable = table.filter(pl.col("mean").is_not_null()).group_by(
        *column, pl.col("data").list.eval(pl.element().cast(pl.String)).list.join(" ")
    )
    best: list[int] = []
    for (task, *_), rows in comparable:
        value = -pl.col("p_generalises") if task in rated else pl.col("mean")
        first, others = rows.filter(value == value.min()), rows.filter(value > value.min())
        is_apart = _rates_are_apart if task in rated else _seeds_are_apart
        if (rows["settings"] == 1).all() and len(others) and is_apart(first, others):
            best += first["_row"].to_list()
    return best


def _rates_are_apart(first: pl.DataFrame, others: pl.DataFrame) -> bool:
    lowest, highest = first.select("p_low", "n").min().row(0), others["p_high"].max()
    return bool(lowest[1] > 1 and lowest[0] > highest)


def _seeds_are_apart(first: pl.DataFrame, others: pl.DataFrame) -> bool:
    below = first.select(pl.max("most")).item() < others.select(pl.min("least")).item()
    enough = least_p(*(rows.select(pl.min("n")).item() for rows in (first, others))) <= LEVEL
    unanimous = len(first) == 1 or (first["sd"].fill_null(1.0) == 0).all()
    return bool(below and enough and unanimous)


@cache
def defaults(task: str, pe: str, positions: str, model: str) -> Mapping[str, Any]:
    """Return the keys of a run with these choices and no other word on its command line, with the
    task's preset; a value that follows from other keys is an interpolation, ``${task.length}``.

    A choice that is not in conf/ has no defaults: encodings of ``--config-dir``.
    """
    config = _yaml("config")
    keys = {f"eval.{key}": value for key, value in config["eval"].items()}
    keys |= {key: value for key, value in config.items() if not isinstance(value, (dict, list))}
    for choice in config["defaults"]:
        keys |= choice if isinstance(choice, dict) else {}
    for group, name in {"task": task, "pe": pe, "positions": positions, "model": model}.items():
        if name in choices(group):
            keys |= flat(_yaml(f"{group}/{name}"), f"{group}.")
    for part in ("train/optimizer/adamw", "train/default"):
        keys |= flat(_yaml(part), "train.")
    for name, group in ((task, "preset"), (f"{task}_{pe}", "preset/rate")):
        if name in choices(group):
            keys |= flat(_yaml(f"{group}/{name}"), "")
    return keys


def defaults_of(run: Run) -> Mapping[str, Any]:
    """Return the ``defaults`` of a run, with those of the parts of its encoding:
    pe.parts.0.base."""
    keys = defaults(*(run.get(group) or "" for group in ("task", "pe", "positions", "model")))
    if run.get("pe.parts") is None:
        return keys
    parts = enumerate(text(run["pe.parts"]).strip("[]").split(","))
    of_parts = {f"pe.parts.{n}": _yaml(f"pe/{name}") for n, name in parts if name in choices("pe")}
    return {**keys, **flat(of_parts)}


@cache
def _yaml(name: str) -> dict[str, Any]:
    return dict(read_yaml(conf() / f"{name}.yaml") or {})


def same(value: Any, default: Any) -> bool:
    """Return whether a value is the default; numbers are compared as numbers, 3e-3 is 0.003."""
    if value == default:
        return True
    a, b = (re.sub('[ "]', "", text(one)) for one in (value, default))
    try:
        return a == b or float(a) == float(b)
    except ValueError:
        return False


@dataclass(frozen=True)
class Names:
    """What settings are called.

    Args:
        labels: setting -> ``steps=1000 npos=16``, the keys in which it departs from the task's
            preset and the defaults, with their values; without the shared ones. A key is without
            its group where no other key here ends alike. Keys that follow from others, and the
            setting's hash, appear only where nothing else tells two settings apart.
        shared: task -> ``d_model=128``, the departures that all of its settings have in common.
        keys: the keys that labels name, in full.
    """

    labels: dict[str, str]
    shared: dict[str, str]
    keys: list[str]


def named(frame: pl.DataFrame) -> Names:
    """Return the names of the settings of these runs."""
    rows = frame.filter(pl.col("setting").is_not_null()).unique("setting", maintain_order=True)
    rows = without_idle(rows)
    runs = {row["setting"]: row for row in rows.iter_rows(named=True)}
    departing, shared = _without_shared(runs, _departures(rows, runs))
    primary = {setting: _leading(runs[setting], v) for setting, v in departing.items()}
    keys = list(dict.fromkeys(key for values in departing.values() for key in values))
    short = _short([*keys, *(key for values in shared.values() for key in values)])
    labels: dict[str, str] = {}
    for candidates, last in ((primary, ""), (departing, ""), (departing, "setting={}")):
        lines = {
            setting: " ".join([_line(values, short), last.format(setting)]).strip()
            for setting, values in candidates.items()
            if setting not in labels
        }
        places = {s: (runs[s]["task"], runs[s]["pe"], line) for s, line in lines.items()}
        alike = Counter(places.values())
        labels |= {s: line for s, line in lines.items() if alike[places[s]] == 1}
    return Names(labels, {task: _line(values, short) for task, values in shared.items()}, keys)


def without_idle(rows: pl.DataFrame) -> pl.DataFrame:
    """Set the keys to null that have no effect where nothing stops a run early."""
    stops = pl.col("train.stop_below").is_not_null()
    idle = [key for key in sorted(ONLY_EARLY_STOPPING) if key in rows.columns]
    return rows.with_columns(pl.when(stops).then(pl.col(key)) for key in idle)


def _departures(rows: pl.DataFrame, runs: Mapping[str, Run]) -> Values:
    """Return for each setting the keys that have another value than by default. A key without a
    default, as of an encoding of the user's, counts where it varies among the runs of that task and
    encoding."""
    keys = [k for k in ("positions", "model", *compared_keys(rows)) if k in rows.columns]
    keys = [key for key in keys if not key.endswith("._target_")]
    roots = list(dict.fromkeys(key.partition(".")[0] for key in compared_keys(rows)))
    keys.sort(key=lambda key: roots.index(key.partition(".")[0]))
    alike = [key for key in ("task", "pe", "pe.parts") if key in rows.columns]
    varies = rows.select("setting", pl.col(keys).n_unique().over(alike) > 1)
    varying = {row["setting"]: row for row in varies.iter_rows(named=True)}
    departing: Values = {}
    # Also where all runs have it.
    edited = {key: None for key in keys if key.endswith(".edited")}
    for setting, run in runs.items():
        known, were_null = {**edited, **defaults_of(run)}, run["null_keys"]
        if were_null is None:  # the summary of a finished run says which
            were_null = [key for key, default in known.items() if default is None]
        departing[setting] = {
            key: text(run[key]).removesuffix(".0")
            for key in keys
            if (
                _departs(run[key], known[key], key in were_null)
                if key in known
                else varying[setting][key] and run[key] is not None
            )
        }
    return departing


def _departs(value: Any, default: Any, was_null: bool) -> bool:
    # A run without the key, made before there was one, has null too.
    return default is not None if was_null else value is not None and not same(value, default)


def _without_shared(runs: Mapping[str, Run], departing: Values) -> tuple[Values, Values]:
    """Return the departures without those that all settings of a task have in common, and these by
    task, less what follows from them. An encoding's keys stay."""
    own, shared = dict(departing), {}
    for task in {run["task"] for run in runs.values()}:
        settings = [setting for setting, run in runs.items() if run["task"] == task]
        common = set.intersection(*(set(departing[setting].items()) for setting in settings))
        common = {(key, value) for key, value in common if not key.startswith("pe.")}
        for setting in settings:
            own[setting] = {k: v for k, v in departing[setting].items() if (k, v) not in common}
        first = departing[settings[0]].items()
        shared[task] = _leading(runs[settings[0]], {k: v for k, v in first if (k, v) in common})
    return own, shared


def _leading(run: Run, values: Mapping[str, str]) -> dict[str, str]:
    """Leave out the keys whose values mostly follow from others."""
    known = defaults_of(run)
    return {
        key: value
        for key, value in values.items()
        if not key.startswith("task.splits.") and "${" not in str(known.get(key))
    }


def _line(values: Mapping[str, str], short: Mapping[str, str]) -> str:
    return " ".join(f"{short[key]}={value}" for key, value in values.items())


def _short(keys: Iterable[str]) -> dict[str, str]:
    """Return key -> the key without its group, where no other key is then the same."""
    short = {key: key.partition(".")[2] if key.startswith(_SHORTENED) else key for key in keys}
    alike = Counter(short.values())
    return {key: name if alike[name] == 1 else key for key, name in short.items()}
