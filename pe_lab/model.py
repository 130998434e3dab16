"""A decoder-only transformer; with attention.py, the only caller of the hooks of an encoding.

Shape letters: B batch, T tokens given (queries), S tokens known (keys), E model width,
H heads, D head width, V vocabulary, N scored positions.

Initialisation: linear weights uniform in +-1/sqrt(fan in), biases zero; the two projections
that write into the residual stream are divided by sqrt(2 n_layers) (GPT-2); token embeddings
normal with deviation 1, or, tied to the output, deviation 1/sqrt(E) and multiplied by sqrt(E)
at the input (Vaswani 2017).
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_lab.attention import Attention
from pe_lab.cache import Cache, LayerCache
from pe_lab.config import ModelConfig
from pe_lab.dropout import Drop
from pe_lab.kernels import roads
from pe_lab.kernels.dropping import dropped
from pe_lab.pe.base import PositionalEncoding
from pe_lab.wanted import Wanted


class FeedForward(nn.Module):
    """linear, activation, linear; SwiGLU (Shazeer 2020) multiplies two linears."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.activation = cfg.activation
        gates = 2 if cfg.activation == "swiglu" else 1
        self.up = nn.Linear(cfg.d_model, gates * cfg.ff_width)
        self.out = nn.Linear(cfg.ff_width, cfg.d_model)

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x)
        if self.activation == "swiglu":
            gate, value = h.chunk(2, -1)
            h = F.silu(gate) * value
        else:
            h = F.relu(h) if self.activation == "relu" else F.gelu(h)
        out: Tensor = self.out(h)
        return out


class Block(nn.Module):
    """Attention and feed-forward, each in a residual branch, normalised before or after."""

    def __init__(self, cfg: ModelConfig, encoding: PositionalEncoding, fast: bool) -> None:
        super().__init__()
        norm = nn.RMSNorm if cfg.norm == "rmsnorm" else nn.LayerNorm
        self.pre = cfg.norm_position == "pre"
        self.attention, self.ff = Attention(cfg, encoding, fast), FeedForward(cfg)
        self.norm_attention, self.norm_ff = norm(cfg.d_model), norm(cfg.d_model)

    def forward(
        self,
        x: Tensor,
        pos_BS: Tensor,
        queries: int,
        carried: Any,
        cache: LayerCache | None,
        drop: Drop | None = None,
        wanted: Wanted | None = None,
    ) -> tuple[Tensor, Any]:
        """Hidden states (B, T, E), or of the wanted places (N, E)."""
        pe = self.attention.encoding
        x = pe.enter(x, pos_BS[:, -x.shape[1] :])
        seen = self.norm_attention(x) if self.pre else x
        drops = (None,) * 3 if drop is None else tuple(drop.at(place) for place in (1, 2, 3))
        a, carried = self.attention(
            seen, pos_BS, queries, carried, cache, drop=drops[0], wanted=wanted
        )
        rows = None
        if wanted is not None:
            rows = wanted.at_N
            x = x.flatten(0, 1).index_select(0, rows)
        x = self._add(x, a, drops[1], rows)
        h = self.norm_ff(x) if self.pre else self.norm_attention(x)
        x = self._add(x if self.pre else h, self.ff(h), drops[2], rows)
        if not self.pre:
            x = self.norm_ff(x)
        # No layer reads what the last one carries.
        return x, carried if wanted is not None else pe.pass_on(carried, h)

    def _add(self, x: Tensor, branch: Tensor, drop: Drop | None, rows: Tensor | None) -> Tensor:
        if drop is None:
            return x + branch
        return dropped(branch, drop, rows, x, fast=self.attention.fast)


