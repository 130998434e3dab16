"""Batches of a task, and their digests."""

import hashlib
from typing import Any

import numpy as np

from pe_lab.core.rng import generator
from pe_lab.core.task import Batch, Task

N = 64
"""Sequences that are drawn of a split."""


def digest(batch: Batch) -> str:
    """Of everything in a batch."""
    lengths = [] if batch.lengths is None else [batch.lengths]
    tags = [array for named in (batch.tags, batch.positions) for _, array in sorted(named.items())]
    parts = [batch.tokens, batch.targets, batch.scored, *lengths, *tags]
    shapes = repr([part.shape for part in parts]).encode()
    return hashlib.sha256(shapes + b"".join(p.tobytes() for p in map(_whole, parts))).hexdigest()


def _whole(array: Any) -> Any:
    return np.ascontiguousarray(array)


def drawn(task: Task, split: str, n: int = N, seed: int = 0) -> Batch:
    """Some sequences of a split: read where it is a file, else drawn."""
    stored = task.stored(split)
    if stored is not None:
        return stored.take(np.arange(min(n, len(stored))))
    return task.split(split).sample(generator(seed), n)
