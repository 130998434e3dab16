"""Recurrent sequence-to-sequence networks with attention.

Shape letters: B batch, P tokens of the input part, U new tokens of the output part and S tokens of
it so far, E width of embeddings and states.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from pe_lab.models.config import Vocabulary
from pe_lab.models.input_output import InputOutput, InputOutputConfig
from pe_lab.models.kv_cache import TokenCache
from pe_lab.pe.base import PositionalEncoding


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig(InputOutputConfig):
    """GRU decoder with attention to a bidirectional GRU encoder.

    x_1 .. x_P are the embeddings of the input part and its separator, y_1, y_2, .. those of the
    output part, which begins with the separator; (E,) each. The annotations h_j, (2E,),
    are the states of a GRU over x from left to right and of one from right to left. The GRU
    of the decoder starts from s_0 = tanh(W_s <-h_1), <-h_1 the state of the latter at x_1, and

        e_ij = v . tanh(W s_(i-1) + U h_j)      j = 1 .. P
        c_i  = sum_j softmax_j(e_ij) h_j
        s_i  = GRU(s_(i-1), [y_i; c_i])
        t_i  = maxout(R [s_i; y_i; c_i])        the larger of two neighbours of 2E

    and the logits are linear in t_i. U h_j is computed once. With n_layers above 1 the GRUs are
    stacked in both parts, and s in e_ij and t_i is the state of the decoder's last. Source:
    Bahdanau 2014 (1409.0473), whose widths of states, embeddings and the comparison differ, and
    are all d_model here; GRUs as PyTorch has them (the reset gate acts after the map). Weights
    start uniform in +-1/sqrt(fan in), GRUs in +-1/sqrt(E), embeddings normal with deviation 1.

    ``dropout`` acts on the embeddings, between layers and on t_i. The model knows order
    without an encoding; one can only change the input, x and y with the same parameters. Positions
    of the output part start again from the first position of the sequence.
    """

    dropout: Annotated[float, Field(ge=0, lt=1)]

    def refuses(self, encoding: PositionalEncoding) -> str | None:
        if encoding.hooks() <= {"embed"}:
            return None
        return (
            "acts inside a transformer's layers, which this model does not have: choose pe=none "
            "or another that only changes the input"
        )

    def weights(self) -> int:
        return (30 + 24 * (self.n_layers - 1)) * self.d_model**2

    def build(self, vocabulary: Vocabulary, encodings: Sequence[PositionalEncoding]) -> "Seq2Seq":
        assert vocabulary.separator is not None
        return Seq2Seq(self, vocabulary.size, vocabulary.separator, encodings[0])


@dataclass(frozen=True)
class Memory:
    """The encoded input that the decoder attends to.

    Args:
        h_BPE: the annotations, (B, P, 2E).
        compared_BPE: U h_j.
        start_BE: s_0 of each layer.
        seen_BP: False for padding; None: there is no padding.
    """

    h_BPE: Tensor
    compared_BPE: Tensor
    start_BE: list[Tensor]
    seen_BP: Tensor | None


@dataclass
class DecoderCache(TokenCache):
    """The state of each layer of the decoder."""

    state_BE: list[Tensor] | None = None


class Reader(nn.Module):
    """A GRU from left to right and one from right to left."""

    def __init__(self, input_width: int, width: int) -> None:
        super().__init__()
        self.cells = nn.GRU(input_width, width, batch_first=True, bidirectional=True)

    def forward(self, x_BPI: Tensor, seen_BP: Tensor | None) -> Tensor:
        """The states of both directions, (B, P, 2E).

        Args:
            seen_BP: False for padding, where the states are 0; None: there is no padding.
        """
        if seen_BP is None:
            return self.cells(x_BPI)[0]
        packed = pack_padded_sequence(
            x_BPI, seen_BP.sum(1).cpu(), batch_first=True, enforce_sorted=False
        )
        return pad_packed_sequence(self.cells(packed)[0], batch_first=True)[0]


class Seq2Seq(InputOutput):
    """``encoding``'s ``embed`` is called on both inputs."""

    def __init__(
        self,
        cfg: Seq2SeqConfig,
        vocab_size: int,
        separator: int,
        encoding: PositionalEncoding,
    ) -> None:
        super().__init__()
        e, n = cfg.d_model, cfg.n_layers
        self.separator, self.encoding = separator, encoding
        self.drop = nn.Dropout(cfg.dropout)
        self.tokens, self.conv = nn.Embedding(vocab_size, e), cfg.new_conv("embedding", e)
        self.readers = nn.ModuleList(Reader(2 * e if i else e, e) for i in range(n))
        self.start = nn.Linear(e, n * e, bias=False)
        self.asking = nn.Linear(e, e, bias=False)
        self.compared = nn.Linear(2 * e, e, bias=False)
        self.scored = nn.Linear(e, 1, bias=False)
        cells = (nn.GRUCell(e if i else 3 * e, e) for i in range(n))
        self.writers: Any = nn.ModuleList(nn.ModuleDict({"cell": cell}) for cell in cells)
        self.read_out = nn.Linear(4 * e, 2 * e)
        self.head = nn.Linear(e, vocab_size, bias=False)

    @property
    def encodings(self) -> list[PositionalEncoding]:
        return [self.encoding]

    def encode(self, tokens_BP: Tensor, pos_BP: Tensor, seen_BP: Tensor | None) -> Memory:
        x = self.embed(tokens_BP, pos_BP, None)
        for reader in self.readers:
            x = reader(self.drop(x), seen_BP)
        _, backwards_BE = x[:, 0].chunk(2, -1)
        start = self.start(backwards_BE).tanh().chunk(len(self.writers), -1)
        return Memory(x, self.compared(x), list(start), seen_BP)

    def decode(
        self,
        tokens_BU: Tensor,
        pos_BS: Tensor,
        memory: Memory,
        cache: DecoderCache | None,
    ) -> Tensor:
        y_BUE = self.drop(self.embed(tokens_BU, pos_BS, cache))
        state = memory.start_BE
        if cache is not None and cache.state_BE is not None:
            state = cache.state_BE
        s, c = [], []
        for y_BE in y_BUE.unbind(1):
            c_BE = self._context(state[-1], memory)
            state = self._step(state, torch.cat([y_BE, c_BE], -1))
            s.append(state[-1])
            c.append(c_BE)
        if cache is not None:
            cache.state_BE = state
        read_out = self.read_out(torch.cat([torch.stack(s, 1), y_BUE, torch.stack(c, 1)], -1))
        t_BUE: Tensor = read_out.unflatten(-1, (-1, 2)).amax(-1)
        return self.drop(t_BUE)

    def _context(self, state_BE: Tensor, memory: Memory) -> Tensor:
        """The attention of a state to the input, c_i, (B, 2E)."""
        compared_BPE = (self.asking(state_BE)[:, None] + memory.compared_BPE).tanh()
        score_BP = self.scored(compared_BPE).squeeze(-1)
        if memory.seen_BP is not None:
            score_BP = score_BP.masked_fill(~memory.seen_BP, torch.finfo(score_BP.dtype).min)
        weight_B1P = score_BP.softmax(-1)[:, None]
        return (weight_B1P.to(memory.h_BPE.dtype) @ memory.h_BPE).squeeze(1)

    def _step(self, state: list[Tensor], x_BE: Tensor) -> list[Tensor]:
        """The next state of each layer."""
        after = []
        for i, (writer, before_BE) in enumerate(zip(self.writers, state, strict=True)):
            x_BE = writer["cell"](self.drop(x_BE) if i else x_BE, before_BE)
            after.append(x_BE)
        return after

    def empty_output_cache(self) -> DecoderCache:
        return DecoderCache()
