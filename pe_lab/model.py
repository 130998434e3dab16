"""A decoder-only transformer, and the only place where the hooks of an encoding are called.

Shape letters: B batch, T tokens given (queries), S tokens known (keys), E model width,
H heads, D head width, V vocabulary, N scored positions.

Initialisation: linear weights uniform in +-1/sqrt(fan in), biases zero; the two projections
that write into the residual stream are divided by sqrt(2 n_layers) (GPT-2); token embeddings
normal with deviation 1, or, tied to the output, deviation 1/sqrt(E) and multiplied by sqrt(E)
at the input (Vaswani 2017).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_lab.config import ModelConfig
from pe_lab.dropout import Drop, attention_rows
from pe_lab.kernels.dropping import dropped
from pe_lab.pe.base import PositionalEncoding, Scene, additive
from pe_lab.task import Bools


@dataclass
class LayerCache:
    """What one layer remembers of the tokens before: keys not yet rotated, values, inputs."""

    parts: tuple[Tensor, Tensor, Tensor] | None = None
    carried: Any = None

    def extend(self, k: Tensor, v: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        new = (k, v, x)
        if self.parts is not None:
            k, v, x = (torch.cat([old, add], -2) for old, add in zip(self.parts, new, strict=True))
        self.parts = (k, v, x)
        return k, v, x

    def extend_carried(self, carried: Any) -> Any:
        """Tensors carried from the layer below are kept per token, along dimension 1."""
        if isinstance(carried, Tensor):
            carried = carried if self.carried is None else torch.cat([self.carried, carried], 1)
            self.carried = carried
        return carried


@dataclass
class Cache:
    """Everything read so far: decoding gives the model only the new tokens."""

    layers: list[LayerCache]
    tokens_BS: Tensor | None = field(default=None)

    def extend(self, tokens_BT: Tensor) -> Tensor:
        old = self.tokens_BS
        self.tokens_BS = tokens_BT if old is None else torch.cat([old, tokens_BT], 1)
        return self.tokens_BS


@dataclass(frozen=True)
class Wanted:
    """The places whose hidden states are asked for: the last layer computes no others.

    Args:
        at_N: their numbers b T + t, ascending.
        first: the first place t among them.
    """

    at_N: Tensor
    first: int

    @classmethod
    def of(cls, chosen: Bools, device: torch.device) -> "Wanted":
        """The places where ``chosen`` (B, T) is true."""
        first = int(chosen.any(0).argmax())
        return cls(torch.from_numpy(np.flatnonzero(chosen)).to(device), first)

    def of_rows_from(self, first: int, t: int) -> Tensor:
        """Their numbers in (B, T - first) rows that hold the places from ``first`` on."""
        return self.at_N - (torch.div(self.at_N, t, rounding_mode="floor") + 1) * first


class Attention(nn.Module):
    """Causal multi-head attention that asks its encoding at every hook."""

    def __init__(self, cfg: ModelConfig, encoding: PositionalEncoding, fast: bool) -> None:
        super().__init__()
        self.n_heads = cfg.n_heads
        self.encoding = encoding
        self.fast = fast
        self.learned_bias = "bias" in encoding.hooks() and any(True for _ in encoding.parameters())
        self.qkv = nn.Linear(cfg.d_model, 3 * cfg.d_model)
        self.out = nn.Linear(cfg.d_model, cfg.d_model)

    def forward(
        self,
        x_BTE: Tensor,
        pos_BS: Tensor,
        queries: int,
        carried: Any,
        cache: LayerCache | None,
        drop: Drop | None = None,
        wanted: Wanted | None = None,
    ) -> tuple[Tensor, Any]:
        """(B, T, E), or (N, E) of the wanted places.

        Args:
            queries: how many of the T tokens, the last, ask; all, or those from the first wanted
                place on.
        """
        q, k, scene = self.sight(x_BTE, pos_BS, queries, carried, cache)
        mixed, carried = self._in_one_go(q, k, scene, drop), scene.carried
        if mixed is None:
            mixed, carried = self._eager(q, k, scene, drop)
        if isinstance(carried, Tensor):
            # What this layer has not rewritten still holds the tokens before the given ones.
            carried = carried[:, -x_BTE.shape[1] :]
        mixed_BTE = mixed.transpose(1, 2).flatten(-2)
        if wanted is not None:
            rows = wanted.of_rows_from(x_BTE.shape[1] - queries, x_BTE.shape[1])
            mixed_BTE = mixed_BTE.flatten(0, 1).index_select(0, rows)
        return self.out(mixed_BTE), carried

    def sight(
        self, x_BTE: Tensor, pos_BS: Tensor, queries: int, carried: Any, cache: LayerCache | None
    ) -> tuple[Tensor, Tensor, Scene]:
        """Queries and keys as they are compared, and what the encoding can see."""
        q, k, v = (
            part.view(*part.shape[:2], self.n_heads, -1).transpose(1, 2)
            for part in self._project(x_BTE, queries)
        )
        x_BSE = x_BTE
        if cache is not None:
            k, v, x_BSE = cache.extend(k, v, x_BTE)
            carried = cache.extend_carried(carried)
        # The same tensor where it is the same, so that an encoding sees that.
        pos_q = pos_BS if queries == pos_BS.shape[1] else pos_BS[:, -queries:]
        scene = Scene(x_BSE, q, k, v, pos_q, pos_BS, carried)
        q, k = self.encoding.rotate(q, k, scene)
        return q, k, scene

    def _project(self, x_BTE: Tensor, t: int) -> Sequence[Tensor]:
        """Queries of the last t tokens, keys and values of all."""
        if t == x_BTE.shape[1]:
            return self._wide(self.qkv(x_BTE)).chunk(3, -1)
        e = x_BTE.shape[-1]
        weight, bias = self.qkv.weight, self.qkv.bias
        q = self._wide(F.linear(x_BTE[:, -t:], weight[:e], bias[:e]))
        return q, *self._wide(F.linear(x_BTE, weight[e:], bias[e:])).chunk(2, -1)

    def _wide(self, x: Tensor) -> Tensor:
        """On a CPU, small products in half precision are slow."""
        if self.fast and x.is_cpu:
            return x.to(torch.promote_types(x.dtype, torch.float32))
        return x

    def _in_one_go(self, q: Tensor, k: Tensor, scene: Scene, drop: Drop | None) -> Tensor | None:
        """``_eager`` by a fused kernel; None where there is none."""
        if not self.fast:
            return None
        mixed = self.encoding.attend(q, k, scene, drop)
        if mixed is not None or drop is not None or not self.encoding.fused():
            return mixed
        v, whole = scene.v_BHSD, q.shape[2] == k.shape[2]
        bias = self.encoding.bias(scene.pos_q_BT, scene.pos_k_BS)
        if bias is None:
            mask = None if whole else scene.mask_TS
            return F.scaled_dot_product_attention(q, k, v, mask, is_causal=whole)
        # A CPU has no fused kernel with a gradient for the bias, and PyTorch's own detour is
        # slower; half precision would round far biases by up to a quarter.
        if q.dtype != bias.dtype or (self.learned_bias and q.device.type == "cpu"):
            return None
        mask = bias + additive(scene.mask_TS, bias.dtype)
        return F.scaled_dot_product_attention(q, k, v, mask)

    def weigh(self, q: Tensor, k: Tensor, scene: Scene) -> tuple[Tensor, Tensor]:
        """Logits and attention weights of what ``sight`` returned, without a fused kernel."""
        content = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
        logits = self.encoding.logits(content, q, k, scene)
        bias = self.encoding.bias(scene.pos_q_BT, scene.pos_k_BS)
        if bias is not None:
            logits = logits + bias
        return logits, self.encoding.weights(logits, scene.mask_TS)

    def _eager(self, q: Tensor, k: Tensor, scene: Scene, drop: Drop | None) -> tuple[Tensor, Any]:
        pe = self.encoding
        _, weights = self.weigh(q, k, scene)
        left = weights
        if drop is not None:
            left = dropped(weights, drop, attention_rows(weights), fast=self.fast)
        mixed = left.to(scene.v_BHSD.dtype) @ scene.v_BHSD
        added = pe.values(left, scene.pos_q_BT, scene.pos_k_BS)
        return (mixed if added is None else mixed + added), pe.carry(weights, scene)


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
