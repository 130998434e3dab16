"""Recurrent networks, by PyTorch's LSTM and GRU: no attention, and a state of constant size.

Shape letters: B batch, T new tokens, S tokens so far, E width of embeddings and hidden states,
N scored positions, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import Field
from torch import Tensor, nn

from pe_lab.models.base import Model, pick_scored, refuse_whole_sequence
from pe_lab.models.config import WITHOUT_ATTENTION, ModelConfig, Vocabulary
from pe_lab.models.conv import ConvKeys
from pe_lab.models.kv_cache import TokenCache
from pe_lab.pe.base import PositionalEncoding


@dataclass(frozen=True, kw_only=True)
class InputEncodedConfig(ConvKeys, ModelConfig):
    """The keys of models without attention, where an encoding can only change the input."""

    dropout: Annotated[float, Field(ge=0, lt=1)]
    tied_embeddings: bool

    def refuses(self, encoding: PositionalEncoding) -> str | None:
        if encoding.hooks() <= {"embed"}:
            return None
        return WITHOUT_ATTENTION


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(InputEncodedConfig):
    """The keys that the recurrent networks have in common.

    Token embeddings of width d_model, n_layers stacked layers of d_model units, and a linear map to
    the logits. ``dropout`` acts on the input of every layer and on the
    output of the last, never from one token to the next (Zaremba 2014, 1409.2329). Embeddings
    start normal with deviation 1, or, tied to the output, 1/sqrt(E) and multiplied by sqrt(E);
    all else uniform in +-1/sqrt(E). There is no attention: an encoding can only change the input.
    """

    cells: ClassVar[type[nn.LSTM | nn.GRU]]
    gates: ClassVar[int]

    def weights(self) -> int:
        return 2 * self.gates * self.n_layers * self.d_model**2

    def build(self, vocabulary: Vocabulary, encodings: Sequence[PositionalEncoding]) -> "Recurrent":
        return Recurrent(self, vocabulary.size, encodings[0])


@dataclass
class RecurrentCache(TokenCache):
    """The state of each layer."""

    states: list[Any] = field(default_factory=list)


class Recurrent(Model):
    """Token embeddings, the encoding's ``embed``, the layers, and a linear map to the logits."""

    def __init__(
        self,
        cfg: RecurrentConfig,
        vocab_size: int,
        encoding: PositionalEncoding,
    ) -> None:
        super().__init__()
        self.tied, self.drop = cfg.tied_embeddings, nn.Dropout(cfg.dropout)
        self.encoding = encoding
        self.tokens = nn.Embedding(vocab_size, cfg.d_model)
        e = cfg.d_model
        self.layers: Any = nn.ModuleList(
            nn.ModuleDict({"cells": cfg.cells(e, e, batch_first=True)}) for _ in range(cfg.n_layers)
        )
        self.head = nn.Linear(cfg.d_model, vocab_size, bias=False)
        self.conv = cfg.new_conv("embedding", cfg.d_model)
        if self.tied:
            nn.init.normal_(self.tokens.weight, std=cfg.d_model**-0.5)
            self.head.weight = self.tokens.weight

    @property
    def encodings(self) -> list[PositionalEncoding]:
        return [self.encoding]

    def empty_cache(self) -> RecurrentCache:
        refuse_whole_sequence(self.encodings)
        return RecurrentCache()

    def forward(
        self,
        tokens_BT: Tensor,
        pos_BS: Tensor,
        cache: RecurrentCache | None = None,
        *,
        scored: Tensor | None = None,
    ) -> Tensor:
        x = self.embed(tokens_BT, pos_BS, cache)
        before = [] if cache is None else cache.states
        states = []
        for i, layer in enumerate(self.layers):
            x, state = layer["cells"](self.drop(x), before[i] if before else None)
            states.append(state)
        if cache is not None:
            cache.states = states
        return self.drop(pick_scored(x, scored))


@dataclass(frozen=True, kw_only=True)
class LSTMConfig(RecurrentConfig):
    """Long short-term memory, without attention.

    With x_t the input and h_t the output of a layer, (E,) each,

        i, f, o = sigmoid(W x_t + U h_(t-1) + b)    three maps, a gate each
        g       = tanh(W x_t + U h_(t-1) + b)
        c_t     = f c_(t-1) + i g
        h_t     = o tanh(c_t)                       c_0 = h_0 = 0

    as PyTorch has it, with two biases in the place of b and no peepholes. Keys and the rest as in
    RecurrentConfig. Source: Hochreiter 1997, with the forget gate f of Gers 2000; the baseline of
    Liu 2023 (2306.00946), which has 128 units.
    """

    cells, gates = nn.LSTM, 4


@dataclass(frozen=True, kw_only=True)
class GRUConfig(RecurrentConfig):
    """Gated recurrent units, without attention.

    With x_t the input and h_t the output of a layer, (E,) each,

        r, z = sigmoid(W x_t + U h_(t-1) + b)       two maps, a gate each
        n    = tanh(W x_t + b + r (U h_(t-1) + b'))
        h_t  = (1 - z) n + z h_(t-1)                h_0 = 0

    as PyTorch has it: the reset gate r acts after the map U, and z keeps. Keys and the rest as in
    RecurrentConfig. Source: Cho 2014 (1406.1078).
    """

    cells, gates = nn.GRU, 3
