"""Queries, keys and values of all heads by one linear map, and their gradients back into one."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pe_lab.kernels import dispatch
from pe_lab.kernels.cpu import bias_relu


def project_qkv(
    x_BTE: Tensor, weight: Tensor, bias: Tensor, heads: int
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Queries, keys and values, (B, H, T, D) each, of x weight^T + bias; None where no
    kernel supports it."""
    alike = x_BTE.dtype == weight.dtype == bias.dtype and not torch.is_autocast_enabled("cpu")
    # For a single token, in decoding, the call costs more than the passes.
    decoded = torch.is_inference_mode_enabled() and x_BTE.shape[1] == 1
    readable = alike and not decoded and dispatch.cpu_kernels_may_read(x_BTE, weight, bias)
    if not (readable and bias_relu.available(x_BTE.dtype)):
        return None
    parts: tuple[Tensor, Tensor, Tensor] = _Projected.apply(x_BTE, weight, bias, heads)  # type: ignore[no-untyped-call]
    return parts


class _Projected(torch.autograd.Function):
    """Gradients laid out as ``ctypes_abi.thirds`` does are one matrix already."""

    @staticmethod
    def forward(
        ctx: Any, x_BTE: Tensor, weight: Tensor, bias: Tensor, heads: int
    ) -> tuple[Tensor, ...]:
        b, t, e = x_BTE.shape
        rows = x_BTE.reshape(-1, e)
        qkv = rows @ weight.t()
        bias_relu.add_bias(qkv, bias)
        ctx.save_for_backward(rows, weight)
        return qkv.view(b, t, 3, heads, -1).permute(2, 0, 3, 1, 4).unbind()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        b, _, t, _ = grads[0].shape
        grad = _one_matrix(grads)
        return (
            (grad @ weight).view(b, t, -1),
            grad.t() @ rows,
            bias_relu.bias_gradient(grad),
            None,
        )


def _one_matrix(parts: tuple[Tensor, ...]) -> Tensor:
    """(B T, 3 H D) of three (B, H, T, D)."""
    b, h, t, d = parts[0].shape
    width = h * d
    places = [(g.untyped_storage().data_ptr(), g.storage_offset(), g.stride()) for g in parts]
    storage, start, _ = places[0]
    strides = (3 * t * width, d, 3 * width, 1)
    if places == [(storage, start + n * width, strides) for n in range(3)]:
        return parts[0].as_strided((b * t, 3 * width), (3 * width, 1))
    return torch.stack([g.transpose(1, 2) for g in parts], 2).view(b * t, 3 * width)
