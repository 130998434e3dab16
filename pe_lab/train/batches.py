"""Draws batches for training and fixed sets for evaluation, each from a separate random stream.

A training batch is a pure function of (seed, its number), an evaluation set of its split
alone. So any worker, process or resumed run draws the same batch, and every encoding is
measured on the same sequences.
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from pe_lab.core.errors import UsageError
from pe_lab.core.rng import generator
from pe_lab.core.task import TRAIN, Batch, Ints, Task

# Drawing many batches at once spreads the cost of a rule that is sequential in time.
BATCHES_A_DRAW = 16
BYTES_HELD = 9
"""The memory of a token of a set: its number, and whether it is scored."""
BYTES_PER_TOKEN = 96
"""The memory of a token while it is drawn."""


class TrainData:
    """Training batches by number: an endless stream, a finite set shuffled every epoch, or a file
    of batches in their order."""

    def __init__(self, task: Task, seed: int, batch_size: int) -> None:
        self.task, self.seed, self.batch_size = task, seed, batch_size
        self.finite = task.stored(TRAIN)
        if self.finite is None and task.train_sequences is not None:
            self.finite = task.sample(generator(seed, TRAIN, "set"), task.train_sequences)
        self._block: tuple[int, Batch] | None = None
        self._order: tuple[int, Ints] | None = None

    def batch(self, number: int) -> Batch:
        """Return the batch with this number, counted from 0."""
        if self.finite is not None:
            return self.finite.take(self._rows(self.finite, number))
        block, within = divmod(number, BATCHES_A_DRAW)
        if self._block is None or self._block[0] != block:
            rng = generator(self.seed, TRAIN, block)
            self._block = block, self.task.sample(rng, BATCHES_A_DRAW * self.batch_size)
        start = within * self.batch_size
        return self._block[1].take(slice(start, start + self.batch_size))

    def _rows(self, finite: Any, number: int) -> Ints:
        index = np.arange(number * self.batch_size, (number + 1) * self.batch_size)
        if getattr(finite, "in_order", False):
            return index % len(finite)
        rows = [self._shuffled(int(e), len(finite)) for e in np.unique(index // len(finite))]
        first = int(index[0] // len(finite)) * len(finite)
        return np.concatenate(rows)[index - first]

    def _shuffled(self, epoch: int, n: int) -> Ints:
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, generator(self.seed, "order", epoch).permutation(n)
        return self._order[1]


def evaluation_set(task: Task, split: str, n: int, changed: Task | None = None) -> Batch:
    """Return the n sequences on which every run measures a split; fewer if its file holds fewer.

    Args:
        changed: the task of the split at another length; None: at its own.
    """
    stored = (changed or task).stored(split)
    if stored is not None:
        return stored.take(np.arange(min(n, len(stored))))
    return (changed or task.split(split)).sample(generator(0, "evaluation", split), n)


def check_memory(
    what: str, sets: Sequence[tuple[int, int]], d_model: int, remedy: str, more: float = 0.0
) -> None:
    """Refuse sets of sequences that cannot fit in the memory of this machine, before any is drawn.

    The lower bound holds all of them, and while the largest is drawn and measured three hidden
    states of one sequence.

    Args:
        sets: tokens of a sequence, and the number of sequences.
        more: the bytes of other things.
    """
    held = sum(BYTES_HELD * length * n for length, n in sets)
    drawn = max(length * (BYTES_PER_TOKEN * n + 12 * d_model) for length, n in sets)
    needed, available = (
        held + drawn + more,
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )
    if needed > available:
        raise UsageError(
            f"{what} needs at least {needed / 2**30:.3g} GiB, and this machine has "
            f"{available / 2**30:.3g}: {remedy}"
        )
