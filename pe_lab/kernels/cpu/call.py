"""Calls of the C++ kernels: their arguments as ctypes structures, and attention with its
gradient."""

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

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


class Problem(ctypes.Structure):
    """The base of all arguments: the threads of torch (parallel.h)."""

    _fields_: ClassVar[Any] = (("fork", ctypes.c_void_p), ("threads", ctypes.c_int64))
    statistics: ClassVar[tuple[str, ...]] = ()
    """Fields with a number for each query, (B, H, T), that the backward pass reads again."""

    def __init__(self, *sizes: Any) -> None:
        super().__init__(build.fork(), torch.get_num_threads(), *sizes)

    def fill(self, **tensors: Tensor | None) -> None:
        """Set fields to tensors. None leaves a field empty."""
        strided = _strided(type(self))
        for name, x in tensors.items():
            if x is not None:
                setattr(self, name, Strided(x) if name in strided else address(x))


@functools.cache
def _strided(kind: type[Problem]) -> frozenset[str]:
    """The fields that are ``Strided``, those of its bases included."""
    fields = (field for base in kind.__mro__ for field in vars(base).get("_fields_", ()))
    return frozenset(name for name, of, *_ in fields if of is Strided)


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


def call(source: str, function: str, dtype: torch.dtype, problem: Problem) -> None:
    """Run a kernel; other Python threads run meanwhile. MemoryError if scratch memory is short."""
    if kernel(source, function, dtype)(ctypes.byref(problem)) != 0:
        raise MemoryError(f"too little memory for the CPU kernel {function!r}")


def check(request: Request, **others: tuple[Tensor | None, tuple[int, ...]]) -> None:
    """ValueError for tensors that C++ would read out of bounds: those of a request, q (B, H, T, D),
    k and v (B, H, S, D) with T <= S, and others.

    Args:
        others: name -> the tensor, and the shape it must have. None leaves a field empty.
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


def parts_of(work: int, q_BHTD: Tensor, heads: int, block: int) -> int:
    """Parts of ``heads`` heads' blocks of queries, so that there are about ``work`` in all."""
    return max(1, min(-(-work // max(heads, 1)), -(-q_BHTD.shape[2] // block)))


@dataclass(frozen=True)
class Kernel:
    """A kernel of attention, forward and backward.

    Args:
        source: the name of its library, and of its functions without ``_forward``.
        problem: its arguments without tensors, from ``settings`` and the tensors.
        room: the leading axes of gradients that are summed afterwards, by tensor.
        skips: whether gradients that are not needed are left out.
    """

    source: str
    problem: Callable[[Any, dict[str, Tensor]], Problem]
    room: Callable[[Any, int], dict[str, tuple[int, ...]]]
    skips: bool = False

    def attend(self, settings: Any, **tensors: Tensor | None) -> Tensor:
        """The averaged values, (B, H, T, D); q, k and v come first."""
        given = {name: x for name, x in tensors.items() if x is not None}
        return _Attend.apply(self, settings, tuple(given), *given.values())


OF_HEADS = ("q", "k", "v", "gate_q", "gate_k")
"""Tensors (B, H, T, D), of which only the rows need to be contiguous."""


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kernel: Kernel, settings: Any, names: tuple[str, ...], *tensors: Tensor
    ) -> Tensor:
        of = {
            name: contiguous_rows(x) if name in OF_HEADS else x.contiguous()
            for name, x in zip(names, tensors, strict=True)
        }
        q = of["q"]
        problem, out = kernel.problem(settings, of), by_token(*q.shape, like=q)
        statistics = q.new_empty(len(problem.statistics), *q.shape[:-1])
        problem.fill(**of, out=out, **dict(zip(problem.statistics, statistics, strict=True)))
        call(kernel.source, f"{kernel.source}_forward", q.dtype, problem)
        ctx.save_for_backward(*of.values(), out, statistics)
        ctx.kernel, ctx.settings, ctx.names = kernel, settings, names
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, out, statistics = ctx.saved_tensors
        kernel, of = ctx.kernel, dict(zip(ctx.names, tensors, strict=True))
        problem, q = kernel.problem(ctx.settings, of), of["q"]
        problem.fill(**of, out=out, **dict(zip(problem.statistics, statistics, strict=True)))
        room, needed = kernel.room(problem, len(q)), ctx.needs_input_grad[3:]
        wanted = [name for name, n in zip(ctx.names, needed, strict=True) if n or not kernel.skips]
        grads: dict[str, Tensor] = {}
        alone = all(name in wanted and room.get(name, (1,)) == (1,) for name in "qkv")
        if alone and q.shape == of["k"].shape:
            for name, third in zip("qkv", thirds(q), strict=True):
                grads[name] = third[None] if name in room else third
        for name in wanted:
            if name not in grads:
                grads[name] = _gradient(name, of[name], room.get(name, ()))
        problem.fill(
            grad_out=contiguous_rows(grad_out), **{f"grad_{name}": x for name, x in grads.items()}
        )
        call(kernel.source, f"{kernel.source}_backward", q.dtype, problem)
        summed = {name: _summed(x, len(room.get(name, ()))) for name, x in grads.items()}
        return None, None, None, *(summed.get(name) for name in ctx.names)


def _gradient(name: str, x: Tensor, room: tuple[int, ...]) -> Tensor:
    """Memory for a gradient."""
    if name in OF_HEADS:
        return by_token(*room, *x.shape, like=x)
    # To the gradient of a bias of pairs, which has no room, all sequences add.
    return x.new_empty(*room, *x.shape) if name != "pairs" else torch.zeros_like(x)


def _summed(grad: Tensor, axes: int) -> Tensor:
    """A gradient summed over its leading axes."""
    if all(n == 1 for n in grad.shape[:axes]):
        return grad[(0,) * axes] if axes else grad
    return grad.sum(tuple(range(axes)))
