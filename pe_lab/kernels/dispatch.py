"""The choice of the code that computes attention: a C++ kernel, or PyTorch.

A kernel is compared with its formula on small tensors once per process and dtype, before its first
use. If it fails, a warning says so and PyTorch computes attention. ``PE_LAB_BACKEND`` allows a
single backend, for tests and measurements:

- ``cpu``: the kernels;
- ``recompute``: the plain formulas by blocks of queries (apply.py);
- ``eager``: the plain formulas.
"""

import functools
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pe_lab.core.dropout import Drop
from pe_lab.core.errors import UsageError
from pe_lab.kernels.cpu import build, cope, distance, path
from pe_lab.kernels.requests import Cope, Dape, Distance, NearFar, Path, Request, StickBreaking
from pe_lab.pe.functional import Rotation

logger = logging.getLogger("pe_lab")

Attend = Callable[[Any], Tensor | None]
KERNELS: dict[type[Request], Attend] = {
    Cope: cope.attend,
    Dape: distance.dape,
    Distance: distance.attend,
    NearFar: distance.attend,
    Path: path.attend,
    StickBreaking: distance.stick_breaking,
}
CPU, RECOMPUTE, EAGER = NAMES = ("cpu", "recompute", "eager")
FULL = torch.float32, torch.float64
_only: ContextVar[str | None] = ContextVar("only", default=None)


@contextmanager
def only(name: str) -> Iterator[None]:
    """Allow only the backend of this name; ``eager``: none."""
    token = _only.set(_checked(name))
    try:
        yield
    finally:
        _only.reset(token)


def attend(request: Request) -> Tensor | None:
    """The output of the kernel, equal to ``request.formula()``; None: PyTorch has to compute it."""
    kernel = serving(type(request), request.q)
    if kernel is None:
        return None
    with torch.autocast("cpu", enabled=False):
        return kernel(request)


def serving(kind: type[Request], q_BHTD: Tensor) -> Attend | None:
    """The kernel for these queries; None: PyTorch has to compute them."""
    if not readable(q_BHTD):
        return None
    # PyTorch takes a tenth of the kernel's time for a single query, as in decoding (CoPE's formula:
    # three quarters), as the kernel computes whole blocks of queries.
    if q_BHTD.shape[2] < 2 and _forced() is None:
        return None
    return verified(kind, q_BHTD.dtype)


def readable(x: Tensor) -> bool:
    """Whether a C++ kernel may be used on this tensor."""
    return x.is_cpu and x.dtype in FULL and _forced() in (None, CPU)


def backend_names(device: torch.device, kinds: Iterable[type[Request]] = KERNELS) -> dict[str, str]:
    """The backend of each kind of attention in float32 on a device."""
    one = torch.empty(1, 1, 2, 1, device=device)
    otherwise = RECOMPUTE if forced(RECOMPUTE) else EAGER
    found = {kind.kind: CPU if serving(kind, one) else otherwise for kind in kinds}
    return dict(sorted(found.items()))


def forced(name: str) -> bool:
    """Whether the backend of this name is the only one allowed."""
    return _forced() == name


def _forced() -> str | None:
    name = _only.get() or os.environ.get("PE_LAB_BACKEND")
    return None if name is None else _checked(name)


def check_environment() -> None:
    """
    Raises:
        UsageError: ``PE_LAB_BACKEND`` names no backend.
    """
    try:
        _forced()
    except ValueError as error:
        raise UsageError(f"PE_LAB_BACKEND: {error}") from None


def _checked(name: str) -> str:
    if name not in NAMES:
        raise ValueError(f"unknown backend {name!r}: choose one of {', '.join(NAMES)}")
    return name


@functools.cache
def verified(kind: type[Request], dtype: torch.dtype) -> Attend | None:
    """The kernel, if it is available and passes the self-check; else a warning."""
    try:
        wrong = difference(kind, KERNELS[kind], dtype)
    except build.NoLibraryError:
        # ``library`` has logged the reason.
        return None
    except Exception as error:  # whatever it is, PyTorch remains
        wrong = f"{type(error).__name__}: {error}".splitlines()[0]
    if wrong:
        logger.warning(
            "the kernel of %s attention failed its self-check (%s); falling back to PyTorch",
            kind.kind,
            wrong,
        )
        return None
    return KERNELS[kind]


