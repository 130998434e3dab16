"""``accelerate``, the one call that makes a plain model fast.

It replaces the classes of modules by faster subclasses, in place, as PyTorch's ``fully_shard``
does. Parameters and their names stay the same; numbers stay the same up to rounding. A class that
is not in ``FAST``, such as a user's subclass, is not replaced.

Attention is computed by the fastest code that equals the encoding's hooks: a fused kernel,
PyTorch's scaled_dot_product_attention, or the plain code. Long sequences go through the plain code
in blocks of queries.
"""

from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_lab.core.dropout import Drop
from pe_lab.kernels import dispatch
from pe_lab.kernels.conv import FastCausalConv
from pe_lab.kernels.floater import FastSlope
from pe_lab.kernels.fused import ONLY_ROTATION_AND_BIAS, FusedKernel, kernel_of
from pe_lab.models.attention import Attention, MultiHeadAttention
from pe_lab.models.base import Model
from pe_lab.models.conv import CausalConv
from pe_lab.models.encoder_decoder import FullAttention
from pe_lab.models.gau import SharedKeyAttention
from pe_lab.models.normalizers import Softmax
from pe_lab.pe.base import AttentionInputs, PositionalEncoding
from pe_lab.pe.floater import Slope
from pe_lab.pe.functional import additive

LONG = 2048 * 2048
"""From this many logits of a head on, the plain code goes by blocks of queries."""
BLOCK = 2**20
"""Logits of a block, in all sequences and heads."""


class FastAttention(Attention):
    """``Attention`` that uses kernels. ``choose_kernel`` sets its attributes."""

    kernel: FusedKernel | None
    softmax: bool
    sdpa: bool
    learned_bias: bool
    row_by_row: bool
    chosen_for: tuple[PositionalEncoding]

    def choose_kernel(self) -> None:
        """Set the attributes, which depend on the encoding alone."""
        hooks = self.encoding.hooks()
        # In a tuple, so that it is no second submodule.
        self.chosen_for = (self.encoding,)
        changed = type(self.normalizer) is not Softmax
        self.softmax = "normalize" not in hooks and not changed
        self.sdpa = self.softmax and hooks <= ONLY_ROTATION_AND_BIAS
        self.learned_bias = "bias" in hooks and any(True for _ in self.encoding.parameters())
        # Each query depends on the keys up to it alone, as in decoding.
        self.row_by_row = "layer_state" not in hooks and self.encoding.whole_sequence is None
        # No kernel has windows, sinks, entmax, nor the squares of GAU.
        self.kernel = None if changed or self.window is not None else kernel_of(self.encoding)

    def attend(self, inputs: AttentionInputs) -> tuple[Tensor, Any]:
        drop = Drop(self.p, int(torch.randint(2**62, ()))) if self.training and self.p else None
        if self.chosen_for[0] is not self.encoding:
            self.choose_kernel()
        mixed = None
        kernel = self.kernel if self._fits(inputs) else None
        if kernel is not None:
            q, k = inputs.q_BHTD, inputs.k_BHSD
            mixed = kernel.attend(kernel.rotating, q, k, inputs, drop)
        if mixed is not None:
            return mixed, inputs.carried
        q, k = self.encoding.rotate(inputs.q_BHTD, inputs.k_BHSD, inputs)
        if kernel is not None:
            mixed = kernel.attend(kernel.terms, q, k, inputs, drop)
        if mixed is None and self.sdpa and drop is None:
            mixed = self.by_sdpa(q, k, inputs)
        if mixed is None and self.recomputes(q, k):
            mixed = by_blocks(self, q, k, inputs)
        if mixed is not None:
            return mixed, inputs.carried
        _, weights = self.weights(q, k, inputs)
        return self.average(weights, inputs), self.encoding.layer_state(weights, inputs)

    def normalize(self, logits: Tensor, inputs: AttentionInputs) -> Tensor:
        if inputs.sees_all and self.softmax:
            return logits.softmax(-1)
        return super().normalize(logits, inputs)

    def _fits(self, inputs: AttentionInputs) -> bool:
        """Whether a kernel may be used: values are as wide as keys, and the query is not a single
        decoded token, which PyTorch computes faster."""
        decoded = inputs.q_BHTD.shape[2] == 1 and torch.is_inference_mode_enabled()
        return not decoded and inputs.v_BHSD.shape[-1] == inputs.k_BHSD.shape[-1]

    def by_sdpa(self, q: Tensor, k: Tensor, inputs: AttentionInputs) -> Tensor | None:
        """PyTorch's fused attention; None where it is slower than the plain code."""
        v = inputs.v_BHSD
        if v.shape[-1] != k.shape[-1] and not q.is_cuda:
            return None
        if backward_is_unordered(q):
            return None
        sees_all, whole = inputs.sees_all, q.shape[2] == k.shape[2] and self.window is None
        bias = self.encoding.bias(inputs.pos_q_BT, inputs.pos_k_BS)
        if bias is None:
            mask = None if whole or sees_all else inputs.mask_TS
            return F.scaled_dot_product_attention(q, k, v, mask, is_causal=whole)
        # CPUs have no fused kernel with a gradient of the bias, and half precision would round the
        # bias of far keys by up to a quarter.
        if q.dtype != bias.dtype or (self.learned_bias and q.device.type == "cpu"):
            return None
        mask = bias if sees_all else bias + additive(inputs.mask_TS, bias.dtype)
        return F.scaled_dot_product_attention(q, k, v, mask)

    def recomputes(self, q: Tensor, k: Tensor) -> bool:
        """Whether the plain code goes by blocks of queries."""
        if q.shape[2] == 1 or dispatch.forced(dispatch.EAGER):
            return False
        long = q.shape[2] * k.shape[2] >= LONG or dispatch.forced(dispatch.RECOMPUTE)
        return long and self.row_by_row


