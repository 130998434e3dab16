"""The end of a sentence about a wrong name."""

import difflib
from collections.abc import Iterable


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """``did you mean x?`` where one is close, and the choices."""
    known = sorted(known)
    if not known:
        return "there are none to choose from"
    close = difflib.get_close_matches(wrong, known, n=1, cutoff=0.5)
    return (f"did you mean {close[0]}? " if close else "") + f"(choices: {', '.join(known)})"
