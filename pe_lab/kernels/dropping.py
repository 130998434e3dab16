"""Dropout by a fused kernel where there is one: the same mask in one pass."""

import torch
from torch import Tensor

from pe_lab.common.dropout import Drop
from pe_lab.kernels import roads
from pe_lab.kernels.proof import small_kernel


def dropped(
    x: Tensor,
    drop: Drop,
    rows: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    fast: bool = True,
) -> Tensor:
    """``drop(x, rows)``, added to ``residual`` where there is one; not ``fast``: by no kernel."""
    if residual is not None:
        x = x.to(residual.dtype)
    if fast and _serves(drop, x, rows, residual):
        from pe_lab.kernels import compiled

        return compiled.dropped(x, drop, rows, residual)
    if residual is None:
        return drop(x, rows)
    # One pass forward, and one back.
    kept = drop.kept_of(x, rows).view(torch.uint8).to(x.dtype)
    return torch.addcmul(residual, x, kept, value=drop.scale)


def _serves(drop: Drop, x: Tensor, *others: Tensor | None) -> bool:
    return roads.compiled_may(x, *others, drop=drop) and small_kernel("dropped", x.dtype, _proved)


def _proved(dtype: torch.dtype) -> bool:
    from pe_lab.kernels import compiled

    drop, rows = Drop(0.4, 2**62 + 2**31 + 5), torch.tensor([2**31 + 1, 3, 11])
    x = torch.arange(1, 106, dtype=dtype).view(3, 35)
    same = torch.equal(compiled.dropped(x, drop, rows), drop(x, rows))
    # Product and sum are rounded once.
    return same and torch.allclose(compiled.dropped(x, drop, rows, x), x + drop(x, rows))
