"""float64 unless a test asks for less: agreement is then a matter of formulas, not of rounding."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(torch.float32)
