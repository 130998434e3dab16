"""Dropout by a fused kernel where there is one: the same mask in one pass."""

import functools
import logging

import torch
from torch import Tensor

from pe_lab.dropout import Drop
from pe_lab.kernels import build, roads

logger = logging.getLogger("pe_lab")


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
    left = drop(x, rows)
    return left if residual is None else residual + left


def _serves(drop: Drop, x: Tensor, *others: Tensor | None) -> bool:
    return (
        roads.reachable(drop, x, *others)
        and x.is_cpu
        and x.dtype in (torch.float32, torch.float64)
        and any(road.name == "compiled" for road in roads.allowed("cpu"))
        and _proved(x.dtype)
    )


@functools.cache
def _proved(dtype: torch.dtype) -> bool:
    """Whether the kernel is there and makes what plain PyTorch makes; a warning if it does not."""
    # It has told why it is not there.
    if build.library("dropped") is None:
        return False
    from pe_lab.kernels import compiled

    drop, rows = Drop(0.4, 2**62 + 2**31 + 5), torch.tensor([2**31 + 1, 3, 11])
    x = torch.arange(1, 106, dtype=dtype).view(3, 35)
    try:
        same = torch.equal(compiled.dropped(x, drop, rows), drop(x, rows))
        # Product and sum are rounded once.
        same &= torch.allclose(compiled.dropped(x, drop, rows, x), x + drop(x, rows))
    except Exception as error:  # whatever it is, slower code can serve
        logger.debug("the compiled dropout failed", exc_info=error)
        same = False
    if not same:
        logger.warning("the compiled dropout does not serve on this machine: slower code does")
    return same
