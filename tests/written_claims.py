"""What the pages of the leaderboard say in words, and which of their numbers no claim checks."""

import re
from collections.abc import Iterable

from docs import leaderboard

PARTS = ("# Leaderboard", "## The answer", "## Planned", "## In detail", "## What it does not show")
"""How the sections begin whose numbers are claims."""
NUMBERS = r"\d+ of \d+|\d+(?:\.\d+)? (?:to \d+(?:\.\d+)? )?%|\d+ seeds"


def written(suite: str) -> str:
    """The parts of a page that are written by hand, on one line."""
    return " ".join(leaderboard.TEXTS[suite].read_text("utf-8").split())


def unchecked(suite: str, claims: Iterable[str]) -> list[str]:
    """The counts of seeds and errors in % of these sections that no claim covers."""
    sections = re.split(r"(?m)^(?=##? )", leaderboard.TEXTS[suite].read_text("utf-8"))
    said = " ".join(" ".join(one for one in sections if one.startswith(PARTS)).split())
    covered = [found.span() for claim in claims for found in re.finditer(re.escape(claim), said)]
    return [
        said[max(0, found.start() - 40) : found.end() + 20]
        for found in re.finditer(NUMBERS, said)
        if not any(a <= found.start() and found.end() <= b for a, b in covered)
    ]
