"""All checks of an encoding, a task and a model, in the order shown."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from pe_lab.check import encodings, models, tasks
from pe_lab.check.base import Outcome, Section, exact, outcome
from pe_lab.train.plan import build_task

EVERY_KEY = "every key changes something"


def check_encoding(section: Section, **sizes: Any) -> Iterator[Outcome]:
    """The outcomes of all checks.

    Args:
        sizes: of the tiny model, where they differ (``d_model``, ``n_heads``).
    """
    with exact():
        yield outcome("keys of yaml and class", lambda: encodings.same_keys(section))
        sections = encodings.choices(section, **sizes)
        for name, check in encodings.OF_EACH_CHOICE.items():
            yield _worst(name, check, sections, sizes)
        yield outcome(EVERY_KEY, lambda: encodings.every_key(section, **sizes))


def check_task(section: Section) -> Iterator[Outcome]:
    """The outcomes of all checks of a task."""
    task = build_task(section)
    for name, check in tasks.CHECKS.items():
        yield outcome(name, partial(check, task))
    yield outcome(EVERY_KEY, partial(tasks.every_key, section))


def check_model(section: Section) -> Iterator[Outcome]:
    """The outcomes of all checks of a model."""
    with exact():
        for name, check in models.CHECKS.items():
            yield outcome(name, partial(check, section))


def _worst(
    name: str, check: Callable[..., str], sections: dict[str, Section], sizes: dict[str, int]
) -> Outcome:
    """The outcome with the keys as they are, unless another choice fails."""
    outcomes = []
    for words, section in sections.items():
        one = outcome(name, partial(check, section, **sizes))
        if one.state == "fail":
            return Outcome(name, "fail", f"with {words}: {one.sentence}" if words else one.sentence)
        outcomes.append(one)
    return outcomes[0]
