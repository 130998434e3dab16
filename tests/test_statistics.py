"""Statistics of runs: values by hand and by scipy, and error rates by simulation."""

import doctest
import math

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from pe_lab.core.metrics import wilson
from pe_lab.results import statistics
from pe_lab.results.statistics import (
    rate_of,
    sign_test,
    two_clusters,
    with_rates,
)

Rng = np.random.Generator


def normal(rng: Rng, n: int) -> NDArray[np.float64]:
    return rng.normal(0.3, 0.05, n)


def bimodal(rng: Rng, n: int) -> NDArray[np.float64]:
    """Half of the seeds generalise, the others do not."""
    return np.where(rng.random(n) < 0.5, 0.0, rng.normal(0.4, 0.03, n))


def test_the_examples_in_the_docstrings() -> None:
    failed, tried = doctest.testmod(statistics)
    assert (failed, tried > 0) == (0, True)


@pytest.mark.parametrize(("k", "n"), [(0, 3), (2, 3), (8, 8), (5, 20)])
def test_wilson_is_scipys(k: int, n: int) -> None:
    from scipy.stats import binomtest

    theirs = binomtest(k, n).proportion_ci(0.95, "wilson")
    assert wilson(k, n) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


@pytest.mark.parametrize(
    ("values", "threshold", "found"),
    [
        ([0, 0.22, 0], None, True),
        ([0.001, 0.22, 0.003], None, True),
        ([0, 0.01, 0.22], None, False),  # three normal values look so in more than 5 %
        ([0, 0.01, 0.22], 0.05, True),
        ([0, 0.22], None, False),
        ([0, 0.22], 0.05, True),
        ([0, 0.1], 0.05, False),
        ([0, 0, 0.01], 0.001, False),  # nearer than 2 points
        ([0.3] * 8, 0.05, False),
        ([0] * 8, 0.05, False),
        ([0] * 7 + [0.3], None, True),
        ([0.02, 0.01, 0, 0.03, 0.41, 0.39, 0.45, 0.44], 0.05, True),
        ([0.1, 0.15, 0.2, 0.22, 0.25, 0.3, 0.33, 0.4], 0.05, False),
        # As cope on flip-flop: most near zero, the others from twice the threshold on.
        ([0, 0, 0.001, 0.0034, 0.044, 0.11, 0.2, 0.29], 0.02, True),
        ([0, 0.001, 0.0034, 0.044, 0.09], 0.02, False),  # of two above: 4 times the threshold
        ([0, 0, 0.001, 0.012, 0.044, 0.11, 0.2, 0.29], 0.02, False),  # less than 4 times as large
        ([0, 0, 0.001, 0.002, 0.021, 0.11, 0.2, 0.29], 0.02, False),  # nearer than 2 points
        ([None, 0.2], 0.05, False),
        ([], 0.05, False),
    ],
)
def test_two_clusters(values: list[float | None], threshold: float | None, found: bool) -> None:
    assert two_clusters(values, threshold) is found


@pytest.mark.parametrize("n", [2, 3, 4, 8, 12])
def test_normal_values_are_two_clusters_in_5_percent_of_samples_at_most(n: int) -> None:
    rng = np.random.default_rng(n)
    draws = 2000
    at_most = 0.05 + 3 * math.sqrt(0.05 * 0.95 / draws)
    assert np.mean([two_clusters(x) for x in rng.normal(0.5, 0.1, (draws, n))]) <= at_most
    # Their mean about the threshold, and standard deviations of half the mean.
    near = np.abs(rng.normal(0.11, 0.055, (draws, n)))
    assert np.mean([two_clusters(x, 0.05) for x in near]) <= at_most
    seeds = np.stack([bimodal(rng, n) for _ in range(draws)])
    both = (seeds == 0).any(1) & (seeds > 0).any(1)
    assert np.mean([two_clusters(x, 0.05) for x in seeds[both]]) > 0.97


@pytest.mark.parametrize(
    ("n", "share", "at_most"),
    [(2, 3, 0.02), (5, 3, 0.02), (8, 3, 0.03), (2, 2, 0.08), (5, 2, 0.13), (8, 2, 0.18)],
)
def test_normal_values_lie_on_both_sides_of_the_threshold_as_stated(
    n: int, share: float, at_most: float
) -> None:
    """With a standard deviation of 1 / share of the mean, the worst of all means: exactly."""

    def normal_cdf(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    chances = []
    for mean in np.linspace(0.05, 2, 400):
        below = normal_cdf((0.05 / mean - 1) * share)
        above = 1 - normal_cdf((statistics.FACTOR * 0.05 / mean - 1) * share)
        chances.append((below + above) ** n - below**n - above**n)
    assert at_most - 0.011 < max(chances) < at_most
    # The rule itself does so at the worst mean.
    mean = np.linspace(0.05, 2, 400)[int(np.argmax(chances))]
    drawn = np.random.default_rng(0).normal(mean, mean / share, (4000, n))
    found = np.mean([statistics._parted_by(0.05, sorted(x)) for x in drawn])
    assert found == pytest.approx(max(chances), abs=3 * math.sqrt(max(chances) / 4000))


def test_rates_of_a_frame() -> None:
    frame = pl.DataFrame(
        {
            "pe": ["a"] * 4 + ["b"] * 2 + ["c"],
            "split": ["sparse"] * 6 + ["long"],
            "error": [0.0, 0.22, 0.05, None, 0.3, 0.3, 0.1],
            "threshold": [0.05] * 6 + [None],
        }
    )
    value, threshold = pl.col("error"), pl.col("threshold")
    groups = frame.group_by("pe", "split", maintain_order=True)
    table = groups.agg(n=value.count(), **rate_of(value, threshold))
    a, b, c = with_rates(table).rows(named=True)
    assert (a["n"], a["k"], a["median"], a["clusters"], a["threshold"]) == (3, 2, 0.05, True, 0.05)
    assert (a["p_low"], a["p_high"]) == wilson(2, 3)
    assert (b["k"], b["p_generalises"], b["p_low"], b["clusters"]) == (0, 0.0, 0.0, False)
    assert (c["n"], c["k"], c["p_generalises"], c["p_low"], c["median"]) == (1, *[None] * 3, 0.1)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of scipy where variances are zero
@pytest.mark.parametrize(("ours", "theirs"), [(8, 8), (20, 8), (8, 20), (20, 20)])
def test_the_sign_test_rejects_equal_encodings_as_stated(ours: int, theirs: int) -> None:
    """Runs of one kind against runs in two clusters about them, each as often above as below: in
    docs/method.md. Brunner and Munzel's test is the one that it says is not used."""
    from scipy.stats import brunnermunzel

    rng, draws = np.random.default_rng(ours + theirs), 4000
    a = rng.normal(0.3, 0.05, (draws, ours))
    b = np.where(rng.random((draws, theirs)) < 0.5, 0.0, rng.normal(0.6, 0.03, (draws, theirs)))
    n = min(ours, theirs)
    lower, higher = ((a[:, :n] < b[:, :n]).sum(1), (a[:, :n] > b[:, :n]).sum(1))
    ps = [sign_test(int(x), int(y)) for x, y in zip(lower, higher, strict=True)]
    for level in (0.05, 0.05 / 66):
        slack = 3 * math.sqrt(level / draws)
        assert np.mean([p <= level for p in ps]) <= level + slack
    if ours == theirs == 8:
        munzel = np.mean(brunnermunzel(a, b, axis=1).pvalue <= 0.05)
        assert munzel == pytest.approx(0.07, abs=0.012)
