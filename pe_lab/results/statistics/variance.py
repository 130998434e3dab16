"""How much of the variance over runs comes from the initial weights, and how much from the data."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FEWEST = 2
"""Initial weights and orders of data that can be crossed."""


@dataclass(frozen=True)
class Parts:
    """Shares of a variance, which sum to 1.

    Args:
        init: of the initial weights, whatever the data.
        data: of the data, whatever the initial weights.
        both: of their combination: what neither of them explains alone.
        sd: of a run with initial weights and data of its own, the root of the whole variance.
    """

    init: float
    data: float
    both: float
    sd: float


def variance_parts(values: NDArray[np.float64]) -> Parts | None:
    """The parts of the variance of ``values[init, data]``, of one run for each combination.

    A two-way layout of random effects without replication: value = mean + a_init + b_data + e. With
    I initial weights and D orders of data, the mean squares are M_init of the row means (times D),
    M_data of the column means (times I) and M_e of what both leave. The variances are estimated
    as M_e, (M_init - M_e) / D and (M_data - M_e) / I, those below 0 by 0 (Searle, Casella and
    McCulloch 1992). A run is deterministic, so e is what the combination does; on several machines
    rounding is in it too.

    None where the values do not vary.

    >>> variance_parts(np.array([[0.0, 0.0], [1.0, 1.0]]))
    Parts(init=1.0, data=0.0, both=0.0, sd=0.7071067811865476)
    """
    n_init, n_data = values.shape
    if min(n_init, n_data) < FEWEST:
        raise ValueError(f"{n_init} by {n_data} values: give at least {FEWEST} by {FEWEST}")
    centred = values - values.mean()
    rows, columns = centred.mean(axis=1), centred.mean(axis=0)
    left = centred - rows[:, None] - columns
    of_both = float((left**2).sum()) / ((n_init - 1) * (n_data - 1))
    of_init = float((rows**2).sum()) / (n_init - 1) - of_both / n_data
    of_data = float((columns**2).sum()) / (n_data - 1) - of_both / n_init
    parts = [max(0.0, part) for part in (of_init, of_data, of_both)]
    whole = sum(parts)
    # Rounding errors are no variation.
    if whole < 1e-24:
        return None
    init, data, both = (part / whole for part in parts)
    return Parts(init, data, both, whole**0.5)
