"""What a training step with an encoding costs, relative to rope: a fixed table, so that equal time
is the same number of steps on every machine."""

import math
from functools import cache
from pathlib import Path

import yaml

BASELINE = "rope"


@cache
def _table() -> dict[str, dict[int, float]]:
    text = Path(__file__).with_name("relative_cost.yaml").read_text("utf-8")
    table: dict[str, dict[int, float]] = yaml.safe_load(text)
    return table


def relative_cost(entry: str, length: int) -> float | None:
    """The time of a training step over that of rope, for sequences of the measured length whose
    ratio to ``length`` is nearest to 1; None for an entry that was not measured."""
    row, baseline = _table().get(entry), _table()[BASELINE]
    if row is None:
        return None
    nearest = min(row, key=lambda measured: abs(math.log(measured / length)))
    return row[nearest] / baseline[nearest]


def equal_time(entry: str, steps: int, length: int) -> int | None:
    """The steps that take as long as ``steps`` do with rope; None for an entry without a cost."""
    cost = relative_cost(entry, length)
    return None if cost is None else max(1, round(steps / cost))


def equal_times(entry: str, steps: int) -> set[int]:
    """``equal_time`` for each measured length."""
    return {equal_time(entry, steps, n) or steps for n in _table().get(entry, ())}
