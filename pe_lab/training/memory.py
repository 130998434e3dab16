"""Limited memory: absurd sizes are refused, batches that do not fit are halved."""

import os
from collections.abc import Callable
from typing import TypeVar

import torch

from pe_lab.common.errors import UsageError

T = TypeVar("T")

BYTES_PER_TOKEN = 96
"""Of the evaluated sequences: tokens, targets, masks and what the task needs to draw them."""
HIDDEN_BYTES = 12
"""Lower bound per token and unit of width for any model: three hidden states."""


def min_bytes(length: int, sequences: int, d_model: int) -> int:
    """A lower bound on the memory of an evaluation: the sequences, and hidden states of one."""
    return length * (BYTES_PER_TOKEN * sequences + HIDDEN_BYTES * d_model)


def machine_memory() -> int:
    """Bytes of main memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def refuse_beyond(what: str, needed: int, remedy: str) -> None:
    """UsageError if ``needed`` bytes are more than the machine has."""
    available = machine_memory()
    if needed > available:
        raise UsageError(
            f"{what}: at least {needed / 2**30:.3g} GiB are needed, this machine has "
            f"{available / 2**30:.3g}; {remedy}"
        )


class DoesNotFit(Exception):  # noqa: N818
    """Memory ran out with a single sequence."""


def halve_until_it_fits(run: Callable[[int], T], rows: int) -> tuple[T, int]:
    """The result of ``run(rows)``, with ``rows`` halved each time memory runs out, and the rows.

    Raises:
        DoesNotFit: memory runs out with one row.
    """
    while True:
        try:
            return run(rows), rows
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        # Outside of the handler, whose traceback holds on to tensors.
        if rows == 1:
            raise DoesNotFit
        rows //= 2
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether PyTorch or NumPy failed to allocate memory, on a GPU or on a CPU."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return any(words in str(error) for words in ("DefaultCPUAllocator", "not enough memory"))
