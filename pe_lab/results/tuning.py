"""Which learning rate of an entry of a suite is scored: by the in-domain error alone."""

import math
from collections.abc import Mapping, Sequence

Measured = tuple[float, float]
"""Error and loss in domain."""
FAILED: Measured = (math.inf, math.inf)
"""Of a run that ended without a result, as one whose loss was not finite."""


def chosen_rate(runs: Mapping[float, Sequence[Measured]]) -> float | None:
    """The rate with the lowest mean in-domain error over the tuning seeds; on a tie that with the
    lowest mean in-domain loss, then the smaller one. None: all runs failed.

    Args:
        runs: of each rate, what its tuning runs measured.
    """
    means = {
        rate: tuple(sum(values) / len(values) for values in zip(*measured, strict=True))
        for rate, measured in runs.items()
    }
    best = min(means, key=lambda rate: (*means[rate], rate))
    return best if math.isfinite(means[best][0]) else None
