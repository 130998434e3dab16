"""Dropout with a mask that depends on a key, in one pass where the C++ kernel is available."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pe_lab.core.dropout import Drop
from pe_lab.kernels import dispatch
from pe_lab.kernels.cpu import dropout as cpu
from pe_lab.kernels.selfcheck import cpu_kernel_passes


@dataclass(frozen=True)
class FusedDrop(Drop):
    """``Drop`` by the kernel."""

    def __call__(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        return cpu.dropout(x, self, rows) if _supported(x) else super().__call__(x, rows)


def add_dropout(
    residual: Tensor, x: Tensor, drop: Drop | None, rows: Tensor | None = None
) -> Tensor:
    """``residual + drop(x, rows)``; None: without dropout."""
    if drop is None:
        return residual + x
    x = x.to(residual.dtype)
    if _supported(x):
        return cpu.dropout(x, drop, rows, residual)
    # One pass forward, and one back.
    kept = drop.kept_of(x, rows).view(torch.uint8).to(x.dtype)
    return torch.addcmul(residual, x, kept, value=drop.scale)


def _supported(x: Tensor) -> bool:
    readable = dispatch.cpu_kernels_may_read(x)
    return readable and cpu_kernel_passes("dropout", x.dtype, cpu.check)
