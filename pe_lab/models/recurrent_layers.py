"""One layer of each recurrent network, computed step by step.

Shape letters: B batch, T tokens, E width, G width of all gates together.
"""

from abc import abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

State = tuple[Tensor, ...]
"""The state of a layer, each (B, E): h, and c of an LSTM."""


class Layer(nn.Module):
    """One recurrent layer, (B, T, E) to (B, T, E); the parameters are those of PyTorch's module."""

    cells: nn.RNNBase
    gates: ClassVar[int]

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cells = self.new_cells(width)

    def forward(self, x_BTE: Tensor, state: State) -> tuple[Tensor, State]:
        w_ih, w_hh, b_ih, b_hh = self.cells.parameters()
        input_BTG, outputs = F.linear(x_BTE, w_ih, b_ih), []
        for input_BG in input_BTG.unbind(1):
            state = self.step(input_BG, F.linear(state[0], w_hh, b_hh), state)
            outputs.append(state[0])
        return torch.stack(outputs, 1), state

    @staticmethod
    @abstractmethod
    def new_cells(width: int) -> nn.RNNBase:
        """PyTorch's layer."""

    @abstractmethod
    def initial_state(self, x_BTE: Tensor) -> State:
        """The state before the first token."""

    @abstractmethod
    def step(self, input_BG: Tensor, hidden_BG: Tensor, state: State) -> State:
        """The next state, from the projections of the input and of the previous h to the gates."""


class LSTMLayer(Layer):
    """One layer of an LSTM; the state is h and c."""

    gates = 4

    @staticmethod
    def new_cells(width: int) -> nn.RNNBase:
        return nn.LSTM(width, width, batch_first=True)

    def initial_state(self, x_BTE: Tensor) -> State:
        zeros = torch.zeros_like(x_BTE[:, 0])
        return zeros, zeros

    def step(self, input_BG: Tensor, hidden_BG: Tensor, state: State) -> State:
        i, f, g, o = (input_BG + hidden_BG).chunk(4, -1)
        c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c


class GRULayer(Layer):
    """One layer of gated recurrent units; the state is h."""

    gates = 3

    @staticmethod
    def new_cells(width: int) -> nn.RNNBase:
        return nn.GRU(width, width, batch_first=True)

    def initial_state(self, x_BTE: Tensor) -> State:
        return (torch.zeros_like(x_BTE[:, 0]),)

    def step(self, input_BG: Tensor, hidden_BG: Tensor, state: State) -> State:
        (r, z, n), (r_h, z_h, n_h) = input_BG.chunk(3, -1), hidden_BG.chunk(3, -1)
        r, z = (r + r_h).sigmoid(), (z + z_h).sigmoid()
        n = (n + r * n_h).tanh()
        return ((1 - z) * n + z * state[0],)
