"""Refuses work that cannot fit in the memory of this machine, before it begins."""

import os
from collections.abc import Sequence

from pe_lab.core.errors import UsageError

BYTES_HELD = 9
"""The memory of a token of a set: its number, and whether it is scored."""
BYTES_PER_TOKEN = 96
"""The memory of a token while it is drawn."""
HIDDEN_BYTES = 12
"""A lower bound per token and unit of width for any model: three hidden states."""


def min_bytes(length: int, sequences: int, d_model: int) -> int:
    """A lower bound on the memory of an evaluation: the sequences, and hidden states of one."""
    return length * (BYTES_PER_TOKEN * sequences + HIDDEN_BYTES * d_model)


def bytes_of_sets(sets: Sequence[tuple[int, int]], d_model: int) -> int:
    """A lower bound on the memory of a run that holds all of its sets and draws the largest.

    Args:
        sets: tokens of a sequence, and sequences.
    """
    held = sum(BYTES_HELD * length * n for length, n in sets)
    return held + max(min_bytes(length, n, d_model) for length, n in sets)


def refuse_beyond(what: str, needed: float, remedy: str) -> None:
    """UsageError if ``needed`` bytes are more than the machine has."""
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > available:
        raise UsageError(
            f"{what} needs at least {needed / 2**30:.3g} GiB, and this machine has "
            f"{available / 2**30:.3g}: {remedy}"
        )
