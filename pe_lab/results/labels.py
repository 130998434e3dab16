"""What a setting is called in tables: the keys in which it departs from the task's preset and the
defaults, as far as the settings beside it do not share them."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import polars as pl
import yaml

from pe_lab.config.choices import choices
from pe_lab.core.config_dir import conf
from pe_lab.results.table import compared_keys, flat, text
from pe_lab.store.run_id import ONLY_EARLY_STOPPING

# A row of ``table.read_runs``.
Run = Mapping[str, Any]
# setting -> key -> value.
Values = dict[str, dict[str, str]]
_SHORTENED = ("task.", "pe.", "positions.", "model.", "train.", "eval.")


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
    group, _, last = name.rpartition("/")
    content = (choices(group)[last] if group else conf() / f"{name}.yaml").read_bytes()
    return dict(yaml.load(content, getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {})


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
    for setting, run in runs.items():
        known, were_null = defaults_of(run), run["null_keys"]
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
    short = {}
    for key in dict.fromkeys(keys):
        group = next((group for group in _SHORTENED if key.startswith(group)), "")
        short[key] = key.removeprefix(group)
    alike = Counter(short.values())
    return {key: name if alike[name] == 1 else key for key, name in short.items()}
