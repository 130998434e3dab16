"""float64 unless a test asks for less: agreement is then a matter of formulas, not of rounding."""

import os
from collections.abc import Generator

import pytest


@pytest.fixture(autouse=True)
def exact(float64: None) -> None:
    """In each test of this folder."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With PEERS=required a comparison that is skipped, for want of the other code, fails."""
    report = yield
    if report.skipped and os.environ.get("PEERS") == "required":
        report.outcome = "failed"
    return report
