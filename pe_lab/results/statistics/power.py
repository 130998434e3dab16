"""What n seeds can show: power of comparing the rates of two encodings, and the seeds needed."""

import math
from collections.abc import Iterable
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from pe_lab.core.metrics import IN_DOMAIN

POWER = 0.8
LEVEL = 0.05
COUNTED = 100
"""Seeds a side up to which power is computed from the test; above, from a normal approximation."""


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


@cache
def seeds_needed(p: float, q: float, level: float = LEVEL) -> int | None:
    """Seeds a side with which rates p and q are told apart with a power of 80 %: the fewest, above
    100 by the formula of Casagrande, Pike and Smith (1978). None for p = q.

    >>> seeds_needed(0.9, 0.5)
    23
    """
    if p == q:
        return None
    difference, mean = abs(p - q), (p + q) / 2
    z_level, z_power = NormalDist().inv_cdf(1 - level / 2), NormalDist().inv_cdf(POWER)
    spread = math.sqrt(2 * mean * (1 - mean)), math.sqrt(p * (1 - p) + q * (1 - q))
    a = (z_level * spread[0] + z_power * spread[1]) ** 2
    about = a * (1 + math.sqrt(1 + 4 * difference / a)) ** 2 / (4 * difference**2)
    if about > COUNTED:
        return math.ceil(about)
    n = max(2, math.ceil(about / 2))
    while power(n, p, q, level) < POWER:
        n += 1
    return n


def clean_seeds(rate: float = 0.1, level: float = LEVEL) -> int:
    """Seeds without a failure that show a failure rate below ``rate``: (1 - rate)^n <= level.

    >>> clean_seeds(0.1)
    29
    """
    return math.ceil(math.log(level) / math.log1p(-rate))


def most_failures(n: int, level: float = LEVEL) -> float:
    """The failure rate that n seeds without a failure exclude: 1 - level^(1 / n), the exact
    one-sided bound.

    >>> round(most_failures(8), 3)
    0.312
    """
    return float(1 - level ** (1 / n))


def flips_needed(rivals: int, level: float = LEVEL) -> int:
    """Paired seeds below which sign flips cannot reach ``level`` after Holm's correction over this
    many rivals: 2 / 2^n <= level / rivals.

    >>> flips_needed(41)
    11
    """
    return math.ceil(math.log2(2 * rivals / level))


def what_seeds_show(n: int, seen: tuple[float, float] | None = None) -> str:
    """A sentence on n seeds a side, and on the two rates seen, if they differ.

    >>> what_seeds_show(8)
    '8 seeds a side can tell P(generalises) 0.9 from 0.19 or less; 0.9 from 0.5 needs 23'
    """
    if n < 2:
        return "1 seed shows no rate: 4 a side are the fewest that can tell P(generalises) 1 from 0"
    smallest = smallest_difference(n)
    if smallest is None:
        sentence = f"{n} seeds a side cannot tell P(generalises) 0.9 from 0"
    else:
        sentence = f"{n} seeds a side can tell P(generalises) 0.9 from {smallest:.2g} or less"
    needed = seeds_needed(0.9, 0.5)
    if needed is not None and needed > n:
        sentence += f"; 0.9 from 0.5 needs {needed}"
    if seen is not None and (more := seeds_needed(*seen)) is not None:
        about = "about " if more > COUNTED else ""
        sentence += f"; the {seen[0]:.2g} and {seen[1]:.2g} seen need {about}{more}"
    return sentence


def what_clean_seeds_show(n: int) -> str:
    """A sentence on n seeds that all generalise.

    >>> what_clean_seeds_show(8)
    '8 of 8 rule out failure rates of 32 % and more (at 5 %); ruling out 10 % takes 29 of 29'
    """
    worst = math.ceil(100 * most_failures(n))
    sentence = f"{n} of {n} rule out failure rates of {worst} % and more (at 5 %)"
    if n < clean_seeds():
        sentence += f"; ruling out 10 % takes {clean_seeds()} of {clean_seeds()}"
    return sentence


def what_rates_show(rates: Iterable[tuple[str, int | None, int]]) -> str:
    """A sentence on the number of seeds that most of these rates have, each a split, k and n, and
    on the most that all generalise out of domain; empty where none is of several seeds.

    >>> what_rates_show([("sparse", 2, 3)])
    '3 seeds a side cannot tell P(generalises) 0.9 from 0; 0.9 from 0.5 needs 23'
    """
    rated = [(split, k, n) for split, k, n in rates if k is not None and n > 1]
    if not rated:
        return ""
    seeds = [n for _, _, n in rated]
    sentence = what_seeds_show(max(set(seeds), key=lambda n: (seeds.count(n), n)))
    clean = [n for split, k, n in rated if k == n and split != IN_DOMAIN]
    return f"{sentence}; {what_clean_seeds_show(max(clean))}" if clean else sentence


def _outcomes(n: int, p: float) -> NDArray[np.float64]:
    """The probability of 0..n of n."""
    return np.array([math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)])


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
