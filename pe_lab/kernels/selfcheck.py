"""Comparison of a kernel with the eager formulas on small tensors, before it is used."""

import functools
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pe_lab.core.dropout import Drop
from pe_lab.kernels.cpu import build
from pe_lab.kernels.reference import REFERENCE
from pe_lab.pe.rotation import Rotation

logger = logging.getLogger("pe_lab")

Attend = Callable[..., Tensor | None]
Leaves = dict[str, Tensor]
Call = Callable[[Attend, Leaves], Tensor | None]

# Sequences, heads, queries, keys, dropout: more than one block of rows; and only the last rows, as
# the last layer may ask for them.
SIZES = ((1, 2, 70, 70, 0.0), (2, 2, 37, 70, 0.25))
WIDTH, POSITIONS, POSITION_SCALE = 16, 9, 0.7
FORWARD_ONLY = ("near_far",)
"""Kinds of attention whose kernel has no gradients."""
TERMS = ("bias", "kept", "pairs", "key_table", "query_table", "value_table")
LIMIT = {torch.float64: 1e-9, torch.float32: 1e-4}


def difference(kind: str, attend: Attend, device: torch.device, dtype: torch.dtype) -> str:
    """Where a kernel differs from the formulas in float64 by more than rounding, in its value or in
    a gradient; an empty string where it does not.

    Args:
        attend: a kernel of this kind of attention (dispatch.py). Where it returns None, nothing is
            compared.
    """
    with torch.inference_mode(False), torch.enable_grad():
        for drawn, call in _cases(kind):
            leaves = {name: x.to(dtype) for name, x in drawn.items()}
            on_device = {name: x.to(device) for name, x in leaves.items()}
            found = _results(attend, on_device, call, kind not in FORWARD_ONLY)
            if found is None:
                continue
            exact = {name: x.double() for name, x in leaves.items()}
            expected = _results(REFERENCE[kind], exact, call, kind not in FORWARD_ONLY)
            assert expected is not None
            for name, x, y in zip(
                ("value", *drawn), found, expected, strict=kind not in FORWARD_ONLY
            ):
                error = float((x.cpu().double() - y).abs().max() / y.abs().max().clamp(min=1))
                if not error <= LIMIT[dtype]:
                    what = name if name == "value" else f"gradient of {name}"
                    return f"its {what} is off by {error:.1e} of the largest"
    return ""


@functools.cache
def cpu_kernel_passes(
    source: str, dtype: torch.dtype, check: Callable[[torch.dtype], bool]
) -> bool:
    """Whether a C++ kernel other than attention is available and passes its check; a warning if it
    fails.

    Args:
        check: compares the kernel with PyTorch on small tensors of this dtype.
    """
    # ``library`` has logged the reason.
    if build.library(source) is None:
        return False
    try:
        with torch.inference_mode(False), torch.no_grad():
            passed = check(dtype)
    except Exception as error:  # whatever it is, slower code remains
        logger.debug("the CPU kernel %s failed", source, exc_info=error)
        passed = False
    if not passed:
        logger.warning("CPU kernel %r failed its self-check; falling back to PyTorch", source)
    return passed


def _results(attend: Attend, leaves: Leaves, call: Call, gradients: bool) -> list[Tensor] | None:
    """The value and, with ``gradients``, those of all leaves."""
    leaves = {name: x.requires_grad_(gradients) for name, x in leaves.items()}
    out = call(attend, leaves)
    if out is None or not gradients:
        return None if out is None else [out]
    direction = torch.linspace(-9, 9, out.numel(), dtype=torch.float64).sin().view(out.shape)
    # The gradient of a scalar: for that of a tensor torch imports sympy, which takes twenty times
    # as long as the rest of this file.
    total = (out * direction.to(out)).sum()
    return [out.detach(), *torch.autograd.grad(total, list(leaves.values()))]


