"""Gated recurrent units that read both ways, and those that write a token at a time.

Shape letters: B batch, P tokens that are read, I width of the input, E width of a state.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

KINDS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class Reader(nn.Module):
    """A GRU from left to right and one from right to left; PyTorch's own holds the weights.

    Args:
        given: I.
        fast: whether PyTorch's kernel may serve, equal to one step after another.
    """

    def __init__(self, given: int, width: int, fast: bool) -> None:
        super().__init__()
        self.cells, self.fast = nn.GRU(given, width, batch_first=True, bidirectional=True), fast

    def forward(self, x_BPI: Tensor, seen_BP: Tensor | None) -> Tensor:
        """(B, P, 2E), the states of both.

        Args:
            seen_BP: False beyond the end of a row, where states mean nothing; None: nowhere.
        """
        if not self.fast:
            return self._one_by_one(x_BPI, seen_BP)
        if seen_BP is None:
            states: Tensor = self.cells(x_BPI)[0]
            return states
        packed = pack_padded_sequence(
            x_BPI, seen_BP.sum(1).cpu(), batch_first=True, enforce_sorted=False
        )
        return pad_packed_sequence(self.cells(packed)[0], batch_first=True)[0]

    def _one_by_one(self, x_BPI: Tensor, seen_BP: Tensor | None) -> Tensor:
        ways, places = [], range(x_BPI.shape[1])
        for suffix, order in (("_l0", places), ("_l0_reverse", places[::-1])):
            weights = [getattr(self.cells, kind + suffix) for kind in KINDS]
            state = x_BPI.new_zeros(len(x_BPI), self.cells.hidden_size)
            states = {}
            for place in order:
                after = step(x_BPI[:, place], state, weights)
                state = after if seen_BP is None else after.where(seen_BP[:, place, None], state)
                states[place] = state
            ways.append(torch.stack([states[place] for place in places], 1))
        return torch.cat(ways, -1)


class Writer(nn.Module):
    """One step of a GRU; PyTorch's cell holds the weights. The arguments are those of Reader."""

    def __init__(self, given: int, width: int, fast: bool) -> None:
        super().__init__()
        self.cell, self.fast = nn.GRUCell(given, width), fast

    def forward(self, x_BI: Tensor, state_BE: Tensor) -> Tensor:
        """The next state, (B, E)."""
        if not self.fast:
            return step(x_BI, state_BE, [getattr(self.cell, kind) for kind in KINDS])
        after: Tensor = self.cell(x_BI, state_BE)
        return after


def step(x_BI: Tensor, state_BE: Tensor, weights: list[Tensor]) -> Tensor:
    """(1 - z) n + z s, of s and r, z = sigmoid(W x + b + U s + b'), n = tanh(W x + b + r (U s +
    b')), with maps of their own for each of the three."""
    w, u, b, c = weights
    given, before = F.linear(x_BI, w, b).chunk(3, -1), F.linear(state_BE, u, c).chunk(3, -1)
    r, z = ((given[i] + before[i]).sigmoid() for i in (0, 1))
    n = (given[2] + r * before[2]).tanh()
    return (1 - z) * n + z * state_BE
