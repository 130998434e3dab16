"""Suggestions for an unknown name."""

import difflib
from collections.abc import Iterable


def did_you_mean(wrong: str, choices: Iterable[str]) -> str:
    """``did you mean x?`` where a choice is close, and all choices."""
    names = sorted(choices)
    if not names:
        return "there are none to choose from"
    close = difflib.get_close_matches(wrong, names, n=1, cutoff=0.5)
    return (f"did you mean {close[0]}? " if close else "") + f"(choices: {', '.join(names)})"
