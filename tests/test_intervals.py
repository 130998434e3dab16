"""Mean and Student's t interval over seeds."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pe_lab.results.statistics.seeds import over_seeds, two_clusters

quick = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(st.lists(st.integers(0, 1013).map(lambda n: n / 1013), min_size=1, max_size=8))
def test_an_interval_holds_its_mean(values: list[float]) -> None:
    spread = over_seeds(values)
    assert spread["n"] == len(values)
    assert min(values) - 1e-12 <= spread["mean"] <= max(values) + 1e-12
    if len(values) == 1:
        assert [spread[name] for name in ("sd", "low", "high")] == [None] * 3
    elif spread["clusters"]:
        assert two_clusters(values)
        assert [spread[name] for name in ("low", "high")] == [None] * 2
    else:
        assert spread["low"] <= spread["mean"] <= spread["high"]


def test_an_interval_is_students() -> None:
    from scipy import stats

    values = [0.1, 0.4, 0.25, 0.3]
    spread = over_seeds(values)
    low, high = stats.t.interval(0.95, 3, stats.tmean(values), stats.sem(values))
    assert (spread["low"], spread["high"]) == pytest.approx((low, high), rel=1e-12)
    assert spread["sd"] == pytest.approx(stats.tstd(values), rel=1e-12)
    # By hand: t_{0.975, 1} = 12.7062, sd of 0 and 1 = 1/sqrt(2), so the half width is 6.3531.
    assert over_seeds([0, 1])["high"] == pytest.approx(0.5 + 6.3531, abs=1e-4)
    assert over_seeds([])["mean"] is None


def test_two_clusters_have_no_interval() -> None:
    spread = over_seeds([0, 0.22, 0])
    assert (spread["clusters"], spread["median"], spread["low"], spread["high"]) == (
        True, 0, None, None
    )  # fmt: skip
    assert spread["mean"] == pytest.approx(0.22 / 3)
