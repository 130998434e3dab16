"""A decoder-only transformer, and the only place where the hooks of an encoding are called.

Shape letters: B batch, T tokens given (queries), S tokens known (keys), E model width,
H heads, D head width, V vocabulary, N scored positions.

Initialisation: linear weights uniform in +-1/sqrt(fan in), biases zero; the two projections
that write into the residual stream are divided by sqrt(2 n_layers) (GPT-2); token embeddings
normal with deviation 1, or, tied to the output, deviation 1/sqrt(E) and multiplied by sqrt(E)
at the input (Vaswani 2017).
"""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_lab.config import ModelConfig
from pe_lab.pe.base import PositionalEncoding, Scene, additive


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


class Attention(nn.Module):
    """Causal multi-head attention that asks its encoding at every hook."""

    def __init__(self, cfg: ModelConfig, encoding: PositionalEncoding) -> None:
        super().__init__()
        self.n_heads, self.dropout = cfg.n_heads, cfg.dropout
        self.encoding = encoding
        self.fused = encoding.fused()
        self.learned_bias = "bias" in encoding.hooks() and any(True for _ in encoding.parameters())
        self.qkv = nn.Linear(cfg.d_model, 3 * cfg.d_model)
        self.out = nn.Linear(cfg.d_model, cfg.d_model)

    def forward(
        self, x_BTE: Tensor, pos_BS: Tensor, mask_TS: Tensor, carried: Any, cache: LayerCache | None
    ) -> tuple[Tensor, Any]:
        q, k, bias, scene = self.sight(x_BTE, pos_BS, mask_TS, carried, cache)
        mixed, carried = (
            (self._fused(q, k, scene.v_BHSD, bias, mask_TS), scene.carried)
            if self.fused
            else self._eager(q, k, bias, scene)
        )
        if isinstance(carried, Tensor):
            # What this layer has not rewritten still holds the tokens before the given ones.
            carried = carried[:, -x_BTE.shape[1] :]
        return self.out(mixed.transpose(1, 2).flatten(-2)), carried

    def sight(
        self, x_BTE: Tensor, pos_BS: Tensor, mask_TS: Tensor, carried: Any, cache: LayerCache | None
    ) -> tuple[Tensor, Tensor, Tensor | None, Scene]:
        """Queries and keys as they are compared, the bias, and what the encoding can see."""
        q, k, v = (
            part.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for part in self.qkv(x_BTE).chunk(3, -1)
        )
        x_BSE = x_BTE
        if cache is not None:
            k, v, x_BSE = cache.extend(k, v, x_BTE)
            carried = cache.extend_carried(carried)
        pos_q = pos_BS[:, -x_BTE.shape[1] :]
        scene = Scene(x_BSE, q, k, v, pos_q, pos_BS, mask_TS, carried)
        q, k = self.encoding.rotate(q, k, scene)
        return q, k, self.encoding.bias(pos_q, pos_BS), scene

    def _fused(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, mask_TS: Tensor
    ) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        t, s = mask_TS.shape
        if bias is not None:
            mask = bias + additive(mask_TS, bias.dtype)
            # A CPU has no fused kernel with a gradient for the bias, and PyTorch's own detour is
            # slower; half precision would round far biases by up to a quarter.
            if q.dtype != bias.dtype or (self.learned_bias and q.device.type == "cpu"):
                logits = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
                weights = (logits + mask).softmax(-1)
                return F.dropout(weights, dropout).to(v.dtype) @ v
            return F.scaled_dot_product_attention(q, k, v, mask, dropout)
        if t == s:
            return F.scaled_dot_product_attention(q, k, v, None, dropout, is_causal=True)
        return F.scaled_dot_product_attention(q, k, v, mask_TS, dropout)

    def weigh(
        self, q: Tensor, k: Tensor, bias: Tensor | None, scene: Scene
    ) -> tuple[Tensor, Tensor]:
        """Logits and attention weights of what ``sight`` returned, without a fused kernel."""
        content = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
        logits = self.encoding.logits(content, q, k, scene)
        if bias is not None:
            logits = logits + bias
        return logits, self.encoding.weights(logits, scene.mask_TS)

    def _eager(self, q: Tensor, k: Tensor, bias: Tensor | None, scene: Scene) -> tuple[Tensor, Any]:
        pe = self.encoding
        _, weights = self.weigh(q, k, bias, scene)
        dropped = F.dropout(weights, self.dropout, self.training)
        mixed = dropped.to(scene.v_BHSD.dtype) @ scene.v_BHSD
        added = pe.values(dropped, scene.pos_q_BT, scene.pos_k_BS)
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

    def __init__(self, cfg: ModelConfig, encoding: PositionalEncoding) -> None:
        super().__init__()
        norm = nn.RMSNorm if cfg.norm == "rmsnorm" else nn.LayerNorm
        self.pre = cfg.norm_position == "pre"
        self.attention, self.ff = Attention(cfg, encoding), FeedForward(cfg)
        self.norm_attention, self.norm_ff = norm(cfg.d_model), norm(cfg.d_model)
        self.dropout = nn.Dropout(cfg.dropout)

    def forward(
        self, x: Tensor, pos_BS: Tensor, mask_TS: Tensor, carried: Any, cache: LayerCache | None
    ) -> tuple[Tensor, Any]:
        pe = self.attention.encoding
        x = pe.enter(x, pos_BS[:, -x.shape[1] :])
        if self.pre:
            a, carried = self.attention(self.norm_attention(x), pos_BS, mask_TS, carried, cache)
            x = x + self.dropout(a)
            h = self.norm_ff(x)
            return x + self.dropout(self.ff(h)), pe.pass_on(carried, h)
        a, carried = self.attention(x, pos_BS, mask_TS, carried, cache)
        x = self.norm_attention(x + self.dropout(a))
        return self.norm_ff(x + self.dropout(self.ff(x))), pe.pass_on(carried, x)


