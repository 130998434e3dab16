"""What a run is within a suite: its entry, the purpose it was made for (its phase), and whether a
learning rate was chosen on it."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from pe_lab.results.labels import defaults, same
from pe_lab.results.reader import Record, Setting
from pe_lab.results.suite import (
    OTHER_SEEDS,
    OUTSIDE,
    SCORE,
    TUNING,
    Suite,
    suites,
)
from pe_lab.results.table import text

BASELINE = "rope"


@cache
def _table() -> dict[str, dict[int, float]]:
    text = Path(__file__).with_name("relative_cost.yaml").read_text("utf-8")
    table: dict[str, dict[int, float]] = yaml.safe_load(text)
    return table


def relative_cost(encoding: str, length: int) -> float | None:
    """The time of a training step over that of rope, for sequences of the measured length whose
    ratio to ``length`` is nearest to 1; None for an encoding that was not measured."""
    row, baseline = _table().get(encoding), _table()[BASELINE]
    if row is None:
        return None
    nearest = min(row, key=lambda measured: abs(math.log(measured / length)))
    return row[nearest] / baseline[nearest]


OTHER = "other"
"""The phase of a run that the protocol does not have."""
OUTSIDE_KEYS = ("model.factory", "model.arguments.", "positions.")
ENTRY_KEYS = ("pe.", "model.", "positions.")


@dataclass(frozen=True)
class Place:
    """What a configuration is within a suite.

    Args:
        task: the suite's name of the task.
        entry: the encoding or the control in its column, with the keys in which it departs from
            its yaml: ``cope``, ``cope+conv``, ``lstm``, ``cope npos=16``.
        unknown: keys and values of an encoding of the user's, whose defaults are not known here.
    """

    task: str
    entry: str
    unknown: tuple[tuple[str, str], ...] = ()


class Places:
    """The places of these configurations, each looked up once."""

    def __init__(self, suite: Suite, settings: Iterable[Setting]) -> None:
        self.suite = suite
        distinct = {id(one): one for one in settings}
        self._tasks = {n: suite.task_of(one.config, one.contents) for n, one in distinct.items()}

    def task(self, setting: Setting) -> str | None:
        """The suite's task of a configuration; None: it is of none."""
        return self._tasks[id(setting)]

    def place(self, setting: Setting, names: Mapping[str, Any]) -> Place | None:
        """Where a configuration belongs; None: nowhere in this suite."""
        if (task := self.task(setting)) is None:
            return None
        entry, unknown = _entry(self.suite, setting, names)
        return Place(task, entry, unknown)


def placed(records: Iterable[Record], suite: Suite) -> list[tuple[Record, Setting, Place]]:
    """The runs that are of the suite, each with its configuration and its place."""
    known = [(record, record.setting) for record in records if record.setting is not None]
    places = Places(suite, (setting for _, setting in known))
    found = []
    cache: dict[tuple[int, str, str], Place | None] = {}
    for record, setting in known:
        key = (id(setting), record.facts["pe"], record.facts["task"])
        if key not in cache:
            cache[key] = places.place(setting, record.facts)
        if (place := cache[key]) is not None:
            found.append((record, setting, place))
    return found


def _entry(
    suite: Suite, setting: Setting, names: Mapping[str, Any]
) -> tuple[str, tuple[tuple[str, str], ...]]:
    """What a run's entry is called in the suite's tables, and its keys without a known default."""
    pe, model, positions = (str(names.get(key, "")) for key in ("pe", "model", "positions"))
    if setting.config["model"].get("_target_") == OUTSIDE:
        # A label that is an entry's name must not add to that entry.
        name = f"{pe} model={model}" if pe in suite.all_entries else pe
        keys = ((k, text(v)) for k, v in setting.keys.items() if k.startswith(OUTSIDE_KEYS))
        return name, tuple(keys)
    settings, chosen = [], {"model": model, "positions": positions}
    for name in suite.candidates(model, pe):
        wanted = {"positions": "sequential", **dict(_pairs((*suite.common, *suite.words(name))))}
        known = {**defaults(str(names.get("task", "")), pe, positions, model), **wanted}
        parts = [f"{key}={value}" for key, value in chosen.items() if value != wanted.get(key)]
        unknown = []
        for key, value in setting.keys.items():
            if not key.startswith(ENTRY_KEYS) or key.endswith("._target_"):
                continue
            if key not in known:
                unknown.append((key, text(value)))
            elif not (known[key] is None and key in setting.null_keys) and not same(
                value, known[key]
            ):
                parts.append(f"{key.removeprefix('pe.')}={text(value)}")
        settings.append((" ".join([name, *parts]), tuple(unknown), len(parts)))
    # The one that it departs from least.
    entry, missing, _ = min(settings, key=lambda one: one[2])
    return entry, missing


