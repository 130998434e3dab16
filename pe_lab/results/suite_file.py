"""The yaml of a suite (conf/suite/), as pydantic checks it: tasks with thresholds, the protocol,
and the parts of the work."""

import re
from collections import Counter
from collections.abc import Collection, Hashable
from dataclasses import field
from typing import Annotated, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    Field,
    PositiveFloat,
    ValidationInfo,
    field_validator,
    model_validator,
)

from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.core.suggest import did_you_mean
from pe_lab.core.validation import closed

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

Phase = Literal["tuning", "score", "more_seeds", "longer", "again"]
"""What runs of a suite are for, as one asks for them."""
FORMER = Literal["equal_time", "equal_parameters"]
"""Phases that suite v2 names and whose runs ship; they are not run any more."""


@closed
class SuiteTask:
    """A task of a suite.

    Args:
        family: the skill that it needs; tasks of a family are neighbours in tables.
        words: overrides of a run of it, beside those that all tasks share.
        fits: the in-domain error up to which the task counts as learned, a share.
        generalises: of each scored split, the error up to which it counts as generalised to.
        digest: of the task, its training and its measuring as composed (``task_digest``).
        seconds: of a run of rope, from a pilot: the cost until a run of it is finished.
    """

    family: str
    words: Annotated[Words, AfterValidator(_with_steps)]
    fits: Share
    generalises: dict[Split, Share]
    digest: str
    seconds: PositiveFloat | None = None

    @property
    def thresholds(self) -> dict[str, float]:
        """In domain and of each scored split, the largest error that counts as learned or
        generalised."""
        return {IN_DOMAIN: self.fits, **self.generalises}

    def threshold(self, split: str) -> float | None:
        """That of a split; None: it is not scored."""
        return self.thresholds.get(split)


@closed
class Search:
    """Which rates are tried for an entry on a task; without it, all on every tuning seed.

    Rates are tried from ``start`` outwards, as long as the best one is the lowest or the highest
    that was tried. At an end of the protocol's rates, one more is tried: half or double.

    Args:
        start: rates that are tried first, neighbours among the protocol's.
        near_error: other tuning seeds are for rates whose in-domain error on the first one is at
            most this above the best rate's, ..
        near_loss: .. and whose loss is at most so many times the best rate's, unless their error
            is lower.
        runs: of an entry on a task, on average: what the costs of missing ones assume.
    """

    start: Several[PositiveFloat]
    near_error: Share
    near_loss: Annotated[float, Field(ge=1)]
    runs: PositiveFloat


@closed
class Protocol:
    """How an entry is tuned and scored.

    Args:
        rates: the values of ``train.lr`` to choose from; with ``search``, the lowest first.
        tuning_seeds: seeds of these runs.
        seeds: the entry is scored on seeds 0 to ``seeds`` - 1.
        more_seeds: the same, for the encodings ``more_seeds_for``.
        longer: for the same encodings, how many times the steps are trained too.
        search: which of the rates are tried; None: all, on all tuning seeds.
    """

    rates: Annotated[Once[PositiveFloat], Field(min_length=4)]
    tuning_seeds: Several[Seed]
    seeds: Count
    more_seeds: Count
    more_seeds_for: Once[str]
    longer: Once[Annotated[int, Field(ge=2, lt=2**63)]]
    search: Search | None = None

    @property
    def all_rates(self) -> tuple[float, ...]:
        """The rates, and those half and twice that a search may try beyond them."""
        if self.search is None:
            return self.rates
        return self.rates[0] / 2, *self.rates, 2 * self.rates[-1]

    @field_validator("search")
    @classmethod
    def _check_search(cls, search: Search | None, info: ValidationInfo) -> Search | None:
        rates = info.data.get("rates", ())
        if search is None or not rates:
            return search
        if list(rates) != sorted(rates):
            raise ValueError("a search goes from rate to rate: write protocol.rates in order")
        at = [rates.index(rate) for rate in search.start if rate in rates]
        if len(at) < len(search.start) or at != [*range(at[0], at[0] + len(at))]:
            raise ValueError(
                f"start={[*search.start]} are not neighbours among protocol.rates, in their order: "
                f"choose from {[*rates]}"
            )
        return search

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
class Column:
    """A level of the factor that a suite varies beside the encoding.

    Args:
        words: overrides of every run in this column, in place of others for the same keys.
        steps: times the steps of the task.
        cost: of a step, times that in the first column, until runs in this one are finished.
    """

    words: Words = ()
    steps: Count = 1
    cost: PositiveFloat = 1.0


