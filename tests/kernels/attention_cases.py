"""Inputs of attention, and the comparison of a kernel with the eager formulas on them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pe_lab.core.dropout import Drop
from pe_lab.kernels import dispatch
from pe_lab.kernels.requests import (
    Cope,
    Dape,
    Distance,
    NearFar,
    Path,
    Request,
    StickBreaking,
)
from pe_lab.pe.functional import Rotation

Attend = Callable[..., Tensor | None]
DROP = Drop(0.3, 0x0123_4567_89AB_CDEF)
# Of values and gradients, relative to the largest of them.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
GATES = ("keys", "sep_keys", "values", "rope")


QKV = ("q", "k", "v")
TERMS = ("bias_HN", "kept_BHS", "bias_HTS", "key_HND", "query_HND", "value_HND")
ARGUMENTS: dict[str, tuple[type[Request], tuple[str, ...]]] = {
    "cope": (Cope, (*QKV, "gate_q", "gate_k", "table_ND", "position_scale")),
    "dape": (Dape, (*QKV, "bias_HN", "from_content_WH", "by_distance_WN", "out_WH")),
    "distance": (Distance, (*QKV, "bias_HN")),
    "rotary_distance": (Distance, (*QKV, "bias_HN", "rotation")),
    "relative": (Distance, (*QKV, *TERMS)),
    "near_far": (NearFar, (*QKV, "near", "rotation", "far_q", "far_k")),
    "path": (Path, (*QKV, "w_BHSD", "beta_BHS", "kept_BHS")),
    "stick_breaking": (StickBreaking, (*QKV, "remainder")),
}
"""Requests by the names of these tests, and the order of their fields here; dropout comes last."""


def request(name: str, *given: Any) -> Request:
    """The request of these arguments."""
    kind, fields = ARGUMENTS[name]
    return kind(**dict(zip((*fields, "drop"), given, strict=True)))


def kernel(name: str) -> Attend:
    """The C++ kernel as a function of ``ARGUMENTS`` and dropout."""
    return lambda *given: dispatch.KERNELS[ARGUMENTS[name][0]](request(name, *given))


def formula(name: str) -> Attend:
    """The formula, likewise."""
    return lambda *given: request(name, *given).formula()


@dataclass(frozen=True)
class Size:
    """Sequences, heads, queries, keys, head width."""

    b: int
    h: int
    t: int
    s: int
    d: int


# Odd lengths, one query, fewer queries than keys, one head, more heads than sequences, full blocks,
# widths that fill no vector.
SIZES = [
    Size(2, 3, 5, 5, 4),
    Size(1, 2, 131, 131, 8),
    Size(3, 2, 1, 70, 8),
    Size(2, 1, 65, 137, 17),
    Size(1, 4, 64, 64, 16),
    Size(1, 1, 1, 1, 1),
    Size(1, 1, 97, 260, 80),
]


def _heads(rng: torch.Generator, size: Size, parts: int, dtype: torch.dtype) -> list[Tensor]:
    """Views of one tensor, as the attention layer makes them."""
    x = torch.randn(size.b, size.s, parts * size.h * size.d, generator=rng, dtype=torch.float64)
    split = x.to(dtype).chunk(parts, -1)
    return [y.view(size.b, size.s, size.h, size.d).transpose(1, 2) for y in split]


def positions(gate_q: Tensor, gate_k: Tensor) -> Tensor:
    """CoPE's positions of all visible keys, not clamped."""
    t, s = gate_q.shape[2], gate_k.shape[2]
    seen = torch.ones(t, s, dtype=torch.bool).tril(s - t)
    gates = (gate_q.double() @ gate_k.double().mT / math.sqrt(gate_q.shape[-1])).sigmoid() * seen
    return gates.flip(-1).cumsum(-1).flip(-1)[..., seen]


def cope_inputs(size: Size, gates: str, npos: int, dtype: torch.dtype) -> list[Tensor]:
    """q, k, v, gate_q, gate_k and the table; no position is close to a whole number, where the
    gradient jumps."""
    for seed in range(100):
        rng = torch.Generator().manual_seed(seed)
        q, k, v, more_q, more_k = _heads(rng, size, 5, dtype)
        q, more_q = q[:, :, size.s - size.t :], more_q[:, :, size.s - size.t :]
        gate_q, gate_k = {
            "keys": (q, k),
            "sep_keys": (q, more_k),
            "values": (q, v),
            "rope": (more_q, more_k),
            "sep_queries": (more_q, k),
        }[gates]
        table = torch.randn(npos, size.d, generator=rng, dtype=torch.float64).to(dtype) / 2
        p = positions(gate_q, gate_k)
        if bool(((p - p.round()).abs() > 2e-5).all()):
            return [q, k, v, gate_q, gate_k, table]
    raise AssertionError("every seed has a position close to a whole number")


def distance_inputs(size: Size, dtype: torch.dtype) -> list[Tensor]:
    """q, k, v and a bias for more distances than there are."""
    rng = torch.Generator().manual_seed(0)
    q, k, v = _heads(rng, size, 3, dtype)
    bias = torch.randn(size.h, size.s + 3, generator=rng, dtype=torch.float64).to(dtype)
    return [q[:, :, size.s - size.t :], k, v, bias]