def phase_of(
    suite: Suite, place: Place, seed: int, seed_init: int, train: Mapping[str, Any]
) -> str:
    """``tuning``, ``score``, ``steps_x2``; ``other_seeds``: as the score, but of a seed that the
    protocol does not have; or ``other``: a run that the protocol does not have, such as one of
    another rate or number of steps, or with seeds of weights and data that differ."""
    protocol, entry = suite.protocol, place.entry.partition(" ")[0]
    steps = suite.times_steps(entry) * steps_of(suite, place.task)
    if seed != seed_init or not any(same(train["lr"], rate) for rate in protocol.all_rates):
        return OTHER
    times, left = divmod(train["steps"], steps)
    if seed in protocol.tuning_seeds:
        return TUNING if (times, left) == (1, 0) else OTHER
    if seed >= max(protocol.seeds, protocol.more_seeds):
        return OTHER_SEEDS if (times, left) == (1, 0) else OTHER
    if (times, left) == (1, 0):
        return SCORE
    if not left and times in protocol.longer:
        return f"steps_x{times}"
    return OTHER


@cache
def _steps(words: tuple[str, ...]) -> int:
    return int(dict(_pairs(words))["train.steps"])


def steps_of(suite: Suite, task: str) -> int:
    """How many steps a run of the task is trained for."""
    return _steps(suite.tasks[task].words)


def _pairs(words: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(key, value) for key, _, value in (word.partition("=") for word in words)]


TUNING_OF = "tuning_of"


def tuning_column(records: Sequence[Record], config_dir: Path | None = None) -> pl.Series:
    """Of each run the suite that chose a learning rate on it, of several the first by name; null:
    none did.

    A run is recognised as by the leaderboard: by the digest of its task, and its phase. Only the
    configurations of runs on a tuning seed are looked up.

    Args:
        config_dir: a folder whose suites count beside those of conf/.
    """
    found: list[str | None] = [None] * len(records)
    for suite in suites(config_dir):
        seeds = suite.protocol.tuning_seeds
        of_seeds = [
            (number, record, record.setting)
            for number, record in enumerate(records)
            if record.setting is not None and record.facts.get("seed") in seeds
        ]
        places = Places(suite, (setting for *_, setting in of_seeds))
        for number, record, setting in of_seeds:
            if found[number] is None and _is_of_tuning(record, setting, places):
                found[number] = suite.name
    return pl.Series(TUNING_OF, found, pl.String)


def _is_of_tuning(record: Record, setting: Setting, places: Places) -> bool:
    if (place := places.place(setting, record.facts)) is None:
        return False
    seed = record.facts["seed"]
    seed_init = setting.keys.get("seed.init", seed)
    train = setting.config["train"]
    return phase_of(places.suite, place, seed, seed_init, train) == TUNING


def tuning(runs: pl.DataFrame) -> pl.DataFrame:
    """The finished runs on which a suite chose a learning rate."""
    return runs.filter(pl.col("state") == "finished", pl.col(TUNING_OF).is_not_null())


def without_tuning(runs: pl.DataFrame) -> pl.DataFrame:
    """The other runs, those that are not finished included."""
    return runs.filter(pl.col(TUNING_OF).is_null())