@closed
class Group:
    """Runs that belong together: some entries on some tasks.

    Args:
        tasks: names of the suite's tasks.
        entries: names of encodings, variants and controls.
        columns: in which they are run.
        phases: of the protocol.
        seeds: the score has seeds 0 to ``seeds`` - 1; None: as many as the protocol says.
        yours: whether an encoding that is not the suite's is run on these tasks too.
    """

    tasks: Several[str]
    entries: Several[str]
    columns: Several[str]
    phases: Several[Phase | FORMER] = ("tuning", "score")
    seeds: Count | None = None
    yours: bool = True


@closed
class SuiteFile:
    """A suite as its yaml has it.

    Args:
        common: overrides of every run.
        model: overrides of the model that all encodings share.
        overrides: encoding -> other values of its keys than its yaml has.
        variants: name -> overrides of an encoding with other keys, in the first column alone.
        controls: name -> overrides of an entry that is no encoding.
        columns: what is varied beside the encoding; entries of the first one have plain names.
        parts: number -> groups of runs, in the order of the work; none: all at once.
    """

    protocol: Protocol
    encodings: Several[str]
    model: Words
    overrides: dict[str, Words] = field(default_factory=dict)
    variants: dict[str, Words] = field(default_factory=dict)
    controls: dict[str, Words]
    columns: Annotated[dict[str, Column], Field(min_length=1)] = field(
        default_factory=lambda: {"alone": Column()}
    )
    common: Words
    tasks: Annotated[dict[str, SuiteTask], Field(min_length=1)]
    parts: dict[int, tuple[Group, ...]] = field(default_factory=dict)

    @property
    def entries(self) -> list[str]:
        """All names of entries, as they are in the first column."""
        return [*self.encodings, *self.variants, *self.controls]

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        for key, named in (("controls", self.controls), ("variants", self.variants)):
            if both := [name for name in named if self.entries.count(name) > 1]:
                raise ValueError(f"{key}.{both[0]}: {both[0]} is one of encodings too: rename it")
        for name in self.protocol.more_seeds_for:
            if name not in self.entries:
                raise ValueError(
                    f"protocol.more_seeds_for: {name} is neither of encodings nor of controls: "
                    f"{did_you_mean(name, self.entries)}"
                )
        self._check_parts()
        first: dict[str, str] = {}
        for name, task in self.tasks.items():
            if (other := first.setdefault(task.digest, name)) != name:
                raise ValueError(
                    f"tasks.{name}.digest: {task.digest} is that of {other} too (train.steps "
                    "is not part of it), so a run could be of either: keep one of them, or write "
                    "the other into a suite of its own"
                )
        return self

    def _check_parts(self) -> None:
        used: list[tuple[str, str, Collection[str]]]
        used = [("overrides", name, self.encodings) for name in self.overrides]
        for number, groups in self.parts.items():
            for at, group in enumerate(groups):
                key = f"parts.{number}.{at}"
                used += [(f"{key}.tasks", name, self.tasks) for name in group.tasks]
                used += [(f"{key}.entries", name, self.entries) for name in group.entries]
                used += [(f"{key}.columns", name, self.columns) for name in group.columns]
                if group.seeds is not None and group.seeds > self.protocol.seeds:
                    raise ValueError(
                        f"{key}.seeds: {group.seeds} is above protocol.seeds, "
                        f"{self.protocol.seeds}: set it to that or less"
                    )
        for key, name, known in used:
            if name not in known:
                raise ValueError(f"{key}: {name} is unknown: {did_you_mean(name, known)}")
