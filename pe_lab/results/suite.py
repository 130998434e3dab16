"""A suite: tasks, thresholds and a protocol that are fixed (conf/suite/), its yaml checked by
pydantic, and which of a suite's tasks a run belongs to."""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    Field,
    PositiveFloat,
    ValidationInfo,
    field_validator,
    model_validator,
)

from pe_lab.common.errors import UsageError
from pe_lab.common.suggest import check_known, did_you_mean
from pe_lab.common.validation import closed, read_checked
from pe_lab.config.choices import choices
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.store.run_id import identity

EXAMPLE = "conf/suite/v1.yaml"
SET_BY_SUITE = ("train.lr", "seed", "seed.init", "seed.data", "eval.every")
"""Keys that the protocol sets in every run. A run of a suite is measured at its end only."""


def _used(word: str) -> str:
    if word.lstrip("+~").partition("=")[0] in SET_BY_SUITE:
        raise ValueError(
            f"{word} is not used, as the suite sets rates, seeds and eval.every: remove it"
        )
    return word


def _with_steps(words: tuple[str, ...]) -> tuple[str, ...]:
    steps = [word for word in words if word.startswith("train.steps=")]
    if not steps or not all(re.fullmatch(r"train\.steps=0*[1-9]\d{0,17}", word) for word in steps):
        found = steps[0] if steps else "no train.steps"
        raise ValueError(
            f"{found} is not allowed: add train.steps=NUMBER, a whole number of at least 1 in "
            "digits alone, like 1000"
        )
    return words


def _once(values: tuple[Hashable, ...]) -> tuple[Hashable, ...]:
    for value, times in Counter(values).items():
        if times > 1:
            raise ValueError(f"{value} is there {times} times: keep one")
    return values


def _out_of_domain(split: str) -> str:
    if split == IN_DOMAIN:
        raise ValueError("it is no split to generalise to, its threshold is fits: remove it")
    return split


