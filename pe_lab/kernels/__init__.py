"""C++ kernels of attention. Without this folder the program is right, and slower.

A kernel never holds a (T, S) matrix. Value and gradient equal the plain code's up to rounding; so
do dropped weights in distribution, but their mask is hashed from a seed instead of drawn.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pe_lab.kernels import cope, distance, path
from pe_lab.kernels.call import Dropout
from pe_lab.models.attention import Attention
from pe_lab.models.normalizers import Softmax
from pe_lab.pe.base import AttentionInputs, PositionalEncoding
from pe_lab.pe.combined import Combined
from pe_lab.pe.cope import CoPE, TablePositions
from pe_lab.pe.fox import FoX
from pe_lab.pe.functional import is_traced
from pe_lab.pe.path import PaTH

BY_LOGITS: dict[Any, Callable[..., Tensor | None]] = {
    CoPE.logits: cope.attend,
    FoX.logits: distance.attend,
    PaTH.logits: path.attend,
}


def use_kernels(model: nn.Module) -> None:
    """Replace ``attend`` of every attention, in place, by one that uses kernels, and dropout by one
    with cheaper masks."""
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.forward = partial(drop, module)  # type: ignore[method-assign]
        if isinstance(module, Attention) and type(module).attend is Attention.attend:
            module.attend = partial(attend, module)  # type: ignore[method-assign]


def drop(dropout: nn.Dropout, x: Tensor) -> Tensor:
    """``dropout(x)``, each mask bit from 16 random bits: PyTorch draws a number for each, which
    takes four times as long on a CPU."""
    if not (x.is_cpu and dropout.training and dropout.p) or is_traced(x):
        return nn.Dropout.forward(dropout, x)
    drawn = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = drawn.view(torch.int16)[: x.numel()].view(x.shape)
    dropped = min(round(dropout.p * 2**16), 2**16 - 1)
    return x * (bits >= dropped - 2**15).to(x.dtype).div_(1 - dropped / 2**16)


def attend(attention: Attention, inputs: AttentionInputs) -> tuple[Tensor, Any]:
    """``attention.attend`` by a kernel, or by the plain code where none serves."""
    mixed = attend_by_kernel(attention, inputs)
    if mixed is None:
        return Attention.attend(attention, inputs)
    return mixed, inputs.carried


def attend_by_kernel(attention: Attention, inputs: AttentionInputs) -> Tensor | None:
    """The averaged values, (B, H, T, D); None where no kernel serves."""
    v, encoding = inputs.v_BHSD, attention.encoding
    if is_traced(v):
        return None
    plain_softmax = type(attention.normalizer) is Softmax and attention.window is None
    # PyTorch is faster for a single query, as in decoding: kernels compute blocks of them.
    if not (plain_softmax and v.is_cpu and v.numel() and inputs.q_BHTD.shape[2] > 1):
        return None
    if isinstance(encoding, Combined) and len(encoding.attention_parts()) == 1:
        (encoding,) = encoding.attention_parts()
    kernel = kernel_of(encoding)
    if kernel is None:
        return None
    q, k = encoding.rotate(inputs.q_BHTD, inputs.k_BHSD, inputs)
    if k.shape != v.shape or {q.dtype, k.dtype, v.dtype} not in ({torch.float32}, {torch.float64}):
        return None
    dropped = Dropout.draw(attention.p if attention.training else 0.0)
    return kernel(encoding, q, k, inputs, dropped)


def kernel_of(encoding: PositionalEncoding) -> Callable[..., Tensor | None] | None:
    """The kernel that equals the hooks of an encoding. None for one that overrides others."""
    hooks = encoding.hooks() - {"embed", "block_input", "rotate"}
    if not hooks or (hooks == {"bias"} and encoding.bias_by_distance):
        return distance.attend
    if hooks != {"logits"}:
        return None
    if isinstance(encoding, CoPE) and not encoding.counts and encoding.relative is None:
        return distance.attend
    if isinstance(encoding, CoPE) and (
        encoding.relative is not None or type(encoding.position) is not TablePositions
    ):
        return None
    return BY_LOGITS.get(type(encoding).logits)
