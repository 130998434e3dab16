"""Suggestions for an unknown name."""

import difflib
from collections.abc import Iterable

CUTOFF = 0.6
"""The least similarity of a suggestion, of at most 1: ``steps`` and ``threads`` have 0.5."""


def closest(wrong: str, choices: Iterable[str], cutoff: float = CUTOFF) -> str | None:
    """The choice with the most similar spelling, in any case; None where none is similar."""
    names = {name.lower(): name for name in choices}
    close = difflib.get_close_matches(wrong.lower(), names, n=1, cutoff=cutoff)
    return names[close[0]] if close else None


def did_you_mean(wrong: str, choices: Iterable[str]) -> str:
    """``did you mean x? (choices: x, y)``, or ``choose from x, y`` where no choice is similar."""
    names = sorted(choices)
    if not names:
        return "there are none to choose from"
    close, listed = closest(wrong, names), ", ".join(names)
    return f"did you mean {close}? (choices: {listed})" if close else f"choose from {listed}"
