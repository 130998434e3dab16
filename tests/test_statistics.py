"""Statistics of runs: values by hand and by scipy, and error rates by simulation."""

import doctest
import math

import numpy as np
import polars as pl
import pytest

from pe_lab.core.metrics import wilson
from pe_lab.results import statistics
from pe_lab.results.statistics import (
    rate_of,
    sign_test,
    with_rates,
)


def test_the_examples_in_the_docstrings() -> None:
    failed, tried = doctest.testmod(statistics)
    assert (failed, tried > 0) == (0, True)


@pytest.mark.parametrize(("k", "n"), [(0, 3), (2, 3), (8, 8), (5, 20)])
def test_wilson_is_scipys(k: int, n: int) -> None:
    from scipy.stats import binomtest

    theirs = binomtest(k, n).proportion_ci(0.95, "wilson")
    assert wilson(k, n) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


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
    assert (a["n"], a["k"], a["median"], a["threshold"]) == (3, 2, 0.05, 0.05)
    assert (a["p_low"], a["p_high"]) == wilson(2, 3)
    assert (b["k"], b["p_generalises"], b["p_low"]) == (0, 0.0, 0.0)
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
