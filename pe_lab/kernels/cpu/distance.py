"""The C++ kernels with the arguments of distance_problem.h: attention with terms of the distance,
with two rotations, DAPE's and stick-breaking."""

import ctypes
import math
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pe_lab.core.dropout import Drop
from pe_lab.kernels.cpu.call import (
    Dropout,
    Kernel,
    Problem,
    Rotary,
    Strided,
    check,
    parts_of,
)
from pe_lab.kernels.requests import Dape, Distance, NearFar, StickBreaking
from pe_lab.pe.functional import Rotation

BLOCK = 64
# Work is split into about this many parts, whatever the number of threads, so that results do not
# depend on it.
PARTS = 16
TABLES = ("key_table", "query_table", "value_table")
HEADS = (1, 2, 4, 8)
"""Numbers of heads that DAPE's kernel is compiled for."""


class DistanceProblem(Problem):
    """distance_problem.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "heads", "queries", "keys", "width")),
        ("parts", ctypes.c_int64),
        ("softmax_scale", ctypes.c_double),
        ("drop", Dropout),
        *((name, Strided) for name in ("q", "k", "v", "out")),
        *((name, ctypes.c_void_p) for name in ("largest", "sum", "bias")),
        ("bias_stride", ctypes.c_int64),
        *((name, Rotary) for name in ("rotary_q", "rotary_k")),
        *((name, Strided) for name in ("grad_out", "grad_q", "grad_k", "grad_v")),
        ("grad_bias", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in ("kept", "pairs")),
        *((name, Strided) for name in TABLES),
        *((name, ctypes.c_void_p) for name in ("grad_kept", "grad_pairs")),
        *((f"grad_{name}", Strided) for name in TABLES),
        *((name, ctypes.c_void_p) for name in ("products", "diagonal")),
        *((name, ctypes.c_void_p) for name in ("grad_products", "grad_diagonal")),
        ("near", ctypes.c_int64),
        *((name, Rotary) for name in ("far_q", "far_k")),
        ("remainder", ctypes.c_int64),
    )
    statistics: ClassVar[tuple[str, ...]] = ("largest", "sum")


class DapeProblem(DistanceProblem):
    """dape.cpp."""

    _fields_ = (
        ("units", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("from_content", "by_distance", "units_out")),
        *((f"grad_{n}", ctypes.c_void_p) for n in ("from_content", "by_distance", "units_out")),
    )


class StickBreakingProblem(DistanceProblem):
    """distance_problem.h, as stick_breaking.cpp reads it."""

    statistics = ()


def sized(kind: type[DistanceProblem], of: dict[str, Tensor], drop: Drop | None) -> Any:
    """The arguments that every pass reads."""
    q, k = of["q"], of["k"]
    (b, h, t, d), s = q.shape, k.shape[2]
    parts = parts_of(PARTS, q, b * h, BLOCK)
    problem = kind(b, h, t, s, d, parts, 1 / math.sqrt(d), Dropout(drop))
    problem.bias_stride = s
    return problem


class Rotations(NamedTuple):
    """Real factors of queries and keys, as rotary.h reads them; and those of far ones, from the
    distance ``near`` on."""

    q: Tensor
    k: Tensor
    halves: bool
    near: int = 0
    far_q: Tensor | None = None
    far_k: Tensor | None = None


def _distance(settings: tuple[Drop | None, Rotations | None], of: dict[str, Tensor]) -> Problem:
    drop, by = settings
    problem = sized(DistanceProblem, of, drop)
    if "products" in of:
        # Queries of path.py come divided by sqrt(D).
        problem.softmax_scale = 1
    if by is not None:
        problem.near = by.near
        for name, factors in (
            ("rotary_q", by.q), ("rotary_k", by.k), ("far_q", by.far_q), ("far_k", by.far_k)
        ):  # fmt: skip
            setattr(problem, name, Rotary(factors, by.halves))
    return problem


def _room(problem: DistanceProblem, batch: int) -> dict[str, tuple[int, ...]]:
    each = (problem.parts, batch)
    of_parts = {"q": (problem.parts,), "products": (problem.parts,)}
    return {**of_parts, "bias": each, **dict.fromkeys(TABLES, each)}


DISTANCE = Kernel("distance", _distance, _room, skips=True)
CARRIED = Kernel("distance", _distance, _room)
"""The same for path.py, whose backward pass computes all gradients at once."""


def attend(request: Distance | NearFar) -> Tensor | None:
    """The kernel of ``Distance`` and ``NearFar``, (B, H, T, D). Memory grows with T + S beside what
    is passed in; the backward pass recomputes the weights. float32 and float64; queries, keys and
    values with a contiguous last dimension are not copied. None where a gradient is needed that it
    has not: of the angles, and of ``NearFar``.
    """
    rotation, terms, by = request.rotation, _checked_terms(request), None
    if rotation is not None:
        without = [rotation.q, rotation.k]
        if isinstance(request, NearFar):
            without += [request.q, request.k, request.v]
        if torch.is_grad_enabled() and any(x.requires_grad for x in without):
            return None
        by = _rotations(request, rotation)
    return DISTANCE.attend((request.drop, by), q=request.q, k=request.k, v=request.v, **terms)


def _rotations(request: Distance | NearFar, rotation: Rotation) -> Rotations:
    q, k, halves = request.q, request.k, rotation.halves

    def real(factors: Tensor, x: Tensor) -> Tensor:
        factors = factors.to(x.dtype.to_complex())
        if halves:
            return torch.cat((factors.real, factors.imag), -1).expand(x.shape)
        return torch.view_as_real(factors.contiguous()).flatten(-2).expand(x.shape)

    both = real(rotation.q, q), real(rotation.k, k), halves
    if isinstance(request, Distance):
        return Rotations(*both)
    far_k = None if request.far_k is None else real(request.far_k, k)
    return Rotations(*both, min(request.near, k.shape[2]), real(request.far_q, q), far_k)


def _checked_terms(request: Distance | NearFar) -> dict[str, Tensor | None]:
    if isinstance(request, NearFar):
        check(request)
        return {}
    q, k = request.q, request.k
    (b, h, t, d), s = q.shape, k.shape[2]

    def first(x: Tensor | None) -> Tensor | None:
        # Further distances do not occur.
        return None if x is None else (x if x.shape[1] == s else x[:, :s]).to(q.dtype)

    terms = {
        "bias": (first(request.bias_HN), (h, s)),
        "kept": (request.kept_BHS, (b, h, s)),
        "pairs": (request.bias_HTS, (h, t, s)),
        "key_table": (first(request.key_HND), (h, s, d)),
        "query_table": (first(request.query_HND), (h, s, d)),
        "value_table": (first(request.value_HND), (h, s, d)),
    }
    check(request, **terms)
    found = {name: x for name, (x, _) in terms.items()}
    if request.bias_HTS is not None:
        # (H, S, T), T rounded up to blocks: the kernel reads a bias for neighbouring queries.
        found["pairs"] = F.pad(request.bias_HTS.mT, (0, -t % BLOCK))
    return found


def _dape(drop: Drop | None, of: dict[str, Tensor]) -> Problem:
    problem = sized(DapeProblem, of, drop)
    # Of sequences: all heads go together.
    problem.parts = parts_of(PARTS, of["q"], len(of["q"]), BLOCK)
    problem.units = len(of["units_out"])
    return problem


UNITS = ("from_content", "by_distance", "units_out")
DAPE = Kernel(
    "dape",
    _dape,
    lambda problem, batch: {
        "q": (problem.parts,), **dict.fromkeys(("bias", *UNITS), (problem.parts, batch))
    },
)  # fmt: skip


def dape(request: Dape) -> Tensor | None:
    """The kernel of ``Dape``, (B, H, T, D). Memory grows with T + S. None for a number of heads
    that it is not compiled for."""
    (h, t), s, w = request.q.shape[1:3], request.k.shape[2], len(request.out_WH)
    if h not in HEADS or 0 in (len(request.q), t):
        return None
    of = {
        "bias": (request.bias_HN[:, :s], (h, s)),
        "from_content": (request.from_content_WH, (w, h)),
        "by_distance": (request.by_distance_WN[:, :s], (w, s)),
        "units_out": (request.out_WH, (w, h)),
    }
    check(request, **of)
    weights = {name: x for name, (x, _) in of.items()}
    return DAPE.attend(request.drop, q=request.q, k=request.k, v=request.v, **weights)


def _stick_breaking(settings: tuple[Drop | None, bool], of: dict[str, Tensor]) -> Problem:
    drop, remainder = settings
    problem = sized(StickBreakingProblem, of, drop)
    problem.remainder = remainder
    return problem


STICK_BREAKING = Kernel(
    "stick_breaking",
    _stick_breaking,
    lambda problem, batch: {"k": (problem.parts,), "v": (problem.parts,)},
)


def stick_breaking(request: StickBreaking) -> Tensor:
    """The kernel of ``StickBreaking``, (B, H, T, D). Memory grows with T + S; the backward pass
    recomputes the weights. float32 and float64; tensors with a contiguous last dimension are not
    copied."""
    check(request)
    settings = request.drop, request.remainder
    return STICK_BREAKING.attend(settings, q=request.q, k=request.k, v=request.v)
