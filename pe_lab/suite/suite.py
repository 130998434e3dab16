"""A suite: tasks, thresholds and a protocol that are fixed. Its yaml lies in conf/suite/."""

import hashlib
import json
from dataclasses import field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveFloat

from pe_lab.core.config_dir import choices
from pe_lab.core.errors import UsageError, check_known
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.core.validation import closed, read_checked

DEFAULT = "v2_1"
# Keys that the digest leaves out: they say how runs are read, not which there are. It leaves out
# the parts of a suite that continues another, too.
UNIDENTIFIED = ("rule", "continues", "rate_of")
TUNING, SCORE, MORE_SEEDS, LONGER = "tuning", "score", "more_seeds", "longer"
# What the runs of a suite are for, in the order in which they are trained.
PHASES = (TUNING, SCORE, MORE_SEEDS, LONGER)
# Overrides of a run, as on the command line.
Words = tuple[Annotated[str, Field(pattern="^[^~=]+=")], ...]
Share = Annotated[float, Field(ge=0, le=1)]
# The last two are not trained any more: of equal_time the runs of version 0.2 ship.
Phase = Literal["tuning", "score", "more_seeds", "longer", "equal_time", "equal_parameters"]


@closed
class SuiteTask:
    """A task of a suite.

    Args:
        family: the skill that it needs.
        words: overrides of its runs, beside those that all tasks share.
        fits: the largest in-domain error that counts as learned.
        generalises: scored split -> the largest error that counts as generalised.
        digest: identifies the task, its training and its measuring (``task_digest``).
        seconds: that a run of rope took in a pilot.
    """

    family: str
    words: Words
    fits: Share
    generalises: dict[str, Share]
    digest: str
    seconds: PositiveFloat | None = None

    @property
    def thresholds(self) -> dict[str, float]:
        """The largest error of each split that counts as learned or generalised."""
        return {IN_DOMAIN: self.fits, **self.generalises}

    @property
    def steps(self) -> int:
        """How many steps its runs are trained for."""
        return int(dict(word.split("=", 1) for word in self.words)["train.steps"])


@closed
class Search:
    """Which of the rates are tried; without a search, all of them on every tuning seed.

    Rates are tried from ``start`` outwards while the best one is the lowest or highest of those
    tried. Beyond the protocol's rates, half of the lowest and twice the highest may be tried.

    Args:
        near_error, near_loss: a rate is tried on the other tuning seeds if its error on the first
            is at most so much above the best one's and its loss at most so many times as large.
        runs: that an entry needs on a task on average, for the costs.
    """

    start: tuple[PositiveFloat, ...]
    near_error: Share
    near_loss: Annotated[float, Field(ge=1)]
    runs: PositiveFloat


@closed
class Protocol:
    """How an entry is tuned and scored.

    Args:
        rates: the learning rates to choose from, the lowest first.
        seeds: an entry is scored on the seeds below this number.
        more_seeds, more_seeds_for: the same number for these entries and those of the user.
        longer: how many times the steps these entries are trained for, too.
    """

    rates: Annotated[tuple[PositiveFloat, ...], Field(min_length=2)]
    tuning_seeds: Annotated[tuple[int, ...], Field(min_length=1)]
    seeds: Annotated[int, Field(ge=1)]
    more_seeds: int
    more_seeds_for: tuple[str, ...]
    longer: tuple[int, ...]
    search: Search | None = None

    @property
    def all_rates(self) -> tuple[float, ...]:
        """The rates, with those that a search may try beyond them."""
        if self.search is None:
            return self.rates
        return self.rates[0] / 2, *self.rates, 2 * self.rates[-1]


@closed
class Column:
    """A level of what a suite varies beside the encoding.

    Args:
        words: overrides in place of others for the same keys.
        steps: times the steps of the task.
        cost: of a step, relative to the first column.
    """

    words: Words = ()
    steps: int = 1
    cost: PositiveFloat = 1.0


@closed
class Group:
    """Some entries on some tasks.

    Args:
        seeds: of the score; None: as many as the protocol says.
        yours: whether encodings of the user are trained on these tasks, too.
    """

    tasks: tuple[str, ...]
    entries: tuple[str, ...]
    columns: tuple[str, ...]
    phases: tuple[Phase, ...] = ("tuning", "score")
    seeds: int | None = None
    yours: bool = True