class Transformer(nn.Module):
    """Tokens to hidden states (``forward``), hidden states to logits (``unembed``).

    ``encodings`` holds one encoding for each layer, the same object where layers share it;
    the first one's ``embed`` is called on the token embeddings.
    """

    def __init__(
        self, cfg: ModelConfig, vocab_size: int, encodings: list[PositionalEncoding]
    ) -> None:
        super().__init__()
        self.tied = cfg.tied_embeddings
        self.tokens = nn.Embedding(vocab_size, cfg.d_model)
        self.dropout = nn.Dropout(cfg.dropout)
        self.blocks = nn.ModuleList(Block(cfg, encoding) for encoding in encodings)
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

    def forward(self, tokens_BT: Tensor, pos_BS: Tensor, cache: Cache | None = None) -> Tensor:
        """(B, T) tokens and the positions of all S tokens so far to hidden states (B, T, E)."""
        tokens_BS = tokens_BT if cache is None else cache.extend(tokens_BT)
        t, s = tokens_BT.shape[1], tokens_BS.shape[1]
        x = self.tokens(tokens_BS)
        if self.tied:
            x = x * math.sqrt(x.shape[-1])
        # An encoding of the input may look at the tokens before, so it sees them all.
        x = self.dropout(self.encodings[0].embed(x, tokens_BS, pos_BS)[:, s - t :])
        seen = torch.arange(s, device=x.device)
        mask_TS = seen[None, :] <= seen[s - t :, None]
        carried = None
        for i, block in enumerate(self.blocks):
            x, carried = block(x, pos_BS, mask_TS, carried, cache and cache.layers[i])
        hidden: Tensor = self.norm(x)
        return hidden

    def unembed(self, hidden: Tensor) -> Tensor:
        """(.., E) hidden states to (.., V) logits."""
        logits: Tensor = self.head(hidden)
        return logits
