"""Sequences as a model reads them, drawn or from a file.

Shape letters: N sequences, T tokens the model reads.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Batch:
    """N sequences. The model reads ``tokens`` and predicts ``targets[:, t]`` at position t.

    ``scored`` marks the targets that are measured. Shorter sequences are padded on the right:
    ``lengths`` has the number of real positions (None: T for all). ``tags`` hold an integer per
    position by which errors are broken down (brackets: distance, depth). ``positions`` hold the
    position ids of each axis of ``Task.position_axes``, (N, T); 0: the token has none.
    """

    tokens: Ints
    targets: Ints
    scored: Bools
    lengths: Ints | None = None
    tags: Mapping[str, Ints] = field(default_factory=dict)
    positions: Mapping[str, Ints] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, rows: Ints | slice) -> "Batch":
        """The named rows, as a batch."""
        return Batch(
            self.tokens[rows],
            self.targets[rows],
            self.scored[rows],
            None if self.lengths is None else self.lengths[rows],
            {name: tag[rows] for name, tag in self.tags.items()},
            {axis: ids[rows] for axis, ids in self.positions.items()},
        )

    def real(self) -> Bools:
        """True where a position is not padding."""
        n, t = self.tokens.shape
        if self.lengths is None:
            return np.ones((n, t), dtype=bool)
        return np.arange(t)[None, :] < self.lengths[:, None]

    def trained(self, loss_on: str) -> Bools:
        """The positions of the loss: those that are ``scored``, or ``all`` that are not padding."""
        return self.scored if loss_on == "scored" else self.real()


class Stored(Protocol):
    """A finite set of sequences: a file, or a set drawn once (``Batch`` is one)."""

    def __len__(self) -> int: ...

    def take(self, rows: Ints) -> Batch: ...
