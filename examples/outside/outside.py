"""A module of another package as a model of pe-lab: here ``torch.nn.TransformerEncoder``.

    pe-lab check --config-dir examples/outside model=outside
    pe-lab --config-dir examples/outside task=flipflop pe=none model=outside

For another module, replace ``new_module`` and the fields of ``OutsideConfig``.
Shape letters: B batch, T new tokens, S tokens with those cached, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from pe_lab.models.base import Model, pick_scored
from pe_lab.models.config import ModelConfig, Vocabulary
from pe_lab.models.kv_cache import TokenCache
from pe_lab.pe.base import PositionalEncoding


class Causal(nn.Module):
    """(B, T) tokens to (B, T, V) logits."""

    def __init__(self, vocab_size: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocab_size)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        x = self.tokens(tokens_BT)
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        logits: Tensor = self.head(self.layers(x, mask=future))
        return logits


@dataclass(frozen=True, kw_only=True)
class OutsideConfig(ModelConfig):
    """Its fields, and ``n_layers`` and ``d_model`` of the base, are the keys of the yaml."""

    n_heads: PositiveInt

    def __post_init__(self) -> None:
        if self.d_model % self.n_heads:
            raise ValueError(f"d_model={self.d_model} is not divisible by n_heads={self.n_heads}")

    def new_module(self, vocab_size: int) -> nn.Module:
        return Causal(vocab_size, self.d_model, self.n_layers, self.n_heads)

    def build(self, vocabulary: Vocabulary, encodings: Sequence[PositionalEncoding]) -> "Outside":
        return Outside(self.new_module(vocabulary.size), encodings[0])

    def refuses(self, encoding: PositionalEncoding) -> str | None:
        return "is not used by a module from outside: give pe=none" if encoding.hooks() else None


class Outside(Model):
    """The module as it is: its logits stand for hidden states, and ``unembed`` returns them."""

    def __init__(self, module: nn.Module, encoding: PositionalEncoding) -> None:
        super().__init__()
        self.module, self.encoding = module, encoding

    @property
    def encodings(self) -> list[PositionalEncoding]:
        return [self.encoding]

    def empty_cache(self) -> TokenCache:
        return TokenCache()

    def forward(
        self,
        tokens_BT: Tensor,
        pos_BS: Tensor,
        cache: TokenCache | None = None,
        *,
        scored: Tensor | None = None,
    ) -> Tensor:
        # The module has no cache of its own: decoding computes all tokens again.
        tokens_BS = tokens_BT if cache is None else cache.tokens_BS.extend(tokens_BT)
        return pick_scored(self.module(tokens_BS)[:, -tokens_BT.shape[1] :], scored)

    def unembed(self, hidden: Tensor) -> Tensor:
        return hidden
