"""A suite: tasks, thresholds and a protocol that are fixed (conf/suite/), and which of a suite's
tasks a run belongs to."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import yaml
from pydantic import Field, PositiveFloat, PositiveInt, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from pe_lab.common.closed import closed
from pe_lab.common.errors import UsageError
from pe_lab.common.metrics import IN_DOMAIN
from pe_lab.common.suggest import did_you_mean
from pe_lab.config.choices import choices
from pe_lab.store.run_id import identity

DEFAULT = "v1"
DEFAULT_THRESHOLD = 0.05
"""Of splits that no suite names."""

TUNING, SCORE, OTHER_SEEDS, CAPACITY = "tuning", "score", "other_seeds", "capacity:"
EQUAL_TIME, EQUAL_PARAMETERS = "equal_time", "equal_parameters"
"""Phases: what a run of a suite is for."""

Share = Annotated[float, Field(ge=0, le=1)]
T = TypeVar("T")
Several = Annotated[tuple[T, ...], Field(min_length=1)]


@closed
class SuiteTask:
    """A task of a suite.

    Args:
        family: the skill that it needs; tasks of a family are neighbours in tables.
        words: overrides of a run of it, beside those that all tasks share.
        fits: the in-domain error up to which the task counts as learned, a share.
        generalises: of each scored split, the error up to which it counts as generalised to.
        digest: of the task, its training and its measuring as composed (``task_digest``).
    """

    family: str
    words: tuple[str, ...]
    fits: Share
    generalises: dict[str, Share]
    digest: str

    @property
    def thresholds(self) -> dict[str, float]:
        """In domain and of each scored split, the largest error that counts as learned or
        generalised."""
        return {IN_DOMAIN: self.fits, **self.generalises}

    def threshold(self, split: str) -> float | None:
        """That of a split; None: it is not scored."""
        return self.thresholds.get(split)


@closed
class Protocol:
    """How an entry is tuned and scored.

    Args:
        rates: all values of ``train.lr`` that are tried.
        tuning_seeds: seeds of these runs.
        seeds: the entry is scored on seeds 0 to ``seeds`` - 1.
        more_seeds: the same, for the encodings ``more_seeds_for``.
        longer: for the same encodings, how many times the steps are trained too.
    """

    rates: Annotated[tuple[PositiveFloat, ...], Field(min_length=4)]
    tuning_seeds: Several[int]
    seeds: PositiveInt
    more_seeds: PositiveInt
    more_seeds_for: tuple[str, ...]
    longer: tuple[PositiveInt, ...]


@closed
class Suite:
    """A suite as its yaml has it.

    Args:
        common: overrides of every run.
        model: overrides of the model that all encodings share.
        controls: name -> overrides of an entry that is no encoding.
        times: what all thresholds of the yaml were multiplied by.
    """

    protocol: Protocol
    encodings: Several[str]
    model: tuple[str, ...]
    controls: dict[str, tuple[str, ...]]
    common: tuple[str, ...]
    tasks: dict[str, SuiteTask]
    name: str
    digest: str
    times: PositiveFloat

    def task_of(
        self, config: Mapping[str, Any], contents: dict[str, str] | None = None
    ) -> str | None:
        """The task that a recorded configuration is a run of; None: of none."""
        return self._by_digest.get(task_digest(config, contents))

    @property
    def _by_digest(self) -> dict[str, str]:
        return {task.digest: name for name, task in self.tasks.items()}

    @property
    def version(self) -> str:
        """Name and digest, as plans and the leaderboard have them: ``v1-38c43db3``."""
        return f"{self.name}-{self.digest}"

    @property
    def title(self) -> str:
        """The version, and that the thresholds are not those of the yaml if so."""
        return self.version + ("" if self.times == 1 else f", thresholds times {self.times:g}")

    def with_thresholds(self, times: float) -> Self:
        """The same with all thresholds so many times as large, to see what depends on them.

        Raises:
            UsageError: one would be 1 or more, the error of a run that failed.
        """
        limits = {
            (name, split): limit
            for name, task in self.tasks.items()
            for split, limit in task.thresholds.items()
        }
        task, split = most = max(limits, key=lambda key: limits[key])
        if _times(limits[most], times) >= 1:
            raise UsageError(
                f"thresholds={times:g} takes that of {task}, {split} from {limits[most]:g} to "
                f"{times * limits[most]:g}, and an error is at most 1: give less than "
                f"{math.floor(1e4 / limits[most]) / 1e4:g}"
            )
        tasks = {
            name: replace(  # type: ignore[type-var]
                task,
                fits=_times(task.fits, times),
                generalises={s: _times(limit, times) for s, limit in task.generalises.items()},
            )
            for name, task in self.tasks.items()
        }
        return replace(self, tasks=tasks, times=times)  # type: ignore[type-var]

    def words(self, entry: str) -> tuple[str, ...]:
        """The overrides of an entry: a control, or the encoding of that name."""
        return self.controls.get(entry, (*self.model, f"pe={entry}"))


def _times(limit: float, times: float) -> float:
    """The product as decimals, rounded once: 0.05 times 0.7 is 0.035, as 140 of 4000 is."""
    return float(Fraction(repr(limit)) * Fraction(repr(times)))


def load_suite(name: str = DEFAULT, folder: Path | None = None) -> Suite:
    """The suite of conf/suite/NAME.yaml.

    Args:
        folder: of ``--config-dir``, whose suite/NAME.yaml are suites too; a name of conf/ stays.

    Raises:
        UsageError: there is none, or its yaml is not that of a suite.
    """
    files = _files(folder)
    if name not in files:
        raise UsageError(f"unknown suite {name}: {did_you_mean(name, files)}")
    return _loaded(name, files[name])


def suites(folder: Path | None = None) -> list[Suite]:
    """All suites by name: those of conf/suite/, and of the folder of ``--config-dir``.

    Raises:
        UsageError: a yaml is not that of a suite.
    """
    return [_loaded(name, file) for name, file in sorted(_files(folder).items())]


def _files(folder: Path | None) -> dict[str, Path]:
    theirs = {path.stem: path for path in sorted(folder.glob("suite/*.yaml"))} if folder else {}
    return {**theirs, **choices("suite")}


@cache
def _loaded(name: str, file: Path) -> Suite:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    written = yaml.load(file.read_bytes(), Loader=loader)
    text = json.dumps(written, sort_keys=True, ensure_ascii=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    own = {"name": name, "digest": digest, "times": 1.0}
    if taken := own.keys() & written.keys():
        raise UsageError(f"{file}: {min(taken)}: set by the program, leave it out")
    try:
        return TypeAdapter(Suite).validate_python({**written, **own})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise UsageError(f"{file}: {key}: {first['msg']}{_quotes(first)}") from None


def _quotes(error: ErrorDetails) -> str:
    """What to do about a text that YAML reads as something else: a digest 12345678, an entry no."""
    value = error["input"]
    if error["type"] != "string_type" or isinstance(value, (dict, list)):
        return ""
    return f", and YAML reads this one as {json.dumps(value)}: write it in quotes"


def task_digest(config: Mapping[str, Any], contents: dict[str, str] | None = None) -> str:
    """Eight hex digits that identify what a recorded run was trained and measured on.

    The entry (``pe``, ``model`` and ``positions``), the seed, the rate and the number of steps are
    not part of it.
    """
    entry: dict[str, Any] = {key: {} for key in ("pe", "model", "positions")}
    train = {**config["train"], "lr": 0, "steps": 0}
    return identity({**config, **entry, "seed": 0, "train": train}, contents)


def threshold(task: str, split: str) -> float:
    """The error up to which a split of a task (of conf/task/) counts as learned or generalised:
    that of the suite where it names the task, else ``DEFAULT_THRESHOLD``."""
    return _thresholds().get((task, split), DEFAULT_THRESHOLD)


@cache
def _thresholds() -> dict[tuple[str, str], float]:
    return {
        (word.partition("=")[2], split): value
        for task in load_suite().tasks.values()
        for word in task.words
        if word.startswith("task=")
        for split, value in task.thresholds.items()
    }
