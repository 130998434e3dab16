"""Statistics of runs: values by hand and by scipy, and error rates by simulation."""

import doctest
import math

import numpy as np
import pytest

from pe_lab.results import statistics
from pe_lab.results.statistics import (
    sign_test,
)


def test_the_examples_in_the_docstrings() -> None:
    failed, tried = doctest.testmod(statistics)
    assert (failed, tried > 0) == (0, True)


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
