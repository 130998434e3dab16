"""The positions whose hidden states are needed, as a loss or an evaluation reads only some."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pe_lab.core.task import Bools


@dataclass(frozen=True)
class ScoredPositions:
    """The tokens whose hidden states are needed, of sequences of T tokens.

    Args:
        at_N: their indices b T + t, ascending.
        first: the smallest t among them.
    """

    at_N: Tensor
    first: int

    @classmethod
    def of(cls, chosen: Bools, device: torch.device) -> "ScoredPositions":
        """The tokens where ``chosen`` (B, T) is true."""
        first = int(chosen.any(0).argmax())
        return cls(torch.from_numpy(np.flatnonzero(chosen)).to(device), first)

    def pick(self, states: Tensor, t: int | None = None) -> Tensor:
        """The states at these positions, (N, E).

        Args:
            states: (B, T, E), or of the last tokens only, (B, n, E).
            t: T, if ``states`` may hold fewer tokens.
        """
        rows, n = self.at_N, states.shape[1]
        if t is not None and n < t:
            rows = rows - (torch.div(rows, t, rounding_mode="floor") + 1) * (t - n)
        return states.flatten(0, 1).index_select(0, rows)
