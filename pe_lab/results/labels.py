"""What a setting is called in tables: the keys in which it differs from the others."""

from collections import Counter

import polars as pl

from pe_lab.results.frame import compared_keys, config_keys
from pe_lab.results.reader import text
from pe_lab.store.run_id import ONLY_EARLY_STOPPING


def labels(frame: pl.DataFrame) -> dict[str, str]:
    """setting -> the keys, with values, in which the settings of a task differ; those of an
    encoding or a model are compared among its own runs, those of a part among equal combinations.

    Most splits follow from the task's own keys: they appear where those are not enough.
    """
    rows = frame.filter(pl.col("setting").is_not_null()).unique("setting", maintain_order=True)
    keys = [k for k in ("positions", "model", *compared_keys(rows)) if k in rows.columns]
    keys = [key for key in keys if key not in ("pe._target_", "model._target_")]
    rows = without_idle(rows)
    values_of: dict[str, dict[str, str]] = {setting: {} for setting in rows["setting"]}
    for among, prefix in _AMONG.items():
        alike = [key for key in among.split() if key in rows.columns]
        varying = [key for key in keys if _prefix(key) == prefix and rows[key].n_unique() > 1]
        if not varying:
            continue
        differs = rows.select(pl.col(varying).n_unique().over(alike) > 1)
        for setting, values, shown in zip(
            rows["setting"], rows.select(varying).iter_rows(), differs.iter_rows(), strict=True
        ):
            values_of[setting] |= {
                key: text(value)
                for key, value, show in zip(varying, values, shown, strict=True)
                if show and (value is not None or not key.startswith((*_OPEN, *IDLE)))
            }
    groups = dict.fromkeys(key.partition(".")[0] for key in config_keys(rows))
    roots = {group: rank for rank, group in enumerate(groups)}
    ranks = {key: (roots[key.split(".")[0]], rank) for rank, key in enumerate(keys)}
    owners = {row[0]: row[1:] for row in rows.select("setting", "task", "pe").iter_rows()}
    return _distinct(
        {s: dict(sorted(v.items(), key=lambda item: ranks[item[0]])) for s, v in values_of.items()},
        owners,
    )


_AMONG = {
    "task pe pe.parts": "pe.parts.",
    "task pe": "pe.",
    "task positions": "positions.",
    "task model": "model.",
    "task": "",
}
"""What a key with this prefix is compared among."""
_OPEN = ("contents.", "task.files.", "task.splits.")
"""Mappings whose keys users choose: a key that a run lacks is not null there."""


IDLE = tuple(sorted(ONLY_EARLY_STOPPING))
"""Without effect while nothing stops a run early: null there, and left out."""


def _prefix(key: str) -> str:
    return next(prefix for prefix in _AMONG.values() if key.startswith(prefix))


def without_idle(rows: pl.DataFrame) -> pl.DataFrame:
    """With the keys that have no effect, as nothing stops the run early, set to null."""
    stops = pl.col("train.stop_below").is_not_null()
    return rows.with_columns(pl.when(stops).then(pl.col(k)) for k in IDLE if k in rows.columns)


def _distinct(
    values_of: dict[str, dict[str, str]], owners: dict[str, tuple[str, str]]
) -> dict[str, str]:
    """One line per setting, as short as distinguishes it from others of its task and encoding."""
    found: dict[str, str] = {}
    for hidden, last in (("task.splits.", ""), ("\0", ""), ("\0", "setting={}")):
        lines = {
            setting: " ".join(f"{k}={v}" for k, v in values.items() if not k.startswith(hidden))
            for setting, values in values_of.items()
            if setting not in found
        }
        lines = {s: f"{line} {last.format(s)}".strip() for s, line in lines.items()}
        rows = Counter((owners[setting], line) for setting, line in lines.items())
        found |= {s: line for s, line in lines.items() if rows[owners[s], line] == 1}
    return found
