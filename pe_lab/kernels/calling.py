"""What every call of a compiled kernel needs: tensors and dropout as C++ reads them."""

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pe_lab.common.dropout import Drop
from pe_lab.kernels import build

_SUFFIX = {torch.float32: "float", torch.float64: "double"}


class Dropout(ctypes.Structure):
    """dropout.h: what its mask is made of."""

    _fields_ = (
        ("low", ctypes.c_uint32),
        ("high", ctypes.c_uint32),
        ("threshold", ctypes.c_uint32),
        ("scale", ctypes.c_double),
    )

    def __init__(self, drop: Drop | None) -> None:
        if drop is None:
            super().__init__(0, 0, 0, 1.0)
        else:
            super().__init__(int(drop.low), int(drop.high), drop.threshold, drop.scale)


class Strided(ctypes.Structure):
    """blocks.h: a tensor ((parts,) B, H, T, D), or none."""

    _fields_ = (("data", ctypes.c_void_p), ("strides", ctypes.c_int64 * 4))

    def __init__(self, tensor: Tensor | None) -> None:
        if tensor is not None:
            strides = tensor.stride()[:-1]
            # One without elements may have no address, and is not none.
            super().__init__(tensor.data_ptr() or 64, ((0,) * (4 - len(strides)) + strides))


class Turn(ctypes.Structure):
    """turn.h: real numbers (B, H, T, D) by which pairs are turned, or none."""

    _fields_ = (("by", Strided), ("halves", ctypes.c_int64))

    def __init__(self, by: Tensor | None = None, halves: bool = False) -> None:
        super().__init__(Strided(by), int(halves))


@functools.cache
def kernel(source: str, work: str, dtype: torch.dtype) -> Callable[[Any], int]:
    """The function ``<work>_float`` or ``_double`` of a library."""
    library = build.library(source)
    if library is None:
        raise RuntimeError(f"there is no compiled kernel {source}: use another road")
    found: Callable[[Any], int] = getattr(library, f"{work}_{_SUFFIX[dtype]}")
    return found


def call(source: str, work: str, dtype: torch.dtype, problem: ctypes.Structure) -> None:
    """Other Python threads run meanwhile. MemoryError if there is too little scratch memory."""
    if kernel(source, work, dtype)(ctypes.byref(problem)) != 0:
        raise MemoryError(f"too little memory for the compiled kernel {work}")


def check(q: Tensor, k: Tensor, **others: tuple[Tensor, tuple[int, ...]]) -> None:
    """ValueError for tensors of which C++ would read what is not theirs.

    Args:
        q: (B, H, T, D).
        k: (B, H, S, D), T <= S.
        others: what they are called -> the tensor, and the shape it has.
    """
    b, h, t, d = q.shape
    s = k.shape[-2]
    if t > s:
        raise ValueError(f"{t} queries are not the last of {s} tokens")
    for name, (x, shape) in {"q": (q, (b, h, t, d)), "k": (k, (b, h, s, d)), **others}.items():
        if x.shape != shape:
            raise ValueError(f"{name} has the shape {tuple(x.shape)} instead of {shape}")
        if x.dtype != q.dtype or x.dtype not in _SUFFIX or not x.is_cpu:
            raise ValueError(
                f"{name} is of {x.dtype} on {x.device}; all must be float32, or all float64, "
                "on the CPU"
            )


def contiguous_rows(x: Tensor) -> Tensor:
    """x, copied only if its last dimension is not contiguous."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def by_token(*shape: int, like: Tensor) -> Tensor:
    """(.., H, T, D) that lies as (.., T, H, D)."""
    *outer, h, t, d = shape
    return like.new_empty(*outer, t, h, d).transpose(-2, -3)


def thirds(like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Three of the shape (B, H, T, D) that lie side by side, token by token, as queries, keys and
    values come from one linear map (heads.py)."""
    b, h, t, d = like.shape
    q, k, v = like.new_empty(b, t, 3, h, d).permute(2, 0, 3, 1, 4)
    return q, k, v
