"""Which learning rates are tried for an entry on a task, and which one is chosen."""

import math
from collections.abc import Mapping, Sequence

from pe_lab.results.suite_file import Protocol, Search

Measured = tuple[float, float]
"""Error and loss in domain."""
FAILED: Measured = (math.inf, math.inf)
"""Of a run that ended without a result, as one whose loss was not finite."""
Tuning = Mapping[float, Mapping[int, Measured]]
"""What finished tuning runs measured, by rate and tuning seed."""


def chosen_rate(runs: Mapping[float, Sequence[Measured]]) -> float | None:
    """The rate with the lowest mean in-domain error over the tuning seeds; on a tie that with the
    lowest mean in-domain loss, then the smaller one. None: all runs failed.

    Only rates with the most runs are compared: a search tries the others on fewer seeds, as they
    were worse.

    Args:
        runs: of each rate, what its tuning runs measured.
    """
    most = max(map(len, runs.values()))
    means = {
        rate: tuple(sum(values) / len(values) for values in zip(*measured, strict=True))
        for rate, measured in runs.items()
        if len(measured) == most
    }
    best = min(means, key=lambda rate: (*means[rate], rate))
    return best if math.isfinite(means[best][0]) else None


def next_runs(protocol: Protocol, found: Tuning) -> list[tuple[float, int]]:
    """The tuning runs to do next, as rates and seeds; none once tuning is over.

    Without a search, all that are missing. A search goes in rounds: what one measures decides
    which runs the next one has (``Search``).
    """
    seeds, search = protocol.tuning_seeds, protocol.search
    if search is None:
        return _missing(found, protocol.rates, seeds)
    first = {rate: [runs[seeds[0]]] for rate, runs in found.items() if seeds[0] in runs}
    if missing := _missing(found, search.start, seeds[:1]):
        return missing
    best = chosen_rate(first)
    if best is None:
        return _missing(found, protocol.rates, seeds[:1])
    if missing := _outwards(protocol, found, best):
        return missing
    near = [rate for rate, (run,) in first.items() if _near(run, first[best][0], search)]
    complete = {rate: [*runs.values()] for rate, runs in found.items() if len(runs) == len(seeds)}
    if len(near) == 1 and not complete:
        return []
    if missing := _missing(found, near, seeds):
        return missing
    if (best := chosen_rate(complete)) is None:
        # All near ones failed on another seed.
        return _missing(found, [rate for rate, (run,) in first.items() if run != FAILED], seeds)
    return _outwards(protocol, found, best)


def _missing(
    found: Tuning, rates: Sequence[float], seeds: Sequence[int]
) -> list[tuple[float, int]]:
    return [(rate, seed) for seed in seeds for rate in rates if seed not in found.get(rate, {})]


def _outwards(protocol: Protocol, found: Tuning, best: float) -> list[tuple[float, int]]:
    """The run of the neighbour of the best rate, if that is the lowest or the highest one tried."""
    rates, first = protocol.all_rates, protocol.tuning_seeds[:1]
    at = rates.index(best)
    # All between are tried: a search goes from neighbour to neighbour.
    neighbours = [rates[i] for i in (at - 1, at + 1) if 0 <= i < len(rates)]
    return _missing(found, neighbours, first)


def _near(run: Measured, best: Measured, search: Search) -> bool:
    """Whether another seed may make this rate the best one."""
    return run[0] - best[0] <= search.near_error and (
        run[0] < best[0] or run[1] <= search.near_loss * best[1]
    )
