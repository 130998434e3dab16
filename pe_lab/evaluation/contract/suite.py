"""All checks of an encoding, in the order shown."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from pe_lab.evaluation.contract import cost, encodings, equal_paths, keys
from pe_lab.evaluation.contract.choices import choices
from pe_lab.evaluation.contract.outcome import Outcome, outcome
from pe_lab.evaluation.contract.tiny import Section, exact

OF_EACH_CHOICE: dict[str, Callable[..., str]] = {
    "no look at the future": encodings.no_look_ahead,
    "finite far out": encodings.finite_far_out,
    "float32 and bfloat16": encodings.low_precision,
    "gradient to every parameter": encodings.gradients_reach,
    "differs from none": encodings.differs_from_none,
    "reads positions": encodings.reads_positions,
    "shift invariance": encodings.shifted,
    "each sequence by itself": encodings.rows_alone,
    "small and odd sizes": encodings.small_sizes,
    "cached equals uncached": equal_paths.cached,
    "fast equals plain": equal_paths.fast_equals_plain,
    "state_dict round trip": encodings.round_trip,
}
"""Checks that are done with the keys as they are and with each other choice."""
COST = "cost beside rope's"


def check_encoding(section: Section, **sizes: Any) -> Iterator[Outcome]:
    """The outcomes of all checks.

    Args:
        sizes: of the tiny model, where they differ (``d_model``, ``n_heads``).
    """
    with exact():
        yield outcome("keys of yaml and class", lambda: keys.same_keys(section))
        sections = choices(section, **sizes)
        for name, check in OF_EACH_CHOICE.items():
            yield _worst(name, check, sections, sizes)
        name = "every key changes something"
        yield outcome(name, lambda: keys.every_key(section, **sizes))
    yield outcome(COST, lambda: cost.beside_rope(section), "measured")


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
