"""Attention, which asks its encoding at every hook between its input and its output.

Shape letters as in pe/base.py.
"""

from abc import ABC, abstractmethod
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_lab.common.dropout import Drop, attention_rows
from pe_lab.kernels import dispatch
from pe_lab.kernels.cpu.qkv import project_qkv
from pe_lab.kernels.dropout import dropout
from pe_lab.models.kv_cache import LayerCache
from pe_lab.models.scored_positions import ScoredPositions
from pe_lab.pe.base import AttentionInputs, PositionalEncoding, additive


class Sized(Protocol):
    """What attention reads of a model's configuration."""

    @property
    def n_heads(self) -> int: ...

    @property
    def d_model(self) -> int: ...

    @property
    def window(self) -> int | None: ...


class Attention(nn.Module, ABC):
    """Causal attention that asks its encoding at every hook. A query sees the whole past, or as
    much as the narrower window of the model's and the encoding's shows. What queries, keys and
    values are made of is a subclass's, and so is ``out``, which takes the values mixed."""

    out: nn.Module

    def __init__(self, window: int | None, encoding: PositionalEncoding, fast: bool) -> None:
        super().__init__()
        windows = [w for w in (window, encoding.window) if w is not None]
        self.window = min(windows, default=None)
        self.encoding = encoding
        self.fast = fast
        self.learned_bias = "bias" in encoding.hooks() and any(True for _ in encoding.parameters())

    @abstractmethod
    def project(self, x_BTE: Tensor, queries: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, T, D) of the last ``queries`` tokens, keys (B, H, S, D) and values
        (B, H, S, W) of all."""

    def empty_cache(self) -> LayerCache:
        """What it remembers of no tokens."""
        return LayerCache()

    def normalised(self, logits_BHTS: Tensor, inputs: AttentionInputs) -> Tensor:
        """Attention weights from logits."""
        if inputs.sees_all and "normalize" not in self.encoding.hooks():
            # A decoded token would wait longer for the mask than for the softmax.
            return logits_BHTS.softmax(-1)
        return self.encoding.normalize(logits_BHTS, inputs.mask_TS)

    def forward(
        self,
        x_BTE: Tensor,
        pos_BS: Tensor,
        queries: int,
        carried: Any,
        cache: LayerCache | None,
        drop: Drop | None = None,
        scored: ScoredPositions | None = None,
        out: bool = True,
    ) -> tuple[Tensor, Any]:
        """What ``out`` makes of the mixed values, (B, T, ..), or (N, ..) of the scored places;
        and what the next layer's encoding finds in ``AttentionInputs.carried``.

        Args:
            queries: how many of the T tokens, the last, ask; all, or those from the first scored
                place on.
            out: False: the mixed values, which the caller hands to ``out``.
        """
        mixed, inputs = None, self.given(x_BTE, pos_BS, queries, carried)
        if cache is None and self.kernels_serve(inputs):
            mixed, carried = self.encoding.attend_turning(inputs, drop), inputs.carried
        if mixed is None:
            q, k, inputs = self.compared(inputs, pos_BS, cache)
            mixed, carried = self.in_one_go(q, k, inputs, drop), inputs.carried
        if mixed is None:
            mixed, carried = self._eager(q, k, inputs, drop)
        if isinstance(carried, Tensor):
            # What this layer has not rewritten still holds the tokens before the given ones.
            carried = carried[:, -x_BTE.shape[1] :]
        mixed_BTE = mixed.transpose(1, 2).flatten(-2)
        if scored is not None:
            rows = scored.of_rows_from(x_BTE.shape[1] - queries, x_BTE.shape[1])
            mixed_BTE = mixed_BTE.flatten(0, 1).index_select(0, rows)
        return self.out(mixed_BTE) if out else mixed_BTE, carried

    def sight(
        self, x_BTE: Tensor, pos_BS: Tensor, queries: int, carried: Any, cache: LayerCache | None
    ) -> tuple[Tensor, Tensor, AttentionInputs]:
        """Queries and keys as they are compared, and what the encoding can see."""
        return self.compared(self.given(x_BTE, pos_BS, queries, carried), pos_BS, cache)

    def given(self, x_BTE: Tensor, pos_BS: Tensor, queries: int, carried: Any) -> AttentionInputs:
        """What the encoding can see of the given tokens alone."""
        q, k, v = self.project(x_BTE, queries)
        # The same tensor where it is the same, so that an encoding sees that.
        pos_T = pos_BS if x_BTE.shape[1] == pos_BS.shape[1] else pos_BS[:, -x_BTE.shape[1] :]
        pos_q = pos_T if queries == x_BTE.shape[1] else pos_BS[:, -queries:]
        return AttentionInputs(x_BTE, q, k, v, pos_q, pos_T, carried, self.window)

    def compared(
        self, given: AttentionInputs, pos_BS: Tensor, cache: LayerCache | None
    ) -> tuple[Tensor, Tensor, AttentionInputs]:
        """``sight`` of what is given, and of what the cache remembers."""
        if cache is None:
            return *self._rotated(given), given
        k, v, x_BSE = cache.extend(given.k_BHSD, given.v_BHSD, given.x_BSE)
        if (len(k), k.shape[2]) != (len(given.k_BHSD), pos_BS.shape[1]):
            raise ValueError(
                f"the cache holds {k.shape[2]} tokens of {len(k)} sequences with those given, and "
                f"there are {pos_BS.shape[1]} positions of {len(given.k_BHSD)}: begin another "
                "sequence with an empty cache"
            )
        carried = cache.extend_carried(given.carried)
        # replace() would take four times as long for each token that is decoded.
        q, pos_q = given.q_BHTD, given.pos_q_BT
        inputs = AttentionInputs(x_BSE, q, k, v, pos_q, pos_BS, carried, self.window)
        if not self.encoding.turns_alone:
            return *self._rotated(inputs), inputs
        q, new = self._rotated(given)
        return q, k if new is given.k_BHSD else cache.extend_turned(new), inputs

    def _rotated(self, inputs: AttentionInputs) -> tuple[Tensor, Tensor]:
        with dispatch.kernels_allowed(self.fast):
            return self.encoding.rotate(inputs.q_BHTD, inputs.k_BHSD, inputs)

    def wide(self, x: Tensor) -> Tensor:
        """On a CPU, small products in half precision are slow."""
        if self.fast and x.is_cpu:
            return x.to(torch.promote_types(x.dtype, torch.float32))
        return x

    def kernels_serve(self, inputs: AttentionInputs) -> bool:
        """Whether an encoding's may: none knows of windows, or of values of another width, and for
        the last token alone, as it is decoded, what PyTorch has is the fastest."""
        decoded = inputs.q_BHTD.shape[2] == 1 and torch.is_inference_mode_enabled()
        like_keys = inputs.v_BHSD.shape[-1] == inputs.k_BHSD.shape[-1]
        return self.fast and self.window is None and like_keys and not decoded

    def in_one_go(
        self, q: Tensor, k: Tensor, inputs: AttentionInputs, drop: Drop | None
    ) -> Tensor | None:
        """``_eager`` by a fused kernel; None where there is none."""
        if not self.fast:
            return None
        like_keys = inputs.v_BHSD.shape[-1] == k.shape[-1]
        sees_all = inputs.sees_all
        if self.kernels_serve(inputs):
            mixed = self.encoding.attend(q, k, inputs, drop)
            if mixed is not None:
                return mixed
        if drop is not None or not self.encoding.fused():
            return None
        # A CPU has none for such values either, and PyTorch's own detour is slower.
        if not (like_keys or q.is_cuda):
            return None
        # PyTorch's own backward is ordered only where it may fail; ours may only warn.
        if q.is_cuda and torch.is_grad_enabled() and torch.are_deterministic_algorithms_enabled():
            return None
        v, whole = inputs.v_BHSD, q.shape[2] == k.shape[2] and self.window is None
        bias = self.encoding.bias(inputs.pos_q_BT, inputs.pos_k_BS)
        if bias is None:
            mask = None if whole or sees_all else inputs.mask_TS
            return F.scaled_dot_product_attention(q, k, v, mask, is_causal=whole)
        # A CPU has no fused kernel with a gradient for the bias, and PyTorch's own detour is
        # slower; half precision would round far biases by up to a quarter.
        if q.dtype != bias.dtype or (self.learned_bias and q.device.type == "cpu"):
            return None
        mask = bias if sees_all else bias + additive(inputs.mask_TS, bias.dtype)
        return F.scaled_dot_product_attention(q, k, v, mask)

    def weigh(self, q: Tensor, k: Tensor, inputs: AttentionInputs) -> tuple[Tensor, Tensor]:
        """Logits and attention weights of what ``sight`` returned, without a fused kernel."""
        content = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
        with dispatch.kernels_allowed(self.fast):
            logits = self.encoding.logits(content, q, k, inputs)
        bias = self.encoding.bias(inputs.pos_q_BT, inputs.pos_k_BS)
        if bias is not None:
            logits = logits + bias
        return logits, self.normalised(logits, inputs)

    def _eager(
        self, q: Tensor, k: Tensor, inputs: AttentionInputs, drop: Drop | None
    ) -> tuple[Tensor, Any]:
        pe = self.encoding
        _, weights = self.weigh(q, k, inputs)
        left = weights
        if drop is not None:
            left = dropout(weights, drop, attention_rows(weights), fast=self.fast)
        mixed = left.to(inputs.v_BHSD.dtype) @ inputs.v_BHSD
        added = pe.values(left, inputs.pos_q_BT, inputs.pos_k_BS)
        return (mixed if added is None else mixed + added), pe.layer_state(weights, inputs)


class MultiHeadAttention(Attention):
    """Every head has queries, keys and values of its own, all of width E / H (Vaswani 2017)."""

    def __init__(self, cfg: Sized, encoding: PositionalEncoding, fast: bool) -> None:
        super().__init__(cfg.window, encoding, fast)
        self.n_heads = cfg.n_heads
        self.qkv = nn.Linear(cfg.d_model, 3 * cfg.d_model)
        self.out: nn.Linear = nn.Linear(cfg.d_model, cfg.d_model)

    def project(self, x_BTE: Tensor, queries: int) -> tuple[Tensor, Tensor, Tensor]:
        if queries == x_BTE.shape[1]:
            found = self._projected(x_BTE)
            if found is not None:
                return found
            q, k, v = self.wide(self.qkv(x_BTE)).chunk(3, -1)
        else:
            e = x_BTE.shape[-1]
            weight, bias = self.qkv.weight, self.qkv.bias
            q = self.wide(F.linear(x_BTE[:, -queries:], weight[:e], bias[:e]))
            k, v = self.wide(F.linear(x_BTE, weight[e:], bias[e:])).chunk(2, -1)
        return self._heads(q), self._heads(k), self._heads(v)

    def _projected(self, x_BTE: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """By a kernel, where there is one."""
        # Who measures attention alone puts something without weights there.
        if not self.fast or not isinstance(self.qkv, nn.Linear):
            return None
        return project_qkv(x_BTE, self.qkv.weight, self.qkv.bias, self.n_heads)

    def _heads(self, x_BTE: Tensor) -> Tensor:
        return x_BTE.view(*x_BTE.shape[:2], self.n_heads, -1).transpose(1, 2)
