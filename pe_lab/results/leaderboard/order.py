"""The order of the entries of a leaderboard."""

from collections.abc import Mapping, Sequence

from pe_lab.results.leaderboard.families import Rate

SUITE = "suite"
"""The order of the suite's yaml."""
ORDER = (
    "order: entries with the most tasks first, of these the one whose weakest column is highest, "
    "on a tie the next weakest (no rank: neighbours need not differ)"
)


def ordered(
    entries: Sequence[str], rates: Mapping[str, Mapping[str, Rate]], column: str | None = None
) -> list[str]:
    """The entries, those first that generalise in more of what they were run on.

    Those with the most tasks come first, as rates over other tasks do not compare. Of these the
    weakest columns are compared, on a tie the next weakest, and so on (a leximin order): no rate of
    one column makes up for another, and no score is computed.

    Args:
        entries: in the order that decides ties.
        rates: entry -> column -> rate.
        column: order by this one alone, those with most of its tasks first; ``suite``: as
            ``entries`` are.
    """
    if column == SUITE:
        return list(entries)

    def key(entry: str) -> tuple[int, list[float]]:
        of = rates.get(entry, {})
        found = [rate for name, rate in of.items() if column in (None, name)]
        return -sum(rate.tasks for rate in found), [-s for s in sorted(r.share for r in found)]

    return sorted(entries, key=key)