def _cases(kind: str) -> Iterator[tuple[Leaves, Call]]:
    rng = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    for b, h, t, s, p in SIZES:
        drop = Drop(p, 0x0123_4567_89AB_CDEF) if p else None
        qkv, gates = drawn(b, s, 3 * h * WIDTH), drawn(b, s, 2 * h * WIDTH)

        def split(x: Tensor, n: int, h: int = h) -> list[Tensor]:
            """Views of one tensor, as the attention layer makes them."""
            return [y.view(*y.shape[:2], h, -1).transpose(1, 2) for y in x.chunk(n, -1)]

        def cope(attend: Attend, of: Leaves, t: int = t, drop: Any = drop) -> Tensor | None:
            q, k, v = split(of["qkv"], 3)
            q = q[:, :, -t:]
            gate_q, gate_k = (q, k) if "gates" not in of else split(of["gates"], 2)
            gate_q = gate_q if "gates" not in of else gate_q[:, :, -t:]
            return attend(q, k, v, gate_q, gate_k, of["table"], POSITION_SCALE, drop)

        def distance(attend: Attend, of: Leaves, t: int = t, drop: Any = drop) -> Tensor | None:
            q, k, v = split(of["qkv"], 3)
            rotation = () if kind == "distance" else (_rotation(k, t),)
            return attend(q[:, :, -t:], k, v, of.get("bias"), *rotation, drop)

        def relative(attend: Attend, of: Leaves, t: int = t, drop: Any = drop) -> Tensor | None:
            q, k, v = split(of["qkv"], 3)
            return attend(q[:, :, -t:], k, v, *(of.get(name) for name in TERMS), drop)

        def path(attend: Attend, of: Leaves, t: int = t, drop: Any = drop) -> Tensor | None:
            q, k, v = split(of["qkv"], 3)
            w, strength = split(of["gates"], 2)
            w, beta = F.normalize(w, dim=-1), 2 * strength[..., 0].sigmoid()
            return attend(q[:, :, -t:], k, v, w, beta, of["kept"], drop)

        def dape(attend: Attend, of: Leaves, t: int = t, drop: Any = drop) -> Tensor | None:
            q, k, v = split(of["qkv"], 3)
            return attend(q[:, :, -t:], k, v, of["bias"], of["in"], of["units"], of["out"], drop)

        def broken(
            remainder: bool, attend: Attend, of: Leaves, t: int = t, drop: Any = drop
        ) -> Tensor | None:
            q, k, v = split(of["qkv"], 3)
            return attend(q[:, :, -t:], k, v, remainder, drop)

        def windowed(
            near: int, attend: Attend, of: Leaves, t: int = t, drop: Any = drop
        ) -> Tensor | None:
            q, k, v = split(of["qkv"], 3)
            by = _rotation(k, t)
            far_k = None if near == 9 else by.k * by.k
            return attend(q[:, :, -t:], k, v, near, by, 2 * by.q[:, :, :1], far_k, drop)

        if kind == "cope":
            table = drawn(POSITIONS, WIDTH)
            yield {"qkv": qkv, "table": table}, cope
            yield {"qkv": qkv, "gates": gates, "table": table}, cope
        elif kind == "stick_breaking":
            for remainder in (False, True):
                yield {"qkv": qkv}, partial(broken, remainder)
        elif kind == "dape":
            w = 5
            # Units far from zero, where their slope jumps.
            units = drawn(w, s).sign() * (3 + drawn(w, s).abs())
            sides = {"in": drawn(w, h) / 16, "units": units, "out": drawn(w, h)}
            yield {"qkv": qkv, "bias": drawn(h, s + 3), **sides}, dape
        elif kind == "near_far":
            for near in (9, s - 1):
                yield {"qkv": qkv}, partial(windowed, near)
        elif kind == "path":
            yield {"qkv": qkv, "gates": gates, "kept": drawn(b, h, s)}, path
        elif kind == "relative":
            shapes = (h, s), (b, h, s), (h, t, s), *[(h, s + 1, WIDTH)] * 3
            yield (
                {"qkv": qkv, **dict(zip(TERMS, (drawn(*x) for x in shapes), strict=True))},
                relative,
            )
        else:
            yield {"qkv": qkv}, distance
            yield {"qkv": qkv, "bias": drawn(h, s + 3)}, distance


def _rotation(k_BHSD: Tensor, t: int) -> Rotation:
    """A rotation of these keys and of the last t queries."""
    angle = torch.arange(k_BHSD.shape[2] * WIDTH // 2, device=k_BHSD.device).view(-1, WIDTH // 2)
    factors = torch.polar(1 + angle.double() / angle.max(), angle.double())[None, None]
    return Rotation(factors[:, :, -t:], factors, halves=t == k_BHSD.shape[2])
