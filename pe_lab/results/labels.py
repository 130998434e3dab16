"""What a setting is called in tables: the keys in which it departs from the task's preset and the
defaults, as far as the settings beside it do not share them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from pe_lab.results.frame import compared_keys, config_keys
from pe_lab.results.reader import defaults_of, follows, same, text
from pe_lab.store.run_id import ONLY_EARLY_STOPPING

IDLE = tuple(sorted(ONLY_EARLY_STOPPING))
"""Without effect while nothing stops a run early: null there, and left out."""
LONGEST = 40
"""Longer labels are shown as [1], [2], .. with a legend."""
LEGEND = 230
"""Most characters of a legend: two lines of a terminal."""
OUTSIDE = ("model", "model.factory", "model.label")
"""What the label of a model from outside stands for."""
_AMONG = {
    "task pe pe.parts": "pe.parts.",
    "task pe": "pe.",
    "task positions": "positions.",
    "task model": "model.",
    "task": "",
}
"""What a key with this prefix is compared among."""
Run = Mapping[str, Any]
"""A row of ``frame.read_runs``."""
Values = dict[str, dict[str, str]]
"""setting -> key -> value."""
_SHORTENED = ("task.", "pe.", "positions.", "model.", "train.", "eval.")


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


def labels(frame: pl.DataFrame) -> dict[str, str]:
    """The labels of ``named``."""
    return named(frame).labels


def named(frame: pl.DataFrame) -> Names:
    """The names of the settings of these runs, from ``frame.read_runs``."""
    rows = frame.filter(pl.col("setting").is_not_null()).unique("setting", maintain_order=True)
    rows = without_idle(rows)
    runs = {row["setting"]: row for row in rows.iter_rows(named=True)}
    departing, shared = _apart(runs, _departures(rows))
    primary = {s: _leading(runs[s], values) for s, values in departing.items()}
    keys = list(dict.fromkeys(key for values in departing.values() for key in values))
    names = _short([*keys, *(key for values in shared.values() for key in values)])
    found: dict[str, str] = {}
    for candidates, last in ((primary, ""), (departing, ""), (departing, "setting={}")):
        lines = {
            setting: " ".join([_line(values, names), last.format(setting)]).strip()
            for setting, values in candidates.items()
            if setting not in found
        }
        rows_of = {s: (runs[s]["task"], runs[s]["pe"], line) for s, line in lines.items()}
        alike = Counter(rows_of.values())
        found |= {s: line for s, line in lines.items() if alike[rows_of[s]] == 1}
    return Names(found, {task: _line(values, names) for task, values in shared.items()}, keys)


def _line(values: Mapping[str, str], names: Mapping[str, str]) -> str:
    return " ".join(f"{names[key]}={value}" for key, value in values.items())


def aliases(names: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """The labels with [1], [2], .. in place of the long ones, and the legend of these. A label that
    the legend has no space for stays as it is."""
    found: dict[str, str] = {}
    legend = ""
    for setting, name in names.items():
        entry = f"[{len(found) + 1}] {name}"
        if len(name) > LONGEST and len(legend) + len(entry) + 2 <= LEGEND:
            found[setting], legend = entry.partition(" ")[0], f"{legend}  {entry}".strip()
    return {**names, **found}, legend


def without_idle(rows: pl.DataFrame) -> pl.DataFrame:
    """With the keys that have no effect, as nothing stops the run early, set to null."""
    stops = pl.col("train.stop_below").is_not_null()
    return rows.with_columns(pl.when(stops).then(pl.col(k)) for k in IDLE if k in rows.columns)


def _departures(rows: pl.DataFrame) -> Values:
    """For each setting, the keys that have another value than by default. A key without a default,
    as of an encoding of the user's, counts where it varies among the runs of that encoding."""
    keys = _compared(rows)
    found: Values = {setting: {} for setting in rows["setting"]}
    for among, prefix in _AMONG.items():
        alike = [key for key in among.split() if key in rows.columns]
        several = [key for key in keys if _prefix(key) == prefix]
        if not several:
            continue
        varies = rows.select(pl.col(several).n_unique().over(alike) > 1)
        for run, varying in zip(rows.iter_rows(named=True), varies.iter_rows(), strict=True):
            known, were_null = defaults_of(run), run["null_keys"]
            if were_null is None:  # the summary of a finished run says which
                were_null = [key for key, default in known.items() if default is None]
            found[run["setting"]] |= {
                key: _shown(run[key])
                for key, varied in zip(several, varying, strict=True)
                if (
                    _departs(run[key], known[key], key in were_null)
                    if key in known
                    else varied and run[key] is not None
                )
            }
    groups = dict.fromkeys(key.partition(".")[0] for key in config_keys(rows))
    roots = {group: rank for rank, group in enumerate(groups)}
    ranks = {key: (roots[key.split(".")[0]], rank) for rank, key in enumerate(keys)}
    return {s: dict(sorted(v.items(), key=lambda item: ranks[item[0]])) for s, v in found.items()}


def _apart(runs: Mapping[str, Run], departing: Values) -> tuple[Values, Values]:
    """The departures without those that all settings of a task have in common; and these by task,
    less what follows from them. An encoding's keys stay."""
    apart, shared = dict(departing), {}
    for task in {run["task"] for run in runs.values()}:
        settings = [setting for setting, run in runs.items() if run["task"] == task]
        common = set.intersection(*(set(departing[setting].items()) for setting in settings))
        common = {(k, v) for k, v in common if not k.startswith("pe.")}
        first = departing[settings[0]]
        shared[task] = _leading(
            runs[settings[0]], {k: v for k, v in first.items() if (k, v) in common}
        )
        for setting in settings:
            values = departing[setting].items()
            apart[setting] = {k: v for k, v in values if (k, v) not in common}
    return apart, shared


def _compared(rows: pl.DataFrame) -> list[str]:
    keys = [k for k in ("positions", "model", *compared_keys(rows)) if k in rows.columns]
    return [key for key in keys if not key.endswith("._target_")]


def _prefix(key: str) -> str:
    return next(prefix for prefix in _AMONG.values() if key.startswith(prefix))


def _departs(value: Any, default: Any, was_null: bool) -> bool:
    # A run without the key, made before there was one, has null too.
    return default is not None if was_null else value is not None and not same(value, default)


def _shown(value: Any) -> str:
    return text(int(value) if isinstance(value, float) and value.is_integer() else value)


def _leading(run: Run, values: dict[str, str]) -> dict[str, str]:
    """Without the keys whose values mostly follow from others; a model from outside has its label
    in the place of the encoding."""
    known = defaults_of(run)
    named = OUTSIDE if run.get("model.label") is not None else ()
    return {
        key: value for key, value in values.items()
        if not key.startswith("task.splits.") and not follows(known.get(key)) and key not in named
    }  # fmt: skip


def _short(keys: Iterable[str]) -> dict[str, str]:
    """key -> the key without its group, where no other key is then the same."""
    short = {}
    for key in dict.fromkeys(keys):
        group = next((group for group in _SHORTENED if key.startswith(group)), "")
        short[key] = key.removeprefix(group)
    several = Counter(short.values())
    return {key: name if several[name] == 1 else key for key, name in short.items()}
