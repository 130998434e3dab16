"""All checks of an encoding, a task and a model, in the order shown."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from pe_lab.check import (
    encodings,
    models,
    tasks,
)
from pe_lab.check.base import Outcome, Section, choices, exact, outcome
from pe_lab.train.plan import build_task

FIRST: dict[str, Callable[..., str]] = {
    "deterministic": encodings.same_twice,
    "bias": encodings.bias_fits,
}
"""Checks that come first: if one fails, the others would report a consequence, not the fault."""
OF_EACH_CHOICE: dict[str, Callable[..., str]] = {
    "no look at the future": encodings.no_look_ahead,
    "finite far out": encodings.finite_far_out,
    "float32 and bfloat16": encodings.low_precision,
    "gradient to every parameter": encodings.gradients_reach,
    "gradient by differences": encodings.derivative,
    "differs from none": encodings.differs_from_none,
    "reads positions": encodings.reads_positions,
    "shift invariance": encodings.shifted,
    "positions in any order": encodings.any_order,
    "positions between whole ones": encodings.between_whole,
    "each sequence by itself": encodings.rows_alone,
    "small and odd sizes": encodings.small_sizes,
    "cached equals uncached": encodings.cached,
    "fast equals plain": encodings.fast_equals_plain,
    "state_dict round trip": encodings.round_trip,
}
"""Checks that run with the keys as they are and with each other choice."""
EVERY_KEY = "every key changes something"

OF_A_TASK: dict[str, Callable[..., str]] = {
    "shapes and vocabulary": tasks.shapes,
    "same rng, same batch": tasks.same_batch,
    "splits differ": tasks.splits_differ,
    "answers are not given away": tasks.not_given_away,
    "answers follow from what is read": tasks.derivable,
    "other lengths": tasks.other_lengths,
    "one run of answers at the end": tasks.generated,
}
OF_A_MODEL: dict[str, Callable[..., str]] = {
    "no look at the future": models.no_look_ahead,
    "gradient to every parameter": models.gradients_reach,
    "scored positions": models.scored_positions,
    "dropout by its key": models.dropout_by_key,
    "cached equals uncached": models.cached,
    "fast equals plain": models.fast_equals_plain,
    "state_dict round trip": models.round_trip,
    EVERY_KEY: models.every_key,
    "encodings": models.encodings,
}


def check_encoding(section: Section, **sizes: Any) -> Iterator[Outcome]:
    """The outcomes of all checks.

    Args:
        sizes: of the tiny model, where they differ (``d_model``, ``n_heads``).
    """
    with exact():
        yield outcome("keys of yaml and class", lambda: encodings.same_keys(section))
        sections = choices(section, **sizes)
        broken = ""
        for name, check in FIRST.items():
            one = _worst(name, check, sections, sizes)
            if one.state == "fail":
                broken = name
            yield one
        if broken:
            for name in (*OF_EACH_CHOICE, EVERY_KEY):
                yield Outcome(name, "not claimed", f"not checked: {broken} fails")
            return
        for name, check in OF_EACH_CHOICE.items():
            yield _worst(name, check, sections, sizes)
        yield outcome(EVERY_KEY, lambda: encodings.every_key(section, **sizes))


def check_task(section: Section) -> Iterator[Outcome]:
    """The outcomes of all checks of a task."""
    task = build_task(section)
    for name, check in OF_A_TASK.items():
        yield outcome(name, partial(check, task))
    yield outcome(EVERY_KEY, partial(tasks.every_key, section))


def check_model(section: Section) -> Iterator[Outcome]:
    """The outcomes of all checks of a model."""
    with exact():
        for name, check in OF_A_MODEL.items():
            yield outcome(name, partial(check, section))


def _worst(
    name: str, check: Callable[..., str], sections: dict[str, Section], sizes: dict[str, int]
) -> Outcome:
    """The outcome with the keys as they are, unless another choice fails."""
    found = []
    for words, section in sections.items():
        one = outcome(name, partial(check, section, **sizes))
        if one.state == "fail":
            return Outcome(name, "fail", f"with {words}: {one.sentence}" if words else one.sentence)
        found.append(one)
    return found[0]
