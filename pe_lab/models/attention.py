"""Causal attention, each step of which is a hook of a positional encoding (see pe/base.py).

Shape letters as in pe/base.py; W width of the values.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_lab.core.dropout import Drop, attention_rows
from pe_lab.models.base import ScoredPositions, TransformerSizes
from pe_lab.models.conv import PARTS, CausalConv
from pe_lab.models.entmax import AdaptiveScale, entmax15
from pe_lab.models.kv_cache import LayerCache
from pe_lab.pe.base import AttentionInputs, PositionalEncoding
from pe_lab.pe.functional import additive

LOGN_START = 0.43
"""s of scalable softmax at first: the value of the paper's figure 1."""
QK_NORM_EPS = 1e-6
"""Of Qwen3 and Gemma 3."""
LOGN_SLOPE = 0.1
"""How fast the steps of ``logn`` grow: attn_scale of Llama 4, beta of Ministral 3."""


class Attention(nn.Module):
    """Causal attention with a positional encoding.

    A query sees itself and all tokens before it, or as many as the narrower of the model's and
    the encoding's window holds. Subclasses define the projections of queries, keys and values; this
    class itself is the attention of projections made elsewhere (``attend``).

    Args:
        scaled_heads: the number of heads if logits are multiplied by s_h log n (scalable softmax,
            ``logn: learned``), n the number of keys that the query sees; None: they are not.
        every: the N of the factor 1 + 0.1 ln(1 + floor(n / N)) of logits, n the number of tokens
            up to the query; None: no such factor.
        conv: the convolution that ``project`` applies to queries, keys and values; None: none.
    """

    out: nn.Module
    """The output projection."""
    sink: nn.Parameter | None
    """(H,): a logit of each head in the denominator of softmax alone. None without model.sink."""
    sparse: bool
    """Whether weights are those of 1.5-entmax."""
    scale: AdaptiveScale | None
    """The temperature of ASEntmax. None for any other normalizer."""
    gate: nn.Linear | None
    """The projection whose sigmoid multiplies the averaged values. None without one."""

    def __init__(
        self,
        window: int | None,
        encoding: PositionalEncoding,
        scaled_heads: int | None = None,
        conv: CausalConv | None = None,
        every: int | None = None,
    ) -> None:
        super().__init__()
        self.logn: nn.Parameter | None = None
        self.sink: nn.Parameter | None = None
        self.gate: nn.Linear | None = None
        self.scale: AdaptiveScale | None = None
        self.sparse = False
        self.every = every
        if scaled_heads is not None:
            self.logn = nn.Parameter(torch.full((scaled_heads,), LOGN_START))
        windows = [w for w in (window, encoding.window) if w is not None]
        self.window = min(windows, default=None)
        self.encoding, self.conv = encoding, conv

    def project(self, x_BTE: Tensor, queries: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of the last ``queries`` tokens (None: of all), keys and values, (B, H, T, D) and
        (B, H, T, W). ``attend`` alone needs none."""
        raise NotImplementedError

    def empty_cache(self) -> LayerCache:
        """The key cache before the first token."""
        return LayerCache()

    def forward(
        self,
        x_BTE: Tensor,
        pos_BS: Tensor,
        carried: Any = None,
        cache: LayerCache | None = None,
        drop: Drop | None = None,
        scored: ScoredPositions | None = None,
    ) -> tuple[Tensor, Any]:
        """Attention of the T tokens to themselves and to the S - T tokens in the cache.

        Args:
            x_BTE: the input of the layer, normalised where the model does so.
            pos_BS: positions of all S tokens.
            carried: the ``layer_state`` of the encoding of the layer below.
            drop: dropout of the attention weights.
            scored: the tokens whose output is needed; None: all.

        Returns:
            The output (B, T, E), or (N, E) of the scored tokens, and the ``layer_state`` of this
            layer's encoding.
        """
        t, queries = x_BTE.shape[1], None
        if scored is not None and self.encoding.whole_sequence is None:
            queries = t - scored.first
        inputs = self.inputs(x_BTE, pos_BS, carried, queries, cache)
        mixed, carried = self.attend(inputs, pos_BS, cache, drop)
        features = heads_to_features(mixed)
        if self.gate is not None:
            features = features * self.gate(x_BTE[:, -features.shape[1] :]).sigmoid()
        if scored is not None:
            features = scored.pick(features, t)
        return self.out(features), last_tokens(carried, t)

    def inputs(
        self,
        x_BTE: Tensor,
        pos_BS: Tensor,
        carried: Any,
        queries: int | None = None,
        cache: LayerCache | None = None,
    ) -> AttentionInputs:
        """The projections of the T tokens, with everything else that the encoding may read;
        ``queries`` as in ``project``. A convolution reads the last tokens in the cache."""
        t = x_BTE.shape[1]
        if self.conv is None or cache is None:
            q, k, v = self.project(x_BTE, queries)
        else:
            recent = cache.with_recent(x_BTE, self.conv.reach)
            q, k, v = (part[:, :, -t:] for part in self.project(recent))
        pos_BT = last_positions(pos_BS, t)
        pos_q = last_positions(pos_BT, q.shape[2])
        return AttentionInputs(x_BTE, q, k, v, pos_q, pos_BT, carried, self.window)

    def attend(
        self, inputs: AttentionInputs, pos_BS: Tensor, cache: LayerCache | None, drop: Drop | None
    ) -> tuple[Tensor, Any]:
        """The averaged values, (B, H, T, W), and the ``layer_state``."""
        return self.mix(*self.rotate(inputs, pos_BS, cache), drop)

    def rotate(
        self, new: AttentionInputs, pos_BS: Tensor, cache: LayerCache | None
    ) -> tuple[Tensor, Tensor, AttentionInputs]:
        """Rotated queries and keys, the cached tokens first. Keys whose rotation depends on their
        position alone are cached after it."""
        if cache is None:
            return *self.encoding.rotate(new.q_BHTD, new.k_BHSD, new), new
        inputs = cache.extend(new, pos_BS)
        if not self.encoding.rotates_by_position:
            return *self.encoding.rotate(inputs.q_BHTD, inputs.k_BHSD, inputs), inputs
        q, k = self.encoding.rotate(new.q_BHTD, new.k_BHSD, new)
        return q, inputs.k_BHSD if k is new.k_BHSD else cache.rotated.extend(k), inputs

    def mix(
        self, q: Tensor, k: Tensor, inputs: AttentionInputs, drop: Drop | None
    ) -> tuple[Tensor, Any]:
        """As ``attend``, of rotated queries and keys."""
        _, weights = self.weights(q, k, inputs)
        return self.average(weights, inputs, drop), self.encoding.layer_state(weights, inputs)

    def weights(self, q: Tensor, k: Tensor, inputs: AttentionInputs) -> tuple[Tensor, Tensor]:
        """Logits and attention weights (B, H, T, S) of rotated queries and keys."""
        content = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
        logits = self.encoding.logits(content, q, k, inputs)
        bias = self.encoding.bias(inputs.pos_q_BT, inputs.pos_k_BS)
        if bias is not None:
            logits = logits + bias
        if self.scales_logits:
            logits = logits * self.growth(q.shape[2], k.shape[2])
        if self.scale is not None:
            t, s = q.shape[2], k.shape[2]
            logits = logits * self.scale(inputs.x_BSE[:, -t:], self.keys_seen(t, s))
        return logits, self.normalize(logits, inputs)

    @property
    def scales_logits(self) -> bool:
        """Whether logits are multiplied by ``growth``."""
        return self.logn is not None or self.every is not None

    def growth(self, t: int, s: int) -> Tensor:
        """The factor of the logits of the last t of s tokens, (H or 1, T, 1)."""
        if self.logn is not None:
            return self.logn[:, None, None] * self.keys_seen(t, s).log()
        assert self.every is not None
        return 1 + LOGN_SLOPE * (self.tokens_up_to(t, s) // self.every).log1p()[None]

    def tokens_up_to(self, t: int, s: int) -> Tensor:
        """How many tokens there are up to each of the last t of s, itself included, (T, 1)."""
        device = next(self.parameters()).device
        return torch.arange(s - t + 1, s + 1, device=device)[:, None]

    def keys_seen(self, t: int, s: int) -> Tensor:
        """How many keys the last t of s tokens see, (T, 1)."""
        n_T1 = self.tokens_up_to(t, s)
        return n_T1 if self.window is None else n_T1.clamp(max=self.window)

    def normalize(self, logits_BHTS: Tensor, inputs: AttentionInputs) -> Tensor:
        """Attention weights from logits: softmax, or what the encoding replaces it with."""
        if self.sparse:
            return entmax15(logits_BHTS, inputs.mask_TS)
        if self.sink is None:
            return self.encoding.normalize(logits_BHTS, inputs.mask_TS)
        seen_BHTS = logits_BHTS + additive(inputs.mask_TS, logits_BHTS.dtype)
        sink_BHT1 = self.sink.to(seen_BHTS.dtype)[:, None, None].expand(*seen_BHTS.shape[:3], 1)
        return torch.cat((seen_BHTS, sink_BHT1), -1).softmax(-1)[..., :-1]

    def average(
        self,
        weights: Tensor,
        inputs: AttentionInputs,
        drop: Drop | None,
        rows_BHT: Tensor | None = None,
    ) -> Tensor:
        """Values averaged by the weights after dropout, (B, H, T, W); ``rows_BHT`` are the row
        numbers for dropout, if the queries are not the last tokens of the sequence."""
        if drop is not None:
            weights = drop(weights, attention_rows(weights) if rows_BHT is None else rows_BHT)
        mixed = weights.to(inputs.v_BHSD.dtype) @ inputs.v_BHSD
        added = self.encoding.values(weights, inputs)
        return mixed if added is None else mixed + added


class MultiHeadAttention(Attention):
    """Attention of several heads, each of width E / H (Vaswani 2017)."""

    def __init__(self, cfg: TransformerSizes, encoding: PositionalEncoding) -> None:
        first, end = PARTS.get(cfg.conv_place, (0, 0))
        conv = cfg.new_conv(cfg.conv_place, (end - first) * cfg.d_model) if end else None
        self.convolved = slice(first * cfg.d_model, end * cfg.d_model)
        super().__init__(cfg.window, encoding, cfg.scaled_heads(cfg.n_heads), conv, cfg.logn_every)
        self.n_heads = cfg.n_heads
        self.qkv = nn.Linear(cfg.d_model, 3 * cfg.d_model)
        self.out: nn.Linear = nn.Linear(cfg.d_model, cfg.d_model)
        self.sparse = cfg.normalizer is not None
        if cfg.normalizer == "asentmax":
            self.scale = AdaptiveScale(cfg.d_model, cfg.n_heads)
        if cfg.sink:
            self.sink = nn.Parameter(torch.zeros(cfg.n_heads))
        if cfg.output_gate:
            self.gate = nn.Linear(cfg.d_model, cfg.d_model, bias=False)
        self.norms = None
        if cfg.qk_norm:
            width = cfg.d_model // cfg.n_heads
            self.norms = nn.ModuleList(nn.RMSNorm(width, eps=QK_NORM_EPS) for _ in "qk")

    def project(self, x_BTE: Tensor, queries: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        if self.conv is not None:
            # The first query reads queries before it.
            qkv, part = wide(self.qkv(x_BTE)), self.convolved
            parts = qkv[..., : part.start], self.conv(qkv[..., part]), qkv[..., part.stop :]
            whole = parts[1].shape == qkv.shape
            q, k, v = (parts[1] if whole else torch.cat(parts, -1)).chunk(3, -1)
            q = q[:, -(queries or 0) :]
        elif queries is None or queries == x_BTE.shape[1]:
            q, k, v = wide(self.qkv(x_BTE)).chunk(3, -1)
        else:
            e, weight, bias = x_BTE.shape[-1], self.qkv.weight, self.qkv.bias
            q = wide(F.linear(x_BTE[:, -queries:], weight[:e], bias[:e]))
            k, v = wide(F.linear(x_BTE, weight[e:], bias[e:])).chunk(2, -1)
        q, k, v = (features_to_heads(y, self.n_heads) for y in (q, k, v))
        if self.norms is not None:
            q, k = (norm(y) for norm, y in zip(self.norms, (q, k), strict=True))
        return q, k, v


def wide(x: Tensor) -> Tensor:
    """On a CPU, in at least float32: small products in half precision are slow there."""
    return x.to(torch.promote_types(x.dtype, torch.float32)) if x.is_cpu else x


def features_to_heads(x_BTE: Tensor, n_heads: int) -> Tensor:
    """(B, T, H D) to (B, H, T, D)."""
    return x_BTE.view(*x_BTE.shape[:2], n_heads, -1).transpose(1, 2)


def heads_to_features(x_BHTD: Tensor) -> Tensor:
    """(B, H, T, D) to (B, T, H D)."""
    return x_BHTD.transpose(1, 2).flatten(-2)


def last_positions(pos_BS: Tensor, t: int) -> Tensor:
    """Positions of the last t tokens. The same tensor if these are all: encodings cache what they
    computed from a tensor of positions."""
    return pos_BS if t == pos_BS.shape[1] else pos_BS[:, -t:]


def last_tokens(carried: Any, t: int) -> Any:
    """An encoding's state for the last t tokens; with a cache it may hold previous ones too."""
    return carried[:, -t:] if isinstance(carried, Tensor) else carried
