"""Checks of a suite across its keys."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from pe_lab.common.errors import UsageError
from pe_lab.common.suggest import did_you_mean
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.results.suite_parts import Protocol, SuiteTask

STEPS = "train.steps"
SET_BY_SUITE = ("train.lr", "seed", "seed.init", "seed.data", "eval.every")
"""Keys that each run gets from the protocol; it is measured at its end."""


def check_keys(
    protocol: Protocol,
    encodings: Collection[str],
    controls: Mapping[str, Iterable[str]],
    tasks: Mapping[str, SuiteTask],
) -> None:
    """ValueError, with a sentence, where keys of a suite do not fit each other."""
    for key, values in {
        "protocol.rates": protocol.rates,
        "protocol.tuning_seeds": protocol.tuning_seeds,
        "protocol.longer": protocol.longer,
        "protocol.more_seeds_for": protocol.more_seeds_for,
        "encodings": encodings,
    }.items():
        _check_once(key, values)
    if both := [name for name in encodings if name in controls]:
        raise ValueError(f"controls.{both[0]}: {both[0]} is one of encodings too: rename it")
    _check_seeds(protocol)
    entries = [*encodings, *controls]
    for name in protocol.more_seeds_for:
        if name not in entries:
            raise ValueError(
                f"protocol.more_seeds_for: {name} is neither of encodings nor of controls: "
                f"{did_you_mean(name, entries)}"
            )
    for name, words in controls.items():
        check_words(f"controls.{name}", words)
    for name, task in tasks.items():
        check_words(f"tasks.{name}.words", task.words)
        _check_task(name, task)
    _check_digests(tasks)


def check_words(key: str, words: Iterable[str]) -> None:
    """ValueError for an override of what the suite sets in every run, which would be in vain."""
    for word in words:
        if word.lstrip("+~").partition("=")[0] in SET_BY_SUITE:
            raise ValueError(
                f"{key}: {word} is not used, as the suite sets rates, seeds and eval.every: remove "
                "it"
            )


def _check_once(key: str, values: Iterable[object]) -> None:
    value, times = Counter(values).most_common(1)[0] if values else (None, 0)
    if times > 1:
        raise ValueError(f"{key}: {value} is there {times} times: keep one")


def _check_seeds(protocol: Protocol) -> None:
    if protocol.more_seeds <= protocol.seeds:
        raise ValueError(
            f"protocol.more_seeds: {protocol.more_seeds} is not above protocol.seeds, "
            f"{protocol.seeds}: both count from seed 0, set it to {protocol.seeds + 1} or more"
        )
    # A seed of tuning is never counted as one of the score.
    if scored := [seed for seed in protocol.tuning_seeds if seed < protocol.more_seeds]:
        raise ValueError(
            f"protocol.tuning_seeds: {scored[0]} is scored too (seeds 0 to "
            f"{protocol.more_seeds - 1}): choose seeds of {protocol.more_seeds} or more"
        )


def _check_task(name: str, task: SuiteTask) -> None:
    steps = [word.partition("=")[2] for word in task.words if word.partition("=")[0] == STEPS]
    if not steps:
        raise ValueError(f"tasks.{name}.words: {STEPS} is missing: add {STEPS}=NUMBER")
    if wrong := [value for value in steps if not re.fullmatch(r"0*[1-9][0-9]{0,17}", value)]:
        raise ValueError(
            f"tasks.{name}.words: {STEPS}={wrong[0]} is not allowed: set it to a whole number of "
            "at least 1, in digits alone, like 1000"
        )
    if IN_DOMAIN in task.generalises:
        raise ValueError(
            f"tasks.{name}.generalises: {IN_DOMAIN} is no split to generalise to: its threshold is "
            "fits, remove it here"
        )


def _check_digests(tasks: Mapping[str, SuiteTask]) -> None:
    first: dict[str, str] = {}
    for name, task in tasks.items():
        other = first.setdefault(task.digest, name)
        if other != name:
            raise ValueError(
                f"tasks.{name}.digest: {task.digest} is that of {other} too, and a run could be of "
                f"either ({STEPS} is not part of the digest): keep one of them, or write the other "
                "into a suite of its own"
            )


def check_splits(suite: str, name: str, task: SuiteTask, splits: Collection[str]) -> None:
    """UsageError where a scored split of a suite's task is none of those that the task has."""
    for split in task.generalises:
        if split not in splits:
            raise UsageError(
                f"suite {suite}: tasks.{name}.generalises: the task has no split {split}: "
                f"{did_you_mean(split, splits)}"
            )
