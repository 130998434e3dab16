"""Which hidden states are asked for, where a loss or a measurement reads only some."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pe_lab.common.task import Bools


@dataclass(frozen=True)
class ScoredPositions:
    """The places whose hidden states are asked for: the last layer computes no others.

    Args:
        at_N: their numbers b T + t, ascending.
        first: the first place t among them.
    """

    at_N: Tensor
    first: int

    @classmethod
    def of(cls, chosen: Bools, device: torch.device) -> "ScoredPositions":
        """The places where ``chosen`` (B, T) is true."""
        first = int(chosen.any(0).argmax())
        return cls(torch.from_numpy(np.flatnonzero(chosen)).to(device), first)

    def of_rows_from(self, first: int, t: int) -> Tensor:
        """Their numbers in (B, T - first) rows that hold the places from ``first`` on."""
        return self.at_N - (torch.div(self.at_N, t, rounding_mode="floor") + 1) * first
