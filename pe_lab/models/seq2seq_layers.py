"""The layers of seq2seq.py: a bidirectional GRU and a GRU cell.

Shape letters: B batch, P tokens of the input part, I width of the input, E width of a state.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

KINDS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class Reader(nn.Module):
    """A GRU from left to right and one from right to left; the parameters are those of PyTorch's
    module."""

    def __init__(self, input_width: int, width: int) -> None:
        super().__init__()
        self.cells = nn.GRU(input_width, width, batch_first=True, bidirectional=True)

    def forward(self, x_BPI: Tensor, seen_BP: Tensor | None) -> Tensor:
        """The states of both directions, (B, P, 2E).

        Args:
            seen_BP: False for padding, where the states are undefined; None: there is no padding.
        """
        directions, places = [], range(x_BPI.shape[1])
        for suffix, order in (("_l0", places), ("_l0_reverse", places[::-1])):
            weights = [getattr(self.cells, kind + suffix) for kind in KINDS]
            state = x_BPI.new_zeros(len(x_BPI), self.cells.hidden_size)
            states = {}
            for place in order:
                after = step(x_BPI[:, place], state, weights)
                state = after if seen_BP is None else after.where(seen_BP[:, place, None], state)
                states[place] = state
            directions.append(torch.stack([states[place] for place in places], 1))
        return torch.cat(directions, -1)


class Writer(nn.Module):
    """One step of a GRU; the parameters are those of PyTorch's module."""

    def __init__(self, input_width: int, width: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(input_width, width)

    def forward(self, x_BI: Tensor, state_BE: Tensor) -> Tensor:
        """The next state, (B, E)."""
        return step(x_BI, state_BE, [getattr(self.cell, kind) for kind in KINDS])


def step(x_BI: Tensor, state_BE: Tensor, weights: list[Tensor]) -> Tensor:
    """The next state (1 - z) n + z s: r, z = sigmoid(W x + b + U s + b'), n = tanh(W x + b + r (U s
    + b')), with separate W, U, b and b' for r, z and n."""
    w, u, b, c = weights
    inputs, hidden = F.linear(x_BI, w, b).chunk(3, -1), F.linear(state_BE, u, c).chunk(3, -1)
    r, z = ((inputs[i] + hidden[i]).sigmoid() for i in (0, 1))
    n = (inputs[2] + r * hidden[2]).tanh()
    return (1 - z) * n + z * state_BE
