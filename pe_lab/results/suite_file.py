"""The yaml of a suite, read and checked by pydantic."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Hashable
from pathlib import Path
from typing import Annotated, Self, TypeVar

from pydantic import (
    AfterValidator,
    Field,
    PositiveFloat,
    ValidationInfo,
    field_validator,
    model_validator,
)

from pe_lab.common.suggest import did_you_mean
from pe_lab.common.validation import closed, read_checked
from pe_lab.core.metrics import IN_DOMAIN

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


def read_suite(file: Path) -> tuple[SuiteFile, str]:
    """A suite and the digest of what its yaml says.

    Raises:
        UsageError: the file cannot be read, is no YAML, or is not that of a suite.
    """
    keys = [key for kind in (SuiteFile, Protocol, SuiteTask) for key in kind.__annotations__]
    suite, content = read_checked(file, SuiteFile, keys, EXAMPLE)
    text = json.dumps(content, sort_keys=True, ensure_ascii=True)
    return suite, hashlib.sha256(text.encode()).hexdigest()[:8]
