"""Calls of the C++ kernels: their arguments as ctypes structures, and attention with its
gradient."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pe_lab.kernels import build

SUFFIX = {torch.float32: "float", torch.float64: "double"}
OF_HEADS = ("q", "k", "v", "gate_q", "gate_k")
"""Tensors (B, H, T, D), of which only the rows need to be contiguous."""


class Dropout(ctypes.Structure):
    """dropout.h: the halves of a seed, the threshold of what is dropped, and 1 / (1 - p)."""

    _fields_ = (
        ("low", ctypes.c_uint32),
        ("high", ctypes.c_uint32),
        ("threshold", ctypes.c_uint32),
        ("scale", ctypes.c_double),
    )

    @classmethod
    def draw(cls, p: float) -> Self:
        """Dropout with probability p, whose seed is drawn from torch's generator."""
        if not p:
            return cls(0, 0, 0, 1.0)
        low, high = torch.randint(2**32, (2,)).tolist()
        return cls(low, high, min(round(p * 2**24), 2**24 - 1), 1 / (1 - p))


class Strided(ctypes.Structure):
    """blocks.h: a tensor ((parts,) B, H, T, D), or none."""

    _fields_ = (("data", ctypes.c_void_p), ("strides", ctypes.c_int64 * 4))

    def __init__(self, tensor: Tensor | None) -> None:
        if tensor is not None:
            strides = tensor.stride()[:-1]
            super().__init__(tensor.data_ptr(), ((0,) * (4 - len(strides)) + strides))


class Problem(ctypes.Structure):
    """The base of all arguments: the threads of torch (parallel.h)."""

    _fields_: ClassVar[Any] = (("fork", ctypes.c_void_p), ("threads", ctypes.c_int64))
    statistics: ClassVar[tuple[str, ...]] = ()
    """Fields with a number for each query, (B, H, T), that the backward pass reads again."""

    def __init__(self, *sizes: Any) -> None:
        super().__init__(build.fork(), torch.get_num_threads(), *sizes)

    def fill(self, **tensors: Tensor) -> None:
        """Set fields to tensors."""
        for name, x in tensors.items():
            strided = isinstance(getattr(self, name), Strided)
            setattr(self, name, Strided(x) if strided else x.data_ptr())


def call(source: str, name: str, dtype: torch.dtype, problem: Problem) -> None:
    """Run the function ``<name>_float`` or ``_double`` of a library; other Python threads run
    meanwhile."""
    function = getattr(build.library(source), f"{name}_{SUFFIX[dtype]}")
    if function(ctypes.byref(problem)) != 0:
        raise MemoryError(f"too little memory for the kernel {name!r}")


def contiguous_rows(x: Tensor) -> Tensor:
    """x, copied only if its last dimension is not contiguous."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def by_token(*shape: int, like: Tensor) -> Tensor:
    """An empty tensor (.., H, T, D) whose memory is laid out as (.., T, H, D)."""
    *outer, h, t, d = shape
    return like.new_empty(*outer, t, h, d).transpose(-2, -3)


def thirds(like: Tensor) -> dict[str, Tensor]:
    """Empty gradients of q, k and v, (B, H, T, D), side by side for each token, as one linear map
    computes queries, keys and values."""
    b, h, t, d = like.shape
    return dict(zip("qkv", like.new_empty(b, t, 3, h, d).permute(2, 0, 3, 1, 4), strict=True))


def parts_of(work: int, q_BHTD: Tensor, heads: int, block: int) -> int:
    """Parts of ``heads`` heads' blocks of queries, so that there are about ``work`` in all.

    Work is split alike whatever the number of threads, so that results do not depend on it.
    """
    return max(1, min(-(-work // heads), -(-q_BHTD.shape[2] // block)))


@dataclass(frozen=True)
class Kernel:
    """A kernel of attention, forward and backward.

    Args:
        source: the name of its library, and of its functions without ``_forward``.
        problem: its arguments without tensors, from the tensors, dropout and a further setting.
        room: the leading axes of gradients that are summed afterwards, by tensor.
    """

    source: str
    problem: Callable[[dict[str, Tensor], Dropout, Any], Problem]
    room: Callable[[Any, int], dict[str, tuple[int, ...]]]

    def attend(self, drop: Dropout, setting: Any = None, **tensors: Tensor | None) -> Tensor | None:
        """The averaged values, (B, H, T, D), of q, k, v and further tensors; None if there is no
        library."""
        if build.library(self.source) is None:
            return None
        given = {name: x for name, x in tensors.items() if x is not None}
        return Attend.apply(self, drop, setting, tuple(given), *given.values())


class Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kernel: Kernel, drop: Dropout, setting: Any, names: tuple[str, ...], *x: Tensor
    ) -> Tensor:
        tensors = {
            name: contiguous_rows(x) if name in OF_HEADS else x.contiguous()
            for name, x in zip(names, x, strict=True)
        }
        q, problem = tensors["q"], kernel.problem(tensors, drop, setting)
        out = by_token(*q.shape, like=q)
        statistics = q.new_empty(len(problem.statistics), *q.shape[:-1])
        problem.fill(**tensors, out=out, **dict(zip(problem.statistics, statistics, strict=True)))
        call(kernel.source, f"{kernel.source}_forward", q.dtype, problem)
        ctx.save_for_backward(*tensors.values(), out, statistics)
        ctx.kernel, ctx.drop, ctx.setting, ctx.names = kernel, drop, setting, names
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, out, statistics = ctx.saved_tensors
        kernel, by_name = ctx.kernel, dict(zip(ctx.names, tensors, strict=True))
        problem, q = kernel.problem(by_name, ctx.drop, ctx.setting), by_name["q"]
        room = kernel.room(problem, len(q))
        grads = {
            name: by_token(*room.get(name, ()), *x.shape, like=x)
            if name in OF_HEADS
            else x.new_empty(*room.get(name, ()), *x.shape)
            for name, x in by_name.items()
        }
        if q.shape == by_name["k"].shape and all(room.get(n, (1,)) == (1,) for n in "qkv"):
            grads |= {n: x[None] if n in room else x for n, x in thirds(q).items()}
        problem.fill(
            **by_name,
            out=out,
            **dict(zip(problem.statistics, statistics, strict=True)),
            grad_out=contiguous_rows(grad_out),
            **{f"grad_{name}": x for name, x in grads.items()},
        )
        call(kernel.source, f"{kernel.source}_backward", q.dtype, problem)
        summed = (sum_leading(grads[name], len(room.get(name, ()))) for name in ctx.names)
        return None, None, None, None, *summed


def sum_leading(grad: Tensor, axes: int) -> Tensor:
    """A gradient summed over its leading axes."""
    if all(n == 1 for n in grad.shape[:axes]):
        return grad[(0,) * axes] if axes else grad
    return grad.sum(tuple(range(axes)))
