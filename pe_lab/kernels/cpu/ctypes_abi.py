"""The arguments of the C++ kernels as ctypes structures, and the call."""

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pe_lab.core.dropout import Drop
from pe_lab.kernels.cpu import build
from pe_lab.kernels.requests import Request

_SUFFIX = {torch.float32: "float", torch.float64: "double"}


class Dropout(ctypes.Structure):
    """dropout.h: key, threshold and scale."""

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
            super().__init__(address(tensor), ((0,) * (4 - len(strides)) + strides))


class Rotary(ctypes.Structure):
    """rotary.h: real factors (B, H, T, D), or none."""

    _fields_ = (("factors", Strided), ("halves", ctypes.c_int64))

    def __init__(self, factors: Tensor | None = None, halves: bool = False) -> None:
        super().__init__(Strided(factors), int(halves))


def address(tensor: Tensor) -> int:
    """Where its data begins; not 0, which would mean that there is no tensor, if it is empty."""
    return tensor.data_ptr() or 64


@functools.cache
def kernel(source: str, function: str, dtype: torch.dtype) -> Callable[[Any], int]:
    """The function ``<function>_float`` or ``_double`` of a library."""
    library = build.library(source)
    if library is None:
        raise build.NoLibraryError(f"CPU kernel {source!r} is not available")
    return getattr(library, f"{function}_{_SUFFIX[dtype]}")


def call(source: str, function: str, dtype: torch.dtype, problem: ctypes.Structure) -> None:
    """Run a kernel; other Python threads run meanwhile. MemoryError if scratch memory is short."""
    if kernel(source, function, dtype)(ctypes.byref(problem)) != 0:
        raise MemoryError(f"too little memory for the CPU kernel {function!r}")


def check(request: Request, **others: tuple[Tensor | None, tuple[int, ...]]) -> None:
    """ValueError for tensors that C++ would read out of bounds: those of a request, q (B, H, T, D),
    k and v (B, H, S, D) with T <= S, and others.

    Args:
        others: name -> the tensor, and the shape it must have; None: there is none.
    """
    q, k = request.q, request.k
    b, h, t, d = q.shape
    s = k.shape[-2]
    if t > s:
        raise ValueError(f"{t} queries are not the last of {s} tokens")
    keys = b, h, s, d
    shapes = {"q": (q, (b, h, t, d)), "k": (k, keys), "v": (request.v, keys), **others}
    for name, (x, shape) in shapes.items():
        if x is None:
            continue
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
    """An empty tensor (.., H, T, D) whose memory is laid out as (.., T, H, D)."""
    *outer, h, t, d = shape
    return like.new_empty(*outer, t, h, d).transpose(-2, -3)


def thirds(like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Three empty tensors (B, H, T, D), side by side for each token, as one linear map computes
    queries, keys and values."""
    b, h, t, d = like.shape
    q, k, v = like.new_empty(b, t, 3, h, d).permute(2, 0, 3, 1, 4)
    return q, k, v
