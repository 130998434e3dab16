"""float64 unless a test asks for less: agreement is then a matter of formulas, not of rounding."""

import os
from collections.abc import Generator, Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With PEERS=required a comparison that is skipped, for want of the other code, fails."""
    report = yield
    if report.skipped and os.environ.get("PEERS") == "required":
        report.outcome = "failed"
    return report
