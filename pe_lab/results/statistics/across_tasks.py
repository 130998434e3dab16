"""One encoding over several tasks: Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge
of the Statistical Precipice" (arXiv:2108.13264), with scipy; their library is not kept any more.

Every task weighs the same, however many runs it has. Errors of tasks with other chances of
guessing are comparable after division by the error of guessing; that is the caller's choice.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from pe_lab.results.statistics.seeds import stratified_interval

ByTask = Mapping[str, Sequence[float]]
"""task -> the errors of its runs, one a seed."""
Samples = Sequence[NDArray[np.float64]]
"""The runs of each task along the last axis; the axes before it are resamples."""
RESAMPLES = 2000


def iqm(values: ByTask) -> float:
    """The interquartile mean of the runs of all tasks: the mean of the middle half of their
    distribution, in which each task has the same weight.

    It is the mean of the quantile function between 1/4 and 3/4, so that runs at the two borders
    count in part: with equally many runs a task, and 4 dividing the number of all,
    ``scipy.stats.trim_mean(all, 0.25)``.

    >>> iqm({"a": [0.0, 0.1], "b": [0.3, 0.9]})
    0.2
    """
    return float(_iqm(_samples(values)))


def stratified_bootstrap(
    values: ByTask, level: float = 0.95, resamples: int = RESAMPLES
) -> tuple[float, float] | None:
    """The percentile interval of ``iqm``: runs are drawn with replacement within each
    task, and the tasks stay as they are, so that it speaks of other seeds, not of other tasks.
    The draws have a fixed seed: the same values have the same interval. None where a task has a
    single run.

    With n runs a task it is too narrow by about sqrt((n - 1) / n). In simulations of ten tasks,
    some with two clusters of seeds (tests/test_statistics.py), nominal 95 % intervals of the
    interquartile mean cover it in 86 % of cases with 3 runs, 90 % with 5, 91 % with 8, 94 %
    with 20.
    """
    samples = _samples(values)
    if min(len(runs) for runs in samples) < 2:
        return None
    from scipy.stats import bootstrap  # a second

    found = bootstrap(
        samples, lambda *drawn, axis: _iqm(drawn), n_resamples=resamples, vectorized=True,
        confidence_level=level, method="percentile", batch=500, rng=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip
    return float(found.low), float(found.high)


def performance_profile(values: ByTask, taus: Sequence[float]) -> list[float]:
    """For each tau the share of runs with an error <= tau (Dolan and More 2002): the mean over
    tasks of the share of their runs."""
    samples = _samples(values)
    return [float(np.mean([(runs <= tau).mean() for runs in samples])) for tau in taus]


def probability_of_improvement(a: ByTask, b: ByTask) -> float:
    """The probability that a run of ``a`` has a lower error than one of ``b`` of the same task,
    ties counting half (Mann and Whitney 1947), its mean over the tasks that both have.

    Raises:
        ValueError: they share no task.
    """
    return fmean(lower for lower, _ in _improvement_by_task(a, b))


def improvement_interval(a: ByTask, b: ByTask) -> tuple[float, float]:
    """The 95 % interval of ``probability_of_improvement``; it speaks of other seeds, not of other
    tasks.

    With m and n runs of a task the variance of P is at most P (1 - P) / min(m, n) (van Dantzig
    1951), which is reached where the runs of one side fall into two clusters: so P is taken as the
    share of min(m, n) runs in ``stratified_interval``. It has a width where every run of one side
    is better. On average over P, with one to ten tasks of 8 or 20 runs, it covers P in 94 to 99 %
    of cases where errors are normal, in 91 to 97 % where those of one side fall into two clusters
    and those of the other are alike (tests/test_statistics.py).
    """
    return stratified_interval(_improvement_by_task(a, b))


def _improvement_by_task(a: ByTask, b: ByTask) -> list[tuple[float, int]]:
    """Of each task that both have: the probability, and the runs of the side with fewer."""
    found = []
    for task in (task for task in a if task in b):
        ours, others = _samples({"a": a[task], "b": b[task]})
        difference = ours[:, None] - others
        lower = ((difference < 0) + 0.5 * (difference == 0)).mean()
        found.append((float(lower), min(len(ours), len(others))))
    return found


def _samples(values: ByTask) -> Samples:
    samples = [np.asarray(runs, float) for runs in values.values()]
    if not samples or any(len(runs) == 0 for runs in samples):
        raise ValueError("every task needs a run, and there must be a task")
    return samples


def _iqm(samples: Samples) -> NDArray[np.float64]:
    values = np.concatenate(samples, -1)
    weights = np.concatenate([np.full(n, 1 / n) for n in (runs.shape[-1] for runs in samples)])
    weights /= len(samples)
    order = values.argsort(-1)
    upto = weights[order].cumsum(-1)
    # What of each run's weight lies between the quartiles.
    middle = np.clip(upto, 0.25, 0.75) - np.clip(upto - weights[order], 0.25, 0.75)
    ordered = np.take_along_axis(values, order, -1)
    return np.asarray((ordered * middle).sum(-1) / middle.sum(-1))