T = TypeVar("T")
Once = Annotated[tuple[T, ...], AfterValidator(_once)]
Several = Annotated[Once[T], Field(min_length=1)]
Words = tuple[Annotated[str, AfterValidator(_used)], ...]
Share = Annotated[float, Field(ge=0, le=1)]
Split = Annotated[str, AfterValidator(_out_of_domain)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Count = Annotated[int, Field(ge=1, lt=2**63)]


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
    words: Annotated[Words, AfterValidator(_with_steps)]
    fits: Share
    generalises: dict[Split, Share]
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

    rates: Annotated[Once[PositiveFloat], Field(min_length=4)]
    tuning_seeds: Several[Seed]
    seeds: Count
    more_seeds: Count
    more_seeds_for: Once[str]
    longer: Once[Annotated[int, Field(ge=2, lt=2**63)]]

    @field_validator("more_seeds")
    @classmethod
    def _check_seeds(cls, more: int, info: ValidationInfo) -> int:
        seeds = info.data.get("seeds", 0)
        if more <= seeds:
            raise ValueError(
                f"{more} is not above protocol.seeds, {seeds}: both count from seed 0, set it to "
                f"{seeds + 1} or more"
            )
        # A seed of tuning is never counted as one of the score.
        if scored := [seed for seed in info.data.get("tuning_seeds", ()) if seed < more]:
            raise ValueError(
                f"{more} scores seeds 0 to {more - 1}, and {scored[0]} is one of tuning_seeds: "
                f"choose tuning_seeds of {more} or more"
            )
        return more


@closed
class SuiteFile:
    """A suite as its yaml has it.

    Args:
        common: overrides of every run.
        model: overrides of the model that all encodings share.
        controls: name -> overrides of an entry that is no encoding.
    """

    protocol: Protocol
    encodings: Several[str]
    model: Words
    controls: dict[str, Words]
    common: Words
    tasks: Annotated[dict[str, SuiteTask], Field(min_length=1)]

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        if both := [name for name in self.encodings if name in self.controls]:
            raise ValueError(f"controls.{both[0]}: {both[0]} is one of encodings too: rename it")
        entries = [*self.encodings, *self.controls]
        for name in self.protocol.more_seeds_for:
            if name not in entries:
                raise ValueError(
                    f"protocol.more_seeds_for: {name} is neither of encodings nor of controls: "
                    f"{did_you_mean(name, entries)}"
                )
        first: dict[str, str] = {}
        for name, task in self.tasks.items():
            if (other := first.setdefault(task.digest, name)) != name:
                raise ValueError(
                    f"tasks.{name}.digest: {task.digest} is that of {other} too (train.steps "
                    "is not part of it), so a run could be of either: keep one of them, or write "
                    "the other into a suite of its own"
                )
        return self


DEFAULT = "v1"
DEFAULT_THRESHOLD = 0.05
"""Of splits that no suite names."""

TUNING, SCORE, OTHER_SEEDS, CAPACITY = "tuning", "score", "other_seeds", "capacity:"
EQUAL_TIME, EQUAL_PARAMETERS = "equal_time", "equal_parameters"
"""Phases: what a run of a suite is for."""

PINNED = {("v1", "fope"): ("pe.fourier_norm=true",)}
"""Overrides of an entry of a suite that ships: its runs are older than another default of a key."""


@closed
class Suite(SuiteFile):
    """A suite with its name.

    Args:
        digest: eight hex digits that identify what the yaml says.
        times: what all thresholds of the yaml were multiplied by.
    """

    name: str
    digest: str
    times: PositiveFloat = 1.0

    def task_of(
        self, config: Mapping[str, Any], contents: dict[str, str] | None = None
    ) -> str | None:
        """The task that a recorded configuration is a run of; None: of none."""
        digest = task_digest(config, contents)
        return next((name for name, task in self.tasks.items() if task.digest == digest), None)

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

    def check_splits(self, task: str, splits: Collection[str]) -> None:
        """UsageError where a scored split of a task is none of those that the task has."""
        words = f"suite {self.name}: tasks.{task}.generalises: the task has no split {{}}"
        check_known(words, self.tasks[task].generalises, splits)

    def words(self, entry: str) -> tuple[str, ...]:
        """The overrides of an entry: a control, or the encoding of that name."""
        encoding = (*self.model, f"pe={entry}", *PINNED.get((self.name, entry), ()))
        return self.controls.get(entry, encoding)


def _times(limit: float, times: float) -> float:
    """The product as decimals, rounded once: 0.05 times 0.7 is 0.035, as 140 of 4000 is."""
    return float(Fraction(repr(limit)) * Fraction(repr(times)))


def load_suite(name: str = DEFAULT, folder: Path | None = None) -> Suite:
    """The suite of conf/suite/NAME.yaml.

    Args:
        folder: of ``--config-dir``, whose suite/NAME.yaml are suites too; a name of conf/ stays.

    Raises:
        UsageError: there is none, its yaml is not that of a suite, or an encoding of the folder
            has the name of a control.
    """
    files = _files(folder)
    check_known("unknown suite {}", [name], files)
    suite = _loaded(name, files[name].absolute())
    for path in sorted(folder.glob("pe/*.yaml")) if folder else ():
        if path.stem in suite.controls:
            raise UsageError(
                f"{path}: {path.stem} is a control of the suite {suite.name}, which trains that "
                "and not this encoding: rename this file"
            )
    return suite


def suites(folder: Path | None = None) -> list[Suite]:
    """All suites by name: those of conf/suite/, and of the folder of ``--config-dir``.

    Raises:
        UsageError: a yaml is not that of a suite.
    """
    return [_loaded(name, file.absolute()) for name, file in sorted(_files(folder).items())]


def _files(folder: Path | None) -> dict[str, Path]:
    theirs = {path.stem: path for path in sorted(folder.glob("suite/*.yaml"))} if folder else {}
    return {**theirs, **choices("suite")}


@cache
def _loaded(name: str, file: Path) -> Suite:
    keys = [key for kind in (SuiteFile, Protocol, SuiteTask) for key in kind.__annotations__]
    suite, content = read_checked(file, SuiteFile, keys, EXAMPLE)
    text = json.dumps(content, sort_keys=True, ensure_ascii=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return Suite(**vars(suite), name=name, digest=digest)  # type: ignore[call-arg]


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
