"""Error against the keys that splits change: length, p_ignore, the number of blanks, .."""

import json
import math
from statistics import fmean
from typing import Any

import polars as pl

from pe_lab.report.changes import override, task_keys
from pe_lab.report.charts import lines
from pe_lab.report.panels import Group, Panel, Point
from pe_lab.report.sections import Section, Setting

PANELS = 12
"""At most, per group: those with the most points."""

Others = tuple[tuple[str, str], ...]
"""The keys that are constant in a panel, with their values."""


def error_vs_keys(section: Section, shown: dict[int, Setting], runs: pl.DataFrame) -> list[Group]:
    """For each key that splits change, the error against it: a panel for each combination of the
    other such keys."""
    config = {row["setting"]: task_keys(row) for row in runs.iter_rows(named=True)}
    changed: dict[str, set[str]] = {}
    for values in config.values():
        for split in section.ood:
            for key in override(values, split):
                changed.setdefault(key, set()).add(split)
    # Keys that change in the same splits share an axis.
    together: dict[frozenset[str], list[str]] = {}
    for key in sorted(changed):
        together.setdefault(frozenset(changed[key]), []).append(key)
    heads = [keys[0] for keys in together.values()]
    found = []
    for keys in together.values():
        panels: dict[Others, list[Point]] = {}
        for number, setting in shown.items():
            task = config[setting.name]
            for split in section.splits:
                values = {**task, **override(task, split)}
                x = _number(values.get(keys[0]))
                if setting.cells["error"].get(split) is None or x is None:
                    continue
                others = tuple((k, _plain(values.get(k))) for k in heads if k != keys[0])
                panels.setdefault(others, []).append(Point(number, x, split=split))
        title = keys[0] + (f" (with {', '.join(keys[1:])})" if keys[1:] else "")
        found.append(_group(section, keys[0], title, panels))
    return found


def _group(
    section: Section,
    key: str,
    title: str,
    found: dict[Others, list[Point]],
) -> Group:
    panels = []
    values: dict[str, set[str]] = {}
    for others in found:
        for other, value in others:
            values.setdefault(other, set()).add(value)
    ranked = sorted(found.items(), key=lambda item: (-len(item[1]), _order(item[0])))
    for others, points in ranked[:PANELS]:
        xs = sorted({point.x for point in points})
        if len(xs) < 2:
            continue
        wide = xs[0] >= 1 and xs[-1] / xs[0] >= 2
        spec = lines(key, "log2" if wide else "linear", xs)
        fixed = ", ".join(f"{k} = {value}" for k, value in others if len(values[k]) > 1)
        guess = mean_guess(section, [point.split for point in points if point.split])
        panels.append(Panel(fixed or "all splits", spec, points, guess=guess))
    note = "Each point is a split; the model was trained at one of them, in_domain."
    return Group(f"against-{key}", f"Error against {title}", note, panels)


def mean_guess(section: Section, splits: list[str]) -> float | None:
    """The mean error of guessing over these splits."""
    found = [guess for split in splits if (guess := section.guess[split]) is not None]
    return fmean(found) if found else None


def _order(others: Others) -> list[tuple[float, str]]:
    """Sorts numbers by value, before words."""
    numbers = [_number(value) for _, value in others]
    return [
        (math.inf if number is None else number, value)
        for number, (_, value) in zip(numbers, others, strict=True)
    ]


def _number(value: Any) -> float | None:
    try:
        return None if value is None or isinstance(value, bool) else float(value)
    except ValueError:
        return None


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
