"""Words of messages: counts, and suggestions for an unknown name."""

import difflib
from collections.abc import Iterable

from pe_lab.core.errors import UsageError

MOST_LISTED = 64
"""The most choices that a message lists; of more, the nearest few."""


def did_you_mean(wrong: str, choices: Iterable[str]) -> str:
    """``did you mean train.steps? (choices: ..)``, or ``choose from ..`` where none is similar.

    A dotted choice is also compared by its last part: ``lr`` stands for ``train.lr``.
    """
    names = sorted(choices)
    parts = {name.rpartition(".")[2].lower(): name for name in reversed(names)}
    last = wrong.rpartition(".")[2].lower()
    near = [name for name in names if name.lower() == wrong.lower()]
    near = near or [parts[last]] if last in parts else near
    near = near or difflib.get_close_matches(wrong, names, n=1)
    near = near or [parts[part] for part in difflib.get_close_matches(last, parts, n=1)]
    if len(names) > MOST_LISTED:
        names = difflib.get_close_matches(wrong, names, n=8, cutoff=0)
    listed = ", ".join(names) or "there are none"
    return f"did you mean {near[0]}? (choices: {listed})" if near else f"choose from {listed}"


def check_known(words: str, names: Iterable[str] | None, known: Iterable[str]) -> None:
    """UsageError for the first of these names that is not known.

    Args:
        words: the sentence before the suggestion, with {} for the name: ``splits={}``.
    """
    choices = [*known]
    for name in names or ():
        if name not in choices:
            raise UsageError(f"{words.replace('{}', name)}: {did_you_mean(name, choices)}")


def counted(n: int, what: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