class Transformer(nn.Module):
    """Tokens to hidden states (``forward``), hidden states to logits (``unembed``).

    ``encodings`` holds one encoding for each layer, the same object where layers share it;
    the first one's ``embed`` is called on the token embeddings.
    """

    def __init__(
        self,
        cfg: ModelConfig,
        vocab_size: int,
        encodings: list[PositionalEncoding],
        fast: bool = True,
    ) -> None:
        super().__init__()
        self.fast, self.tied, self.p = fast, cfg.tied_embeddings, cfg.dropout
        self.tokens = nn.Embedding(vocab_size, cfg.d_model)
        self.blocks = nn.ModuleList(Block(cfg, encoding, fast) for encoding in encodings)
        norm = nn.RMSNorm if cfg.norm == "rmsnorm" else nn.LayerNorm
        self.norm = norm(cfg.d_model) if cfg.norm_position == "pre" else nn.Identity()
        self.head = nn.Linear(cfg.d_model, vocab_size, bias=False)
        self._initialise(len(encodings))
        if self.tied:
            self.head.weight = self.tokens.weight

    def _initialise(self, n_layers: int) -> None:
        with torch.no_grad():
            self.tokens.weight.normal_(0, self.tokens.embedding_dim**-0.5 if self.tied else 1)
            bound = self.head.in_features**-0.5
            self.head.weight.uniform_(-bound, bound)
            for block in self.blocks:
                assert isinstance(block, Block)
                attention, ff = block.attention, block.ff
                for linear in (attention.qkv, attention.out, ff.up, ff.out):
                    bound = linear.in_features**-0.5
                    linear.weight.uniform_(-bound, bound)
                    linear.bias.zero_()
                for linear in (attention.out, ff.out):
                    linear.weight.div_(math.sqrt(2 * n_layers))

    @property
    def encodings(self) -> list[PositionalEncoding]:
        """The encoding of each layer."""
        return [block.attention.encoding for block in self.blocks]  # type: ignore[union-attr, misc]

    def empty_cache(self) -> Cache:
        """A cache to start decoding with.

        Raises:
            ValueError: an encoding needs the whole sequence at once.
        """
        if any(encoding.whole_sequence for encoding in self.encodings):
            raise ValueError(
                "a key cache cannot serve an encoding that depends on the sequence's length"
            )
        return Cache([LayerCache() for _ in self.blocks])

    @torch.no_grad()
    def kernels(self) -> dict[str, str] | None:
        """The kernel that serves each kind of attention that the encodings ask for (see
        kernels/roads.py; none for those that have none); None where the model is not fast."""
        if not self.fast:
            return None
        device, training = self.head.weight.device, self.training
        tokens = torch.zeros(1, 1, dtype=torch.int64, device=device)
        self.eval()
        with roads.asked() as kinds:
            self(tokens, tokens)
        self.train(training)
        return roads.named(device, kinds)

    def forward(
        self,
        tokens_BT: Tensor,
        pos_BS: Tensor,
        cache: Cache | None = None,
        *,
        wanted: Wanted | None = None,
        key: int | Tensor | None = None,
    ) -> Tensor:
        """(B, T) tokens and the positions of all S tokens so far to hidden states (B, T, E).

        Args:
            wanted: return only these places' states, (N, E); without a cache.
            key: of the dropout masks (see dropout.py); None: drawn from torch's generator.
        """
        tokens_BS = tokens_BT if cache is None else cache.extend(tokens_BT)
        t, s = tokens_BT.shape[1], tokens_BS.shape[1]
        drop = self._drop(key)
        x = self.tokens(tokens_BS)
        if self.tied:
            x = x * math.sqrt(x.shape[-1])
        # An encoding of the input may look at the tokens before, so it sees them all.
        x = self.encodings[0].embed(x, tokens_BS, pos_BS)[:, s - t :]
        if drop is not None:
            x = dropped(x, drop, fast=self.fast)
        carried, last = None, len(self.blocks) - 1
        for i, block in enumerate(self.blocks):
            given = cache and cache.layers[i], drop and drop.at(4 * (i + 1))
            if i == last and wanted is not None and self.fast:
                whole = self.encodings[i].whole_sequence is not None
                queries = t if whole else t - wanted.first
                x, carried = block(x, pos_BS, queries, carried, *given, wanted)
                wanted = None
            else:
                x, carried = block(x, pos_BS, t, carried, *given)
        if wanted is not None:
            x = x.flatten(0, 1).index_select(0, wanted.at_N)
        hidden: Tensor = self.norm(x)
        return hidden

    def _drop(self, key: int | Tensor | None) -> Drop | None:
        if not (self.training and self.p):
            return None
        return Drop(self.p, int(torch.randint(2**62, ())) if key is None else key)

    def unembed(self, hidden: Tensor) -> Tensor:
        """(.., E) hidden states to (.., V) logits."""
        logits: Tensor = self.head(hidden)
        return logits
