"""Power of comparing the success rates of two encodings with n seeds each."""

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

POWER = 0.8
LEVEL = 0.05


@cache
def power(n: int, p: float, q: float, level: float = LEVEL) -> float:
    """The probability that Fisher's exact test, two-sided, of n seeds a side finds p ≠ q: summed
    over all outcomes of the two binomials."""
    return float(_outcomes(n, p) @ _rejected(n, level) @ _outcomes(n, q))


def smallest_difference(n: int, p: float = 0.9, level: float = LEVEL) -> float | None:
    """The largest rate q below ``p``, in steps of 0.01, that n seeds a side tell from it with a
    power of 80 %; None where not even 0 can be told.

    >>> smallest_difference(8)
    0.19
    """
    for percent in range(math.ceil(100 * p) - 1, -1, -1):
        if power(n, p, percent / 100, level) >= POWER:
            return percent / 100
    return None


def _outcomes(n: int, p: float) -> NDArray[np.float64]:
    """The probability of 0..n of n."""
    from scipy.stats import binom  # a second

    return np.asarray(binom.pmf(np.arange(n + 1), n, p))


@cache
def _rejected(n: int, level: float) -> NDArray[np.float64]:
    """1 where Fisher's test of i of n against j of n has p <= level."""
    ways = [math.comb(n, k) for k in range(n + 1)]
    rejected = np.zeros((n + 1, n + 1))
    for total in range(1, 2 * n):
        ks = range(max(0, total - n), min(n, total) + 1)
        chances = np.array([ways[k] * ways[total - k] for k in ks]) / math.comb(2 * n, total)
        upto = chances.cumsum()
        tails = np.minimum(upto, chances[::-1].cumsum()[::-1])
        for k, tail in zip(ks, tails, strict=True):
            rejected[k, total - k] = 2 * tail <= level * (1 + 1e-9)
    return rejected
