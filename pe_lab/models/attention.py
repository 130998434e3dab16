"""Causal attention, each step of which is a hook of a positional encoding (see pe/base.py).

Shape letters as in pe/base.py; W width of the values.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_lab.models.base import Mixer
from pe_lab.models.config import TransformerSizes
from pe_lab.models.conv import PARTS, CausalConv
from pe_lab.models.kv_cache import LayerCache
from pe_lab.models.normalizers import Softmax
from pe_lab.pe.base import AttentionInputs, PositionalEncoding


class Attention(Mixer):
    """Causal attention. Subclasses define the projections of the layer's input.

        q, k    = rotate(q, k)
        logits  = logits(q . k / sqrt(D)) + bias(i, j)                   (B, H, T, S)
        weights = normalizer(logits)
        kept    = dropout(weights)
        mixed   = kept @ v + values(kept)                                (B, H, T, W)
        carried = layer_state(weights)                                   to the next layer

    A query sees itself and all keys before it, or as many as the narrower of the model's and the
    encoding's window holds.

    Args:
        normalizer: (logits, inputs) to weights, unless the encoding has a ``normalize`` of its own.
        dropout: of the weights.
    """

    project: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
    """(B, T, E) to queries and keys (B, H, T, D), and values (B, H, T, W)."""
    conv: CausalConv | None
    gate: nn.Linear | None

    def __init__(
        self,
        encoding: PositionalEncoding,
        window: int | None = None,
        normalizer: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.encoding, self.p = encoding, dropout
        windows = [w for w in (window, encoding.window) if w is not None]
        self.window = min(windows, default=None)
        self.normalizer = Softmax() if normalizer is None else normalizer

    def forward(
        self, x_BTE: Tensor, pos_BS: Tensor, carried: Any = None, cache: LayerCache | None = None
    ) -> tuple[Tensor, Any]:
        """Attention of the T tokens to themselves and to the S - T tokens in the cache."""
        inputs = self.inputs(x_BTE, pos_BS, carried, cache)
        mixed, carried = self.attend(inputs if cache is None else cache.extend(inputs, pos_BS))
        features = mixed.transpose(1, 2).flatten(-2)
        if self.gate is not None:
            features = features * self.gate(x_BTE).sigmoid()
        # With a cache, the state may hold previous tokens too.
        last = carried[:, -x_BTE.shape[1] :] if isinstance(carried, Tensor) else carried
        return self.out(features), last

    def inputs(
        self, x_BTE: Tensor, pos_BS: Tensor, carried: Any, cache: LayerCache | None = None
    ) -> AttentionInputs:
        """The projections of the T tokens, with everything else that the encoding may read."""
        t = x_BTE.shape[1]
        if cache is None or self.conv is None:
            q, k, v = self.project(x_BTE)
        else:
            recent = cache.with_recent(x_BTE, self.conv.reach)
            q, k, v = (part[:, :, -t:] for part in self.project(recent))
        pos_BT = last_positions(pos_BS, t)
        return AttentionInputs(x_BTE, q, k, v, pos_BT, pos_BT, carried, self.window)

    def attend(self, inputs: AttentionInputs) -> tuple[Tensor, Any]:
        """The averaged values (B, H, T, W), and what the encoding passes to the next layer."""
        if not inputs.q_BHTD.numel():
            return inputs.v_BHSD[:, :, : inputs.q_BHTD.shape[2]], inputs.carried
        q, k = self.encoding.rotate(inputs.q_BHTD, inputs.k_BHSD, inputs)
        _, weights = self.weights(q, k, inputs)
        return self.average(weights, inputs), self.encoding.layer_state(weights, inputs)

    def weights(self, q: Tensor, k: Tensor, inputs: AttentionInputs) -> tuple[Tensor, Tensor]:
        """Logits and attention weights (B, H, T, S) of rotated queries and keys."""
        logits = self.encoding.logits((q * q.shape[-1] ** -0.5) @ k.mT, q, k, inputs)
        bias = self.encoding.bias(inputs.pos_q_BT, inputs.pos_k_BS)
        logits = logits if bias is None else logits + bias
        return logits, self.normalize(logits, inputs)

    def normalize(self, logits: Tensor, inputs: AttentionInputs) -> Tensor:
        """Attention weights from logits."""
        weights = self.encoding.normalize(logits, inputs.mask_TS)
        return self.normalizer(logits, inputs) if weights is None else weights

    def average(self, weights: Tensor, inputs: AttentionInputs) -> Tensor:
        """The values averaged by the weights after dropout, (B, H, T, W)."""
        weights = F.dropout(weights, self.p, self.training)
        mixed = weights.to(inputs.v_BHSD.dtype) @ inputs.v_BHSD
        added = self.encoding.values(weights, inputs)
        return mixed if added is None else mixed + added


class MultiHeadAttention(Attention):
    """Attention of several heads, each of width E / H (Vaswani 2017)."""

    out: nn.Linear

    def __init__(self, cfg: TransformerSizes, encoding: PositionalEncoding) -> None:
        super().__init__(encoding, cfg.window, dropout=cfg.dropout)
        e = cfg.d_model
        first, end = (e * part for part in PARTS[cfg.conv_place])
        self.n_heads, self.convolved = cfg.n_heads, slice(first, end)
        self.conv = cfg.new_conv(cfg.conv_place, end - first) if end else None
        self.qkv, self.out = nn.Linear(e, 3 * e), nn.Linear(e, e)
        # After qkv and out: its weights are drawn from the same random stream.
        self.normalizer = cfg.new_normalizer(cfg.n_heads)
        self.gate = nn.Linear(e, e, bias=False) if cfg.output_gate else None
        # The epsilon of Qwen3 and Gemma 3.
        norms = (nn.RMSNorm(e // cfg.n_heads, eps=1e-6) for _ in "qk")
        self.norms = nn.ModuleList(norms) if cfg.qk_norm else None

    def initial_linears(self) -> tuple[list[nn.Linear], list[nn.Linear]]:
        last = [child for child in self.normalizer.children() if isinstance(child, nn.Linear)]
        return [self.qkv, self.out], last if self.gate is None else [self.gate, *last]

    def project(self, x_BTE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        qkv = wide(self.qkv(x_BTE))
        if self.conv is not None:
            part, plain = self.convolved, qkv
            qkv = self.conv(plain[..., part])
            if qkv.shape != plain.shape:
                qkv = torch.cat((plain[..., : part.start], qkv, plain[..., part.stop :]), -1)
        q, k, v = (features_to_heads(y, self.n_heads) for y in qkv.chunk(3, -1))
        if self.norms is not None:
            q, k = (norm(y) for norm, y in zip(self.norms, (q, k), strict=True))
        return q, k, v


def wide(x: Tensor) -> Tensor:
    """On a CPU, in at least float32: small products in half precision are slow there."""
    return x.to(torch.promote_types(x.dtype, torch.float32)) if x.is_cpu else x


def features_to_heads(x_BTE: Tensor, n_heads: int) -> Tensor:
    """(B, T, H D) to (B, H, T, D)."""
    return x_BTE.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def last_positions(pos_BS: Tensor, t: int) -> Tensor:
    """Positions of the last t tokens."""
    return pos_BS[:, pos_BS.shape[1] - t :]
