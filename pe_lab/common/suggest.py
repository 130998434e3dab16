"""Suggestions for an unknown name."""

import difflib
from collections.abc import Iterable

CUTOFF = 0.6
"""The least similarity of a suggestion, of at most 1: ``steps`` and ``threads`` have 0.5."""
ALIASES = {
    "accuracy": "error",
    "encoding": "pe",
    "encodings": "pe",
    "output": "to",
    "out": "to",
}
"""Other names of a key or a value, that no spelling leads to."""
MOST = 8
"""Choices that a message names where there are many."""


def closest(wrong: str, choices: Iterable[str], cutoff: float = CUTOFF) -> str | None:
    """The choice with the most similar spelling, in any case, one of the same letters before
    others; None where none is similar."""
    names = {name.lower(): name for name in choices}
    for name in (wrong.lower(), ALIASES.get(wrong.lower())):
        if name in names:
            return names[name]
    for name in names:
        if sorted(name) == sorted(wrong.lower()):
            return names[name]
    close = difflib.get_close_matches(wrong.lower(), names, n=1, cutoff=cutoff)
    return names[close[0]] if close else None


def did_you_mean_of_many(wrong: str, choices: Iterable[str], lists: str) -> str:
    """``did_you_mean`` among the most similar choices.

    Args:
        lists: the command that lists all of them.
    """
    names = sorted(choices)
    if len(names) <= MOST:
        return did_you_mean(wrong, names)
    near = difflib.get_close_matches(wrong, names, n=MOST, cutoff=0.4) or names[:MOST]
    if (meant := closest(wrong, names)) and meant not in near:
        near = [meant, *near[: MOST - 1]]
    return f"{did_you_mean(wrong, near)}; {lists} lists all"


def did_you_mean(wrong: str, choices: Iterable[str]) -> str:
    """``did you mean x? (choices: x, y)``, or ``choose from x, y`` where no choice is similar."""
    names = sorted(choices)
    if not names:
        return "there are none to choose from"
    close, listed = closest(wrong, names), ", ".join(names)
    return f"did you mean {close}? (choices: {listed})" if close else f"choose from {listed}"
