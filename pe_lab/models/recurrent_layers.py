"""One layer of each recurrent network.

Shape letters: B batch, T tokens, E width, G the width of all gates.
"""

from abc import abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_lab.kernels import dispatch

State = tuple[Tensor, ...]
"""What a layer remembers, each (B, E): h, and c of an LSTM."""


class Layer(nn.Module):
    """One recurrent layer, (B, T, E) to (B, T, E); PyTorch's own holds the weights."""

    cells: nn.RNNBase
    gates: ClassVar[int]

    def __init__(self, width: int, fast: bool) -> None:
        super().__init__()
        self.cells, self.fast = self.made(width), fast

    def forward(self, x_BTE: Tensor, state: State) -> tuple[Tensor, State]:
        weights = w_ih, w_hh, b_ih, b_hh = list(self.cells.parameters())
        if self.fast and dispatch.readable(None, x_BTE, *weights):
            return self._in_one_go(x_BTE, state)
        given_BTG, outs = F.linear(x_BTE, w_ih, b_ih), []
        for given_BG in given_BTG.unbind(1):
            state = self._step(given_BG, F.linear(state[0], w_hh, b_hh), state)
            outs.append(state[0])
        return torch.stack(outs, 1), state

    @staticmethod
    @abstractmethod
    def made(width: int) -> nn.RNNBase:
        """PyTorch's layer."""

    @abstractmethod
    def empty(self, x_BTE: Tensor) -> State:
        """The state before the first token."""

    @abstractmethod
    def _in_one_go(self, x_BTE: Tensor, state: State) -> tuple[Tensor, State]:
        """All steps, by PyTorch's kernel."""

    @abstractmethod
    def _step(self, given_BG: Tensor, before_BG: Tensor, state: State) -> State:
        """The next state, from what the input and the last h give to each gate."""


class LSTMLayer(Layer):
    """One layer of an LSTM; the state is h and c."""

    gates = 4

    @staticmethod
    def made(width: int) -> nn.RNNBase:
        return nn.LSTM(width, width, batch_first=True)

    def empty(self, x_BTE: Tensor) -> State:
        zeros = torch.zeros_like(x_BTE[:, 0])
        return zeros, zeros

    def _in_one_go(self, x_BTE: Tensor, state: State) -> tuple[Tensor, State]:
        out, (h, c) = self.cells(x_BTE, tuple(part[None] for part in state))
        return out, (h[0], c[0])

    def _step(self, given_BG: Tensor, before_BG: Tensor, state: State) -> State:
        i, f, g, o = (given_BG + before_BG).chunk(4, -1)
        c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c


class GRULayer(Layer):
    """One layer of gated recurrent units; the state is h."""

    gates = 3

    @staticmethod
    def made(width: int) -> nn.RNNBase:
        return nn.GRU(width, width, batch_first=True)

    def empty(self, x_BTE: Tensor) -> State:
        return (torch.zeros_like(x_BTE[:, 0]),)

    def _in_one_go(self, x_BTE: Tensor, state: State) -> tuple[Tensor, State]:
        out, h = self.cells(x_BTE, state[0][None])
        return out, (h[0],)

    def _step(self, given_BG: Tensor, before_BG: Tensor, state: State) -> State:
        (r, z, n), (r_h, z_h, n_h) = given_BG.chunk(3, -1), before_BG.chunk(3, -1)
        r, z = (r + r_h).sigmoid(), (z + z_h).sigmoid()
        n = (n + r * n_h).tanh()
        return ((1 - z) * n + z * state[0],)