def relative_inputs(size: Size, dtype: torch.dtype) -> list[Tensor]:
    """q, k, v, biases by distance, sums of gates, biases of pairs, and three tables."""
    b, h, t, s, d = size.b, size.h, size.t, size.s, size.d
    rng = torch.Generator().manual_seed(1)
    shapes = (b, h, s), (h, t, s), (h, s + 2, d), (h, s, d), (h, s, d)
    drawn = (torch.randn(shape, generator=rng, dtype=torch.float64) for shape in shapes)
    kept, *others = (x.to(dtype) for x in drawn)
    return [*distance_inputs(size, dtype), kept.cumsum(-1) / 3, *others]


def path_inputs(size: Size, dtype: torch.dtype) -> list[Tensor]:
    """q, k, v, unit vectors w, beta in (0, 2), and sums of gates."""
    rng = torch.Generator().manual_seed(2)
    b, h, s, d = size.b, size.h, size.s, size.d
    w, beta, kept = (
        torch.randn(shape, generator=rng, dtype=torch.float64)
        for shape in ((b, h, s, d), (b, h, s), (b, h, s))
    )
    reflections = F.normalize(w, dim=-1), 2 * beta.sigmoid(), kept
    return [*distance_inputs(size, dtype)[:3], *(x.to(dtype) for x in reflections)]


def dape_inputs(size: Size, dtype: torch.dtype) -> list[Tensor]:
    """q, k, v, a bias, and the weights of five units that are far from zero, where their slope
    jumps."""
    rng = torch.Generator().manual_seed(3)
    w, h, s = 5, size.h, size.s
    of_content, units, out = (
        torch.randn(shape, generator=rng, dtype=torch.float64)
        for shape in ((w, h), (w, s + 2), (w, h))
    )
    weights = of_content / 32, units.sign() * (3 + units.abs()), out
    return [*distance_inputs(size, dtype), *(x.to(dtype) for x in weights)]


def windowed(size: Size, near: int, halves: bool, far_keys: bool) -> tuple[Any, ...]:
    """The window and the rotations of ``near_far``, not of length one, so that a gradient rotated
    the wrong way is seen."""
    rng = torch.Generator().manual_seed(4)
    angle, far_q, far_k = torch.randn(3, 1, 1, size.s, size.d // 2, generator=rng).double()
    factors = torch.polar(1 + angle.abs(), 9 * angle)
    rotation = Rotation(factors[:, :, size.s - size.t :] * 2, factors, halves)
    of_q = torch.polar(1 + far_q.abs(), 5 * far_q)[:, :, size.s - size.t :]
    return near, rotation, of_q, torch.polar(1 + far_k.abs(), 5 * far_k) if far_keys else None


def inputs(kind: str, size: Size, dtype: torch.dtype) -> tuple[list[Tensor], tuple[Any, ...]]:
    """Tensors and the other arguments, but for dropout, of a kind of attention."""
    if kind == "cope":
        return cope_inputs(size, "rope", 9, dtype), (0.7,)
    if kind == "stick_breaking":
        return distance_inputs(size, dtype)[:3], (True,)
    if kind == "near_far":
        return distance_inputs(size, dtype)[:3], windowed(size, 9, False, True)
    makers = {"relative": relative_inputs, "path": path_inputs, "dape": dape_inputs}
    return makers.get(kind, distance_inputs)(size, dtype), ()


def results(attend: Attend, tensors: list[Tensor], *rest: object) -> list[Tensor]:
    """The value and the gradient of each tensor; one that is passed twice has one gradient. The
    value alone of a kernel that has no gradients."""
    leaves = {id(x): x.detach().requires_grad_() for x in tensors}
    out = attend(*(leaves[id(x)] for x in tensors), *rest)
    if out is None:
        with torch.no_grad():
            out = attend(*tensors, *rest)
        return [out]
    rng = torch.Generator().manual_seed(1)
    direction = torch.randn(out.shape, generator=rng, dtype=torch.float64).to(out)
    return [out.detach(), *torch.autograd.grad(out, list(leaves.values()), direction)]


def assert_equal(
    attend: Attend,
    expected_by: Attend,
    tensors: list[Tensor],
    *rest: object,
    tolerance: float = 0.0,
) -> None:
    """A kernel agrees with the formula in float64, in value and gradients."""
    wide = {id(x): x.double() for x in tensors}
    found = results(attend, tensors, *rest)
    expected = results(expected_by, [wide[id(x)] for x in tensors], *rest)
    for x, y in zip(found, expected[: len(found)], strict=True):
        assert x.dtype == tensors[0].dtype
        error = float((x.double() - y).abs().max() / y.abs().max().clamp(min=1))
        assert error <= (tolerance or TOLERANCE[x.dtype]), f"off by {error:.1e}"


def assert_kernel(name: str, tensors: list[Tensor], *rest: object, tolerance: float = 0.0) -> None:
    """``assert_equal`` of a C++ kernel and its formula."""
    assert_equal(kernel(name), formula(name), tensors, *rest, tolerance=tolerance)