Leaves = dict[str, Tensor]
Ask = Callable[[Leaves], Request]
"""The request of these leaves."""

# Sequences, heads, queries, keys, dropout: more than one block of rows; and only the last rows, as
# the last layer may ask for them.
SIZES = ((1, 2, 70, 70, 0.0), (2, 2, 37, 70, 0.25))
WIDTH, POSITIONS, UNITS = 16, 9, 5
LIMIT = {torch.float64: 1e-9, torch.float32: 1e-4}


def difference(kind: type[Request], attend: Attend, dtype: torch.dtype) -> str:
    """Where a kernel differs from the formula in float64 by more than rounding, in its value or in
    a gradient; an empty string where it does not. Where it returns None, nothing is compared."""
    with torch.inference_mode(False), torch.set_grad_enabled(kind.has_gradients):
        for drawn, ask in _cases(kind):
            leaves = {name: x.to(dtype) for name, x in drawn.items()}
            exact = {name: x.double() for name, x in leaves.items()}
            found = _results(attend, ask, leaves)
            if found is None:
                continue
            expected = _results(kind.formula, ask, exact)
            assert expected is not None
            for name, x, y in zip(("value", *drawn), found, expected, strict=False):
                error = float((x.double() - y).abs().max() / y.abs().max().clamp(min=1))
                if not error <= LIMIT[dtype]:
                    what = name if name == "value" else f"gradient of {name}"
                    return f"its {what} is off by {error:.1e} of the largest"
    return ""


def _results(attend: Attend, ask: Ask, leaves: Leaves) -> list[Tensor] | None:
    """The value and, where gradients are enabled, those of all leaves."""
    for x in leaves.values():
        x.requires_grad_(torch.is_grad_enabled())
    out = attend(ask(leaves))
    if out is None or not torch.is_grad_enabled():
        return None if out is None else [out]
    direction = torch.linspace(-9, 9, out.numel(), dtype=torch.float64).sin().view(out.shape)
    # The gradient of a scalar: for that of a tensor torch imports sympy, which takes twenty times
    # as long as the rest of this file.
    total = (out * direction.to(out)).sum()
    return [out.detach(), *torch.autograd.grad(total, list(leaves.values()))]


def _cases(kind: type[Request]) -> Iterator[tuple[Leaves, Ask]]:
    rng = torch.Generator().manual_seed(0)
    for b, h, t, s, p in SIZES:
        drop = Drop(p, 0x0123_4567_89AB_CDEF) if p else None
        for shapes, ask in REQUESTS[kind](b, h, t, s, drop):
            sized = {"qkv": (b, s, 3 * h * WIDTH), **shapes}
            yield {name: _drawn(name, shape, rng) for name, shape in sized.items()}, ask


