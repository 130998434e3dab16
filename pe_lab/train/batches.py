"""Draws batches for training and fixed sets for evaluation, each from a separate random stream.

A training batch is a pure function of (seed, its number), an evaluation set of its split
alone. So any worker, process or resumed run draws the same batch, and every encoding is
measured on the same sequences.
"""

from typing import Any

import numpy as np

from pe_lab.core.rng import generator
from pe_lab.core.task import TRAIN, Batch, Ints, Task

# Drawing many batches at once spreads the cost of a rule that is sequential in time.
BATCHES_A_DRAW = 16


class TrainData:
    """Training batches by number: an endless stream, a finite set shuffled every epoch, or a file
    of batches in their order."""

    def __init__(self, task: Task, seed: int, batch_size: int) -> None:
        self.task, self.seed, self.batch_size = task, seed, batch_size
        self.finite = _finite(task, seed)
        self._block: tuple[int, Batch] | None = None
        self._order: tuple[int, Ints] | None = None

    def batch(self, number: int) -> Batch:
        """The batch with this number, counted from 0."""
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


def _finite(task: Task, seed: int) -> Any:
    stored = task.stored(TRAIN)
    if stored is None and task.train_sequences is not None:
        return task.sample(generator(seed, TRAIN, "set"), task.train_sequences)
    return stored


def evaluation_set(task: Task, split: str, n: int) -> Batch:
    """The n sequences on which every run measures a split; fewer if its file holds fewer."""
    stored = task.stored(split)
    if stored is not None:
        return stored.take(np.arange(min(n, len(stored))))
    return task.split(split).sample(generator(0, "evaluation", split), n)