class FastMultiHeadAttention(FastAttention, MultiHeadAttention):
    """``MultiHeadAttention`` by kernels."""


class FastSharedKeyAttention(FastAttention, SharedKeyAttention):
    """``SharedKeyAttention`` by kernels."""


class FastFullAttention(FullAttention):
    """``FullAttention`` by PyTorch's fused attention."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        learned = mask is not None and (mask.requires_grad or mask.dtype != q.dtype)
        if not (self.training and self.p) and not learned and not backward_is_unordered(q):
            return F.scaled_dot_product_attention(q, k, v, mask)
        return super().attend(q, k, v, mask)


def backward_is_unordered(q: Tensor) -> bool:
    """Whether PyTorch's fused backward would fail, as it must be deterministic: then it raises an
    error where the plain code may only warn."""
    return q.is_cuda and torch.is_grad_enabled() and torch.are_deterministic_algorithms_enabled()


def by_blocks(
    attention: Attention, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
) -> Tensor:
    """The averaged values, (B, H, T, W), equal to ``attention.average`` of all weights at once, in
    memory that grows with the length and not with its square: the weights of one block of queries
    after another are computed, and computed again in the backward pass. It suits every encoding
    whose decoding equals its whole pass.
    """
    (b, h, t, _), s = q_BHTD.shape, k_BHSD.shape[2]

    def block(first: int, last: int) -> Tensor:
        keys, queries = slice(s - t + last), slice(first, last)
        part = AttentionInputs(
            inputs.x_BSE[:, keys],
            inputs.q_BHTD[:, :, queries],
            inputs.k_BHSD[:, :, keys],
            inputs.v_BHSD[:, :, keys],
            inputs.pos_q_BT[:, queries],
            inputs.pos_k_BS[:, keys],
            inputs.carried,
            inputs.window,
        )
        _, weights = attention.weights(q_BHTD[:, :, queries], k_BHSD[:, :, keys], part)
        return attention.average(weights, part)

    height = max(1, BLOCK // (b * h * s))
    edges = [(first, min(first + height, t)) for first in range(0, t, height)]
    if not torch.is_grad_enabled():
        return torch.cat([block(*edge) for edge in edges], 2)
    # Importing it takes seconds.
    from torch.utils.checkpoint import checkpoint

    outs = [checkpoint(block, *edge, use_reentrant=False) for edge in edges]
    return torch.cat(outs, 2)


Fast = TypeVar("Fast", bound=Model)
FAST: dict[type[nn.Module], type[nn.Module]] = {
    Attention: FastAttention,
    MultiHeadAttention: FastMultiHeadAttention,
    SharedKeyAttention: FastSharedKeyAttention,
    FullAttention: FastFullAttention,
    CausalConv: FastCausalConv,
    Slope: FastSlope,
}


def accelerate(model: Fast) -> Fast:
    """Replace modules and dropout of a model by fast equals, in place; return the model."""
    for module in model.modules():
        module.__class__ = FAST.get(type(module), type(module))
        if isinstance(module, FastAttention):
            module.choose_kernel()
    return model


def backends(model: Model) -> dict[str, str] | None:
    """The backend of each kind of attention in this model that has a kernel. None: the model is not
    fast, or has no attention."""
    found = [m for m in model.modules() if isinstance(m, Attention)]
    kernels = [m.kernel for m in found if isinstance(m, FastAttention)]
    kinds = {kernel.kind for kernel in kernels if kernel is not None}
    return dispatch.backend_names(model.device, kinds) if kernels else None
