"""A suite: tasks, thresholds and a protocol that are fixed (conf/suite/), its yaml checked by
pydantic, and which of a suite's tasks a run belongs to."""

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import field, replace
from fractions import Fraction
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Self

from pydantic import PositiveFloat

from pe_lab.config.choices import choices
from pe_lab.core.errors import UsageError
from pe_lab.core.suggest import check_known
from pe_lab.core.validation import closed, read_checked
from pe_lab.results.suite_file import (
    Column,
    Group,
    Protocol,
    Search,
    SuiteFile,
    SuiteTask,
)
from pe_lab.store.run_id import identity

EXAMPLE = "conf/suite/v2.yaml"

DEFAULT = "v2"
DEFAULT_THRESHOLD = 0.05
"""Of splits that no suite names."""

OUTSIDE = "pe_lab.models.outside.OutsideConfig"

TUNING, SCORE, OTHER_SEEDS, AGAIN = "tuning", "score", "other_seeds", "again"
"""Phases: what a run of a suite is for."""


@closed
class Suite(SuiteFile):
    """A suite with its name.

    Args:
        digest: eight hex digits that identify what the yaml says.
        times: what all thresholds of the yaml were multiplied by.
        models: label -> overrides of a model from outside, which the first column alone has.
    """

    name: str
    digest: str
    times: PositiveFloat = 1.0
    models: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def task_of(
        self, config: Mapping[str, Any], contents: dict[str, str] | None = None
    ) -> str | None:
        """The task that a recorded configuration is a run of; None: of none."""
        digest = task_digest(config, contents)
        return next((name for name, task in self.tasks.items() if task.digest == digest), None)

    @property
    def version(self) -> str:
        """Name and digest, as plans and the leaderboard have them: ``v2-2a77e5da``."""
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

    def score_seeds(self, task: str, base: str, column: str) -> int:
        """How many seeds the score of an entry has on a task: the fewest of the parts with it."""
        seeds = [group.seeds for group in self._scoring(task, base) if column in group.columns]
        return min((n or self.protocol.seeds for n in seeds), default=self.protocol.seeds)

    def scored_in(self, task: str, base: str) -> list[str]:
        """The names of an entry in the columns in which a task scores it."""
        groups = self._scoring(task, base)
        columns = [c for c in self.columns if any(c in g.columns for g in groups) or not self.parts]
        return [name for c in columns if (name := self.named(base, c)) is not None]

    def _scoring(self, task: str, base: str) -> list[Group]:
        return [
            group
            for part in self.parts.values()
            for group in part
            if task in group.tasks and SCORE in group.phases
            if (base in group.entries if base in self.entries else group.yours)
        ]

    @property
    def first_column(self) -> str:
        """The column whose entries have plain names."""
        return next(iter(self.columns))

    def named(self, base: str, column: str) -> str | None:
        """The name of an entry in a column: ``cope``, ``cope+conv``; None: it is not run there."""
        if column == self.first_column:
            return base
        return None if base in {**self.variants, **self.models} else f"{base}+{column}"

    @property
    def all_entries(self) -> list[str]:
        """The names of the entries in all columns."""
        pairs = product(self.columns, self.entries)
        return [name for column, base in pairs if (name := self.named(base, column)) is not None]

    def candidates(self, model: str, pe: str) -> list[str]:
        """The entries, in all columns, that a run of this model and encoding may be of; of others
        than the suite's, those that would have them."""
        known = [
            name
            for name in self.all_entries
            if {f"model={model}", f"pe={pe}"} <= {*self.words(name)}
        ]
        return known or [f"{pe}+{column}" if at else pe for at, column in enumerate(self.columns)]

    def split(self, entry: str) -> tuple[str, str]:
        """The entry's name in the first column, and its column: of ``cope+conv`` both halves."""
        base, plus, column = entry.rpartition("+")
        return (base, column) if plus and column in self.columns else (entry, self.first_column)

    def times_steps(self, entry: str) -> int:
        """How many times the steps of its task a run of the entry is trained."""
        return self.columns[self.split(entry)[1]].steps

    def words(self, entry: str) -> tuple[str, ...]:
        """The overrides of an entry: a control, a variant, or the encoding of that name; with those
        of its column."""
        base, column = self.split(entry)
        own = self.overrides.get(base, ())
        words = (*self.model, *self.variants.get(base, (f"pe={base}", *own)))
        words = {**self.controls, **self.models}.get(base, words)
        return _merged(words, self.columns[column].words)

    def run_words(self, task: str, entry: str) -> tuple[str, ...]:
        """The overrides of a run of an entry on a task, without rate and seed."""
        words = (*self.common, *self.tasks[task].words)
        times = self.times_steps(entry)
        steps = [int(word.partition("=")[2]) for word in words if word.startswith("train.steps=")]
        longer = (f"train.steps={times * steps[-1]}",) if times > 1 else ()
        return (*_merged(words, longer), *self.words(entry))


def _merged(words: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    """Both, without the words that another for the same key replaces."""
    keys = {word.partition("=")[0] for word in others}
    return (*(word for word in words if word.partition("=")[0] not in keys), *others)


def _times(limit: float, times: float) -> float:
    """The product as decimals, rounded once: 0.05 times 0.7 is 0.035, as 140 of 4000 is."""
    return float(Fraction(repr(limit)) * Fraction(repr(times)))


def load_suite(name: str = DEFAULT, folder: Path | None = None) -> Suite:
    """The suite of conf/suite/NAME.yaml.

    Args:
        folder: of ``--config-dir``, whose suite/NAME.yaml are suites too; a name of conf/ stays.

    Raises:
        UsageError: there is none, its yaml is not that of a suite, or an encoding of the folder
            has the name of a control or a variant.
    """
    files = _files(folder)
    check_known("unknown suite {}", [name], files)
    suite = _loaded(name, files[name].absolute())
    for path in sorted(folder.glob("pe/*.yaml")) if folder else ():
        for kind, names in (("control", suite.controls), ("variant", suite.variants)):
            if path.stem in names:
                raise UsageError(
                    f"{path}: {path.stem} is a {kind} of the suite {suite.name}, which trains that "
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
    kinds = (SuiteFile, Protocol, Search, SuiteTask, Column, Group)
    keys = [key for kind in kinds for key in kind.__annotations__]
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
    that of the suites of conf/suite/, the last one that has the task as its yaml is; else
    ``DEFAULT_THRESHOLD``."""
    return _thresholds().get((task, split), DEFAULT_THRESHOLD)


@cache
def _thresholds() -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for task in (task for suite in suites() for task in suite.tasks.values()):
        (name,) = (word.partition("=")[2] for word in task.words if word.startswith("task="))
        limits = {(name, split): value for split, value in task.thresholds.items()}
        other_keys = any(word.startswith("task.") for word in task.words)
        found = {**limits, **found} if other_keys else {**found, **limits}
    return found
