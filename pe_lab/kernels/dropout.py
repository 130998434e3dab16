"""Dropout with a mask that depends on a key, in one pass where the C++ kernel is available."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pe_lab.common.dropout import Drop
from pe_lab.kernels import dispatch
from pe_lab.kernels.selfcheck import cpu_kernel_passes


@dataclass(frozen=True)
class FusedDrop(Drop):
    """``Drop`` by the kernel."""

    def __call__(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        return dropout(x, self, rows)


def dropout(
    x: Tensor, drop: Drop, rows: Tensor | None = None, residual: Tensor | None = None
) -> Tensor:
    """``drop(x, rows)``, added to ``residual`` if there is one."""
    if residual is not None:
        x = x.to(residual.dtype)
    if _supported(drop, x, rows, residual):
        from pe_lab.kernels.cpu import dropout as cpu

        return cpu.dropout(x, drop, rows, residual)
    if residual is None:
        return Drop.__call__(drop, x, rows)
    # One pass forward, and one back.
    kept = drop.kept_of(x, rows).view(torch.uint8).to(x.dtype)
    return torch.addcmul(residual, x, kept, value=drop.scale)


def _supported(drop: Drop, x: Tensor, *others: Tensor | None) -> bool:
    from pe_lab.kernels.cpu.dropout import check

    readable = dispatch.cpu_kernels_may_read(x, *others, drop=drop)
    return readable and cpu_kernel_passes("dropout", x.dtype, check)
