"""The keys and values of filters: what they stand for, and what is meant by a wrong one."""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import polars as pl

from pe_lab.common.suggest import did_you_mean
from pe_lab.config.choices import choices
from pe_lab.core.metrics import OOD
from pe_lab.results.defaults import GROUPS

STATES = ("finished", "running", "interrupted", "failed", "killed", "not begun", "broken")
CHOICES: dict[str, Callable[[], Iterable[str]]] = {
    **{group: partial(choices, group) for group in GROUPS},
    "state": lambda: STATES,
}
"""Keys with a list of values -> a function that returns it."""


def column_of(key: str, columns: Sequence[str]) -> str | None:
    """The column that a key stands for: itself; the error on a split, ``sparse`` or ``ood``;
    another metric of a split, ``sparse/loss``; or the only one that ends alike, ``d_model``."""
    metrics = (key, f"{key}/error", f"{OOD}/{key}", f"{OOD}/{key}/error")
    found = [name for name in metrics if name in columns]
    found += [name for name in columns if name.count(".") == 1 and name.endswith(f".{key}")]
    return found[0] if found and (found[0] in metrics or len(found) == 1) else None


def check_choice(frame: pl.DataFrame, key: str, value: str) -> None:
    """ValueError for a task, an encoding, .. that no run has and that does not exist."""
    if key in CHOICES and value not in (choices := {*CHOICES[key](), *frame[key].drop_nulls()}):
        raise ValueError(f"there is no {key} {value}: {did_you_mean(value, choices)}")


def unknown(key: str, columns: list[str]) -> str:
    """The message for an unknown key, with its nearest siblings."""
    sign = "/" if "/" in key else "."
    parent = key.rpartition(sign)[0] + sign
    siblings = [c for c in columns if c.startswith(parent)] if sign in key else []
    if sign == "/":
        # The split alone stands for the error on it.
        siblings = sorted({"/".join(c.split("/")[: key.count("/") + 1]) for c in siblings})
    if not siblings:
        siblings = sorted({re.split("[./]", column)[0] for column in columns})
    lists = "pe-lab results" if sign == "/" else "pe-lab --cfg job"
    return f"none of the runs has a key {key}: {did_you_mean(key, siblings, lists)}"
