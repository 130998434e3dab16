"""Recurrent layers by PyTorch's kernels, which equal one step after another."""

from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from pe_lab.models.recurrent_layers import GRULayer, LSTMLayer, State
from pe_lab.models.seq2seq_layers import Reader, Writer


class FastLSTMLayer(LSTMLayer):
    """``LSTMLayer`` in one call."""

    def forward(self, x_BTE: Tensor, state: State) -> tuple[Tensor, State]:
        out, (h, c) = self.cells(x_BTE, tuple(part[None] for part in state))
        return out, (h[0], c[0])


class FastGRULayer(GRULayer):
    """``GRULayer`` in one call."""

    def forward(self, x_BTE: Tensor, state: State) -> tuple[Tensor, State]:
        out, h = self.cells(x_BTE, state[0][None])
        return out, (h[0],)


class FastReader(Reader):
    """``Reader`` in one call."""

    def forward(self, x_BPI: Tensor, seen_BP: Tensor | None) -> Tensor:
        if seen_BP is None:
            states: Tensor = self.cells(x_BPI)[0]
            return states
        packed = pack_padded_sequence(
            x_BPI, seen_BP.sum(1).cpu(), batch_first=True, enforce_sorted=False
        )
        return pad_packed_sequence(self.cells(packed)[0], batch_first=True)[0]


class FastWriter(Writer):
    """``Writer`` in one call."""

    def forward(self, x_BI: Tensor, state_BE: Tensor) -> Tensor:
        after: Tensor = self.cell(x_BI, state_BE)
        return after