@closed
class Suite:
    """A suite as its yaml has it, with its name.

    Args:
        common: overrides of every run.
        model: overrides of the model that all encodings share.
        overrides: encoding -> its overrides.
        variants: name -> overrides of an encoding with other keys, in the first column alone.
        controls: name -> overrides of an entry that is no encoding.
        columns: what is varied beside the encoding; entries of the first one have plain names.
        parts: number -> groups of runs, in the order of the work; without parts, all is one.
        rule: the rate that is scored: the one with the ``lowest`` in-domain error, or the
            ``smallest`` of those within noise of it (``choose_rate``, ``choose_smallest_rate``).
        continues: another suite, whose runs of the same tasks are runs of this one, too.
        rate_of: column -> the one whose rates its entries have until they are tuned themselves.
        digest: eight hex digits that identify what else the yaml says.
        times: what the thresholds of the yaml were multiplied by.
    """

    protocol: Protocol
    encodings: tuple[str, ...]
    model: Words
    controls: dict[str, Words]
    common: Words
    tasks: Annotated[dict[str, SuiteTask], Field(min_length=1)]
    overrides: dict[str, Words] = field(default_factory=dict)
    variants: dict[str, Words] = field(default_factory=dict)
    columns: dict[str, Column] = field(default_factory=lambda: {"alone": Column()})
    parts: dict[int, tuple[Group, ...]] = field(default_factory=dict)
    rule: Literal["lowest", "smallest"] = "lowest"
    continues: str | None = None
    rate_of: dict[str, str] = field(default_factory=dict)
    name: str = ""
    digest: str = ""
    times: float = 1.0

    @property
    def version(self) -> str:
        """Name and digest: ``v2-2a77e5da``."""
        return f"{self.name}-{self.digest}"

    @property
    def entries(self) -> list[str]:
        """The names of all entries in the first column."""
        return [*self.encodings, *self.variants, *self.controls]

    @property
    def groups(self) -> list[tuple[str, Group]]:
        """Each group of runs with the number of its part."""
        keys: dict[str, Any] = {k: tuple(getattr(self, k)) for k in ("tasks", "entries", "columns")}
        parts = self.parts or {0: (Group(**keys),)}
        return [(str(number), group) for number, of_part in parts.items() for group in of_part]

    def with_thresholds(self, times: float) -> Self:
        """Return the same suite with all thresholds so many times as large.

        Raises:
            UsageError: a threshold would be 1 or more.
        """
        largest = max(max(task.thresholds.values()) for task in self.tasks.values())
        if largest * times >= 1:
            raise UsageError(
                f"thresholds={times:g}: give less than {1 / largest:.4g}, an error is \
at most 1"
            )
        tasks = {
            name: replace(  # type: ignore[type-var]
                task,
                fits=round(task.fits * times, 12),
                generalises={s: round(limit * times, 12) for s, limit in task.generalises.items()},
            )
            for name, task in self.tasks.items()
        }
        return replace(self, tasks=tasks, times=times)  # type: ignore[type-var]

    def named(self, base: str, column: str) -> str | None:
        """Return the name of an entry in a column, ``cope+conv``; None if it is not run there."""
        if column == next(iter(self.columns)):
            return base
        name, *keys = base.split(" ", 1)
        return None if base in self.variants else " ".join([f"{name}+{column}", *keys])

    def split(self, entry: str) -> tuple[str, str]:
        """Return an entry's name without its column, and the column: of ``cope+conv npos=8``
        ``cope npos=8`` and ``conv``."""
        name, *keys = entry.split(" ", 1)
        base, plus, column = name.rpartition("+")
        if not plus or column not in self.columns:
            return entry, next(iter(self.columns))
        return " ".join([base, *keys]), column

    def all_entries(self) -> list[str]:
        """Return the names of the entries in all columns."""
        names = [self.named(base, column) for column in self.columns for base in self.entries]
        return [name for name in names if name is not None]

    def steps(self, task: str, entry: str) -> int:
        """Return the number of training steps of an entry on a task."""
        return self.tasks[task].steps * self.columns[self.split(entry)[1]].steps

    def words(self, entry: str) -> Words:
        """Return the overrides of an entry: of a control, a variant, or an encoding by its name."""
        base, column = self.split(entry)
        own = self.variants.get(base, (f"pe={base}", *self.overrides.get(base, ())))
        words = self.controls.get(base, (*self.model, *own))
        return _merge(words, self.columns[column].words)

    def run_words(self, task: str, entry: str) -> Words:
        """Return the overrides of a run, without those of its rate and seed."""
        words = _merge(
            (*self.common, *self.tasks[task].words), (f"train.steps={self.steps(task, entry)}",)
        )
        return (*words, *self.words(entry))


def _merge(words: Words, others: Words) -> Words:
    """Return both, without the words that another replaces."""
    keys = {word.partition("=")[0] for word in others}
    return (*(word for word in words if word.partition("=")[0] not in keys), *others)


def load_suite(name: str = DEFAULT, folder: Path | None = None) -> Suite:
    """Return the suite of conf/suite/NAME.yaml, or of suite/NAME.yaml in the folder of
    ``--config-dir``.

    Raises:
        UsageError: there is no such suite, or its yaml is wrong.
    """
    files = choices("suite", folder)
    check_known("unknown suite {}", [name], files)
    return _load(name, files[name].absolute())


@cache
def _load(name: str, file: Path) -> Suite:
    kinds = (Suite, Protocol, Search, SuiteTask, Column, Group)
    keys = [key for kind in kinds for key in kind.__annotations__]
    suite, content = read_checked(file, Suite, keys, "conf/suite/v2.yaml")
    for task, of_task in suite.tasks.items():
        if not any(word.removeprefix("train.steps=").isdigit() for word in of_task.words):
            raise UsageError(f"{file}: tasks.{task}.words needs train.steps=N, a whole number")
    in_rates = [*suite.rate_of, *suite.rate_of.values()]
    check_known(f"{file}: rate_of: unknown {{}}", in_rates, suite.columns)
    for part, group in suite.groups:
        for kind in ("tasks", "entries", "columns"):
            words = f"{file}: parts.{part}.{kind}: unknown {{}}"
            check_known(words, getattr(group, kind), getattr(suite, kind))
    left_out = (*UNIDENTIFIED, *["parts"] * bool(suite.continues))
    identified = {key: value for key, value in content.items() if key not in left_out}
    text = json.dumps(identified, sort_keys=True, ensure_ascii=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return replace(suite, name=name, digest=digest)  # type: ignore[type-var]
