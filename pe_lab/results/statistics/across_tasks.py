"""Encodings over several tasks: tests of two with Holm's correction, and measures of Agarwal et al.
2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (arXiv:2108.13264).

Two encodings are compared on the seeds that both have, so never 20 seeds of one with 8 of the
other. Every task has the same weight, however many runs it has. Errors of tasks with other chances
of guessing are comparable after division by the error of guessing; that is the caller's choice.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from pe_lab.results.statistics.seeds import stratified_interval

ByTask = Mapping[str, Mapping[int, float]]
"""task -> seed -> the error of its run."""
Sides = Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]]
"""Of each task that two encodings share, the errors of both at the seeds that they share."""


def iqm(values: ByTask) -> float:
    """The interquartile mean of the runs of all tasks: the mean of the middle half of their
    distribution, in which each task has the same weight.

    It is the mean of the quantile function between 1/4 and 3/4, so that runs at the two borders
    count in part: with equally many runs a task, and 4 dividing the number of all,
    ``scipy.stats.trim_mean(all, 0.25)``.

    Of few seeds it has no interval: the bootstrap's is too narrow (59 % of cases covered with 3
    seeds of which some fail, for 95 %).

    >>> iqm({"a": {0: 0.0, 1: 0.1}, "b": {0: 0.3, 1: 0.9}})
    0.2
    """
    samples = _samples(values)
    runs = np.concatenate(samples)
    weights = np.concatenate([np.full(len(one), 1 / len(one)) for one in samples]) / len(samples)
    order = runs.argsort()
    upto = weights[order].cumsum()
    # What of each run's weight lies between the quartiles.
    middle = np.clip(upto, 0.25, 0.75) - np.clip(upto - weights[order], 0.25, 0.75)
    return float((runs[order] * middle).sum() / middle.sum())


def performance_profile(values: ByTask, taus: Sequence[float]) -> list[float]:
    """For each tau the share of runs with an error <= tau (Dolan and More 2002): the mean over
    tasks of the share of their runs."""
    samples = _samples(values)
    return [float(np.mean([(runs <= tau).mean() for runs in samples])) for tau in taus]


def probability_of_improvement(a: ByTask, b: ByTask) -> float:
    """The probability that a run of ``a`` has a lower error than one of ``b`` of the same task,
    ties counting half (Mann and Whitney 1947), its mean over the tasks that both have.

    Raises:
        ValueError: they share no run.
    """
    return fmean(lower for lower, _ in _improvement_by_task(a, b))


def improvement_interval(a: ByTask, b: ByTask) -> tuple[float, float]:
    """The 95 % interval of ``probability_of_improvement``; it speaks of other seeds, not of other
    tasks.

    With n runs of each side in a task the variance of P is at most P (1 - P) / n (van Dantzig
    1951), which is reached where the runs of one side fall into two clusters: so P is taken as the
    share of n runs in ``stratified_interval``. It has a width where every run of one side is
    better. On average over P, with one to ten tasks of 8 or 20 runs, it covers P in 94 to 99 % of
    cases where errors are normal, in 91 to 97 % where those of one side fall into two clusters and
    those of the other are alike (tests/test_statistics.py).
    """
    return stratified_interval(_improvement_by_task(a, b))


def _improvement_by_task(a: ByTask, b: ByTask) -> list[tuple[float, int]]:
    """Of each task that both have: the probability, and the seeds that both have."""
    found = []
    for ours, others in shared(a, b):
        difference = ours[:, None] - others
        lower = ((difference < 0) + 0.5 * (difference == 0)).mean()
        found.append((float(lower), len(ours)))
    if not found:
        raise ValueError("no task has a seed of both")
    return found


def shared(a: ByTask, b: ByTask) -> Sides:
    """The errors of both in each task at the seeds that both have, in the same order."""
    seeds = {task: sorted(a[task].keys() & b[task].keys()) for task in a if task in b}
    return [
        (np.array([a[task][seed] for seed in of]), np.array([b[task][seed] for seed in of]))
        for task, of in seeds.items()
        if of
    ]


def _samples(values: ByTask) -> Sequence[NDArray[np.float64]]:
    samples = [np.array(list(runs.values()), float) for runs in values.values()]
    if not samples or any(len(runs) == 0 for runs in samples):
        raise ValueError("every task needs a run, and there must be a task")
    return samples


EXACT = 60
"""Runs of both sides in a task, up to which the distribution is enumerated; above, it is normal."""
LARGEST_WEIGHT = 12
LEVEL = 0.05
"""Of a corrected p-value, up to which two differ significantly."""


@dataclass(frozen=True)
class Pair:
    """Two encodings compared over the tasks that both have.

    Args:
        p: None where they share no run.
        p_holm: corrected over all pairs.
    """

    a: str
    b: str
    p: float | None
    p_holm: float | None


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """The p-values corrected for multiple tests (Holm 1979): with m of them in ascending order,
    max over j <= i of (m - j + 1) p_j, at most 1. None stays None and does not count."""
    order = sorted((p, i) for i, p in enumerate(ps) if p is not None)
    corrected: list[float | None] = [None] * len(ps)
    largest = 0.0
    for rank, (p, i) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        corrected[i] = largest
    return corrected


def exact_test(a: ByTask, b: ByTask) -> float | None:
    """The two-sided p-value of "in every task the runs of a and b are of one distribution".

    The statistic is the sum over the shared tasks of the Mann-Whitney U, ties counting half, each
    task weighted by about 1 / n^2, so that it orders samples as ``probability_of_improvement``
    does. Its distribution is that over all ways to part the runs of each task into two halves, ties
    included: a stratified permutation test, exact for any distribution. p is twice the smaller
    tail, at most 1. Above ``EXACT`` runs in a task the normal approximation is used, its variance
    corrected for ties. None where no run is shared.

    Of success (0 where a run generalises, 1 where not) it is Fisher's exact test. Of errors it says
    that distributions differ, not which errs less: see ``sign_test``. Runs of one seed share
    batches and initial weights; leaving that out makes p larger where they go together.

    >>> exact_test({"x": dict.fromkeys(range(4), 0)}, {"x": dict.fromkeys(range(4), 1)})
    0.02857142857142857
    """
    tasks = shared(a, b)
    if not tasks:
        return None
    weights = _weights([len(x) * len(y) for x, y in tasks])
    ranks = [_doubled_ranks(np.concatenate(pair)) for pair in tasks]
    seen = sum(
        w * int(r[: len(x)].sum()) for w, r, (x, _) in zip(weights, ranks, tasks, strict=True)
    )
    if max(len(r) for r in ranks) > EXACT:
        return _normal(seen, weights, ranks, [len(x) for x, _ in tasks])
    total = np.ones(1)
    for w, r, (x, _) in zip(weights, ranks, tasks, strict=True):
        one = _distribution(tuple(sorted(r.tolist())), len(x))
        spaced = np.zeros(w * (len(one) - 1) + 1)
        spaced[::w] = one
        total = np.convolve(total, spaced)
    tail = min(float(total[: seen + 1].sum()), float(total[seen:].sum()))
    return min(1.0, 2 * tail)


def least_p_possible(a: ByTask, b: ByTask) -> float:
    """The smallest p-value that ``exact_test`` can give for so many runs: that of any ``a`` whose
    runs are all below those of ``b``."""
    least = exact_test(
        {task: dict.fromkeys(of, 0.0) for task, of in a.items()},
        {task: dict.fromkeys(of, 1.0) for task, of in b.items()},
    )
    return 1.0 if least is None else least


def least_p(n_a: int, n_b: int) -> float:
    """How probable it is that all of n_a values lie on one side of n_b others by chance.

    >>> least_p(4, 4)
    0.02857142857142857
    """
    return 2 / math.comb(n_a + n_b, n_a)


def sign_test(a: ByTask, b: ByTask) -> float | None:
    """The two-sided p-value of "a run of a is as likely above as below that of b with its seed, on
    average over the tasks": the binomial tail of the seeds at which a is lower, without ties
    (Dixon and Mood 1946). None where no run is shared.

    It holds for any two distributions, and for tasks that favour different sides (Hoeffding 1956).
    Brunner and Munzel's test and its permutation do not with 8 seeds, where the runs of one side
    fall into two clusters about the other's: see docs/method.md for their rates.

    >>> sign_test({"x": dict.fromkeys(range(8), 0)}, {"x": dict.fromkeys(range(8), 1)})
    0.0078125
    """
    tasks = shared(a, b)
    if not tasks:
        return None
    lower, higher = (int(sum(way(x, y).sum() for x, y in tasks)) for way in (np.less, np.greater))
    n = lower + higher
    tail = sum(math.comb(n, i) for i in range(min(lower, higher) + 1))
    return min(1.0, 2 * tail / 2**n)


def pairs(
    entries: Mapping[str, ByTask], test: Callable[[ByTask, ByTask], float | None] = exact_test
) -> list[Pair]:
    """Every pair of these, tested over the tasks that both have, corrected after Holm over all
    pairs. The test of equal samples, which many entries have, is computed once."""
    alike = {
        entry: tuple((task, *sorted(runs.items())) for task, runs in sorted(of.items()))
        for entry, of in entries.items()
    }
    computed: dict[tuple[object, object], float | None] = {}
    found = list(combinations(entries, 2))
    for a, b in found:
        if (alike[a], alike[b]) not in computed:
            p = test(entries[a], entries[b])
            computed[alike[a], alike[b]] = computed[alike[b], alike[a]] = p
    ps = [computed[alike[a], alike[b]] for a, b in found]
    return [Pair(a, b, p, q) for (a, b), p, q in zip(found, ps, holm(ps), strict=True)]


def differing(tested: Sequence[Pair]) -> Mapping[str, set[str]]:
    """entry -> those that differ from it significantly."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for pair in tested:
        if pair.p_holm is not None and pair.p_holm <= LEVEL:
            found[pair.a].add(pair.b)
            found[pair.b].add(pair.a)
    return found