def _drawn(name: str, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    x = torch.randn(*shape, generator=rng, dtype=torch.float64)
    # The slope of DAPE's units jumps at zero: they stay far from it.
    return {"by_distance": x.sign() * (3 + x.abs()), "from_content": x / 16}.get(name, x)


Sized = Iterator[tuple[dict[str, Any], Ask]]
"""The shapes of the leaves besides q, k and v, and the request of all of them."""


def _qkv(of: Leaves, h: int, t: int) -> dict[str, Any]:
    q, k, v = _split(of["qkv"], 3, h)
    return {"q": q[:, :, -t:], "k": k, "v": v}


def _split(x: Tensor, n: int, h: int) -> list[Tensor]:
    """Views of one tensor, as the attention layer makes them."""
    return [y.view(*y.shape[:2], h, -1).transpose(1, 2) for y in x.chunk(n, -1)]


def _cope(b: int, h: int, t: int, s: int, drop: Drop | None) -> Sized:
    def ask(of: Leaves) -> Request:
        qkv = _qkv(of, h, t)
        gate_q, gate_k = _split(of["gates"], 2, h) if "gates" in of else (qkv["q"], qkv["k"])
        return Cope(
            **qkv, gate_q=gate_q[:, :, -t:] if "gates" in of else gate_q, gate_k=gate_k,
            table_ND=of["table"], position_scale=0.7, drop=drop,
        )  # fmt: skip

    table = {"table": (POSITIONS, WIDTH)}
    yield table, ask
    yield {**table, "gates": (b, s, 2 * h * WIDTH)}, ask


def _distance(b: int, h: int, t: int, s: int, drop: Drop | None) -> Sized:
    def ask(of: Leaves) -> Request:
        terms: dict[str, Any] = {name: x for name, x in of.items() if name != "qkv"}
        return Distance(**_qkv(of, h, t), **terms, drop=drop)

    def rotary(of: Leaves) -> Request:
        qkv = _qkv(of, h, t)
        return Distance(
            **qkv, rotation=_rotation(qkv["k"], t), bias_HN=of.get("bias_HN"), drop=drop
        )

    bias = {"bias_HN": (h, s + 3)}
    tables = dict.fromkeys(("key_HND", "query_HND", "value_HND"), (h, s + 1, WIDTH))
    yield {}, ask
    yield bias, rotary
    yield {**bias, "kept_BHS": (b, h, s), "bias_HTS": (h, t, s), **tables}, ask


def _near_far(b: int, h: int, t: int, s: int, drop: Drop | None) -> Sized:
    for near in (9, s - 1):

        def ask(of: Leaves, near: int = near) -> Request:
            qkv = _qkv(of, h, t)
            by = _rotation(qkv["k"], t)
            far_q, far_k = 2 * by.q[:, :, :1], None if near == 9 else by.k * by.k
            return NearFar(**qkv, near=near, rotation=by, far_q=far_q, far_k=far_k, drop=drop)

        yield {}, ask


def _path(b: int, h: int, t: int, s: int, drop: Drop | None) -> Sized:
    def ask(of: Leaves) -> Request:
        w, strength = _split(of["w"], 2, h)
        w, beta = F.normalize(w, dim=-1), 2 * strength[..., 0].sigmoid()
        return Path(**_qkv(of, h, t), w_BHSD=w, beta_BHS=beta, kept_BHS=of["kept"], drop=drop)

    yield {"w": (b, s, 2 * h * WIDTH), "kept": (b, h, s)}, ask


def _dape(b: int, h: int, t: int, s: int, drop: Drop | None) -> Sized:
    def ask(of: Leaves) -> Request:
        return Dape(
            **_qkv(of, h, t), bias_HN=of["bias"], from_content_WH=of["from_content"],
            by_distance_WN=of["by_distance"], out_WH=of["out"], drop=drop,
        )  # fmt: skip

    units = {"from_content": (UNITS, h), "by_distance": (UNITS, s), "out": (UNITS, h)}
    yield {"bias": (h, s + 3), **units}, ask


def _stick_breaking(b: int, h: int, t: int, s: int, drop: Drop | None) -> Sized:
    for remainder in (False, True):

        def ask(of: Leaves, remainder: bool = remainder) -> Request:
            return StickBreaking(**_qkv(of, h, t), remainder=remainder, drop=drop)

        yield {}, ask


REQUESTS: dict[type[Request], Callable[[int, int, int, int, Drop | None], Sized]] = {
    Cope: _cope,
    Dape: _dape,
    Distance: _distance,
    NearFar: _near_far,
    Path: _path,
    StickBreaking: _stick_breaking,
}


def _rotation(k_BHSD: Tensor, t: int) -> Rotation:
    """A rotation of these keys and of the last t queries."""
    angle = torch.arange(k_BHSD.shape[2] * WIDTH // 2).view(-1, WIDTH // 2)
    factors = torch.polar(1 + angle.double() / angle.max(), angle.double())[None, None]
    return Rotation(factors[:, :, -t:], factors, halves=t == k_BHSD.shape[2])