def _weights(sizes: Sequence[int]) -> list[int]:
    """Integers about proportional to 1 / size, each at least 1."""
    largest = max(sizes)
    if len(set(sizes)) == 1:
        return [1] * len(sizes)
    ratio = min(4.0, LARGEST_WEIGHT * min(sizes) / largest)
    return [max(1, round(ratio * largest / size)) for size in sizes]


def _doubled_ranks(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Twice the ranks, those that tie at their mean."""
    ordered = np.sort(values)
    below = np.searchsorted(ordered, values, "left")
    return (below + np.searchsorted(ordered, values, "right") + 1).astype(np.int64)


@lru_cache(4096)
def _distribution(ranks: tuple[int, ...], n: int) -> NDArray[np.float64]:
    """The probability of each sum of n of these ranks drawn without replacement."""
    most = sum(ranks[-n:])
    ways = np.zeros((n + 1, most + 1))
    ways[0, 0] = 1
    for rank in ranks:
        ways[1:, rank:] += ways[:-1, : most + 1 - rank].copy()
    return np.asarray(ways[n] / ways[n].sum())


def _normal(
    seen: int, weights: list[int], ranks: list[NDArray[np.int64]], sizes: list[int]
) -> float:
    """Twice the smaller tail of the normal distribution with the mean and variance of ``seen``."""
    mean = variance = 0.0
    for w, r, n in zip(weights, ranks, sizes, strict=True):
        mean += w * n * r.mean()
        variance += w**2 * n * (len(r) - n) * r.var() / (len(r) - 1)
    return math.erfc(abs(seen - mean) / math.sqrt(2 * variance)) if variance else 1.0
