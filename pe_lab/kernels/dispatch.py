"""The backend that computes attention: the fastest one that equals the eager formulas.

A backend is checked against the formulas once per process, for each device type and dtype, before
its first use (selfcheck.py). One that fails the check is reported in a warning and the next one is
tried. ``PE_LAB_BACKEND`` allows a single backend, for tests and measurements; ``recompute``: none
but the eager formulas by blocks of queries (recompute.py); ``eager``: none at all.
"""

import functools
import importlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pe_lab.common.errors import UsageError
from pe_lab.core.dropout import Drop
from pe_lab.pe.rotation import Rotation

logger = logging.getLogger("pe_lab")

Attend = Callable[..., Tensor | None]
EAGER, RECOMPUTE = "eager", "recompute"
KINDS = ("cope", "dape", "distance", "near_far", "path", "relative", "stick_breaking")
# Of a kind that has none of its name.
LIBRARIES = dict.fromkeys(("near_far", "path", "relative", "rotary_distance"), "distance")


@dataclass(frozen=True, eq=False)
class Backend:
    """One implementation of fused attention.

    Args:
        modules: kind of attention -> the module with a function of that name, which returns None
            for tensors that it does not support.
        device: the type of device on which it runs; None: any.
        min_queries: from how many on it is faster than the eager code.
    """

    name: str
    modules: dict[str, str]
    device: str | None
    min_queries: int = 1

    def function(self, kind: str) -> Attend | None:
        """None where this machine does not have it."""
        if kind not in self.modules:
            return None
        if self.name == "cpu":
            from pe_lab.kernels.cpu import build

            # ``library`` has logged the reason.
            if build.library(LIBRARIES.get(kind, kind)) is None:
                return None
        function: Attend = getattr(importlib.import_module(self.modules[kind]), kind)
        return function


def _in(module: str) -> str:
    return f"pe_lab.kernels.{module}"


# The fastest first. On a CPU, PyTorch takes a tenth of the kernel's time for a single query, as in
# decoding (CoPE's eager formula: three quarters), as the kernel computes whole blocks of queries.
BACKENDS = (
    Backend(
        "cpu",
        {
            "cope": _in("cpu.cope"),
            **dict.fromkeys(("distance", "near_far", "rotary_distance"), _in("cpu.distance")),
            **{
                kind: _in(f"cpu.{kind}")
                for kind in KINDS
                if kind not in ("cope", "distance", "near_far")
            },
        },
        "cpu",
        min_queries=2,
    ),
)
FULL = torch.float32, torch.float64
NAMES = (*(backend.name for backend in BACKENDS), RECOMPUTE, EAGER)
_only: ContextVar[str | None] = ContextVar("only", default=None)


@contextmanager
def only(name: str) -> Iterator[None]:
    """Allow only the backend of this name; ``eager``: none."""
    token = _only.set(_checked(name))
    try:
        yield
    finally:
        _only.reset(token)


def cope(
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSD: Tensor,
    gate_q_BHTD: Tensor,
    gate_k_BHSD: Tensor,
    table_ND: Tensor,
    position_scale: float,
    drop: Drop | None,
) -> Tensor | None:
    """Causal attention with contextual positions, (B, H, T, D); None where no backend supports it.

    Logits are q.k / sqrt(D) + position_scale gate_q.e[p], e the table, p the sums of the gates
    sigmoid(gate_q.gate_k / sqrt(D)). The T queries are the last of the S tokens.
    """
    tensors = q_BHTD, k_BHSD, v_BHSD, gate_q_BHTD, gate_k_BHSD, table_ND
    return _attend("cope", *tensors, position_scale, drop)


def distance(
    q_BHTD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, bias_HN: Tensor | None, drop: Drop | None
) -> Tensor | None:
    """Causal attention, (B, H, T, D), with a bias for each head and distance; None as above."""
    return _attend("distance", q_BHTD, k_BHSD, v_BHSD, bias_HN, drop)


def rotary_distance(
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSD: Tensor,
    bias_HN: Tensor | None,
    rotation: Rotation,
    drop: Drop | None,
) -> Tensor | None:
    """``distance`` of rotated queries and keys; None where the caller has to rotate them first."""
    if rotation.q.requires_grad or rotation.k.requires_grad:
        return None
    return _attend("rotary_distance", q_BHTD, k_BHSD, v_BHSD, bias_HN, rotation, drop)


def serves(kind: str, q_BHTD: Tensor) -> bool:
    """Whether a kernel of full precision supports such queries; otherwise its other arguments need
    not be computed."""
    device, dtype = q_BHTD.device.type, q_BHTD.dtype
    return any(
        dtype in FULL and verified(backend, kind, device, dtype) is not None
        for backend in allowed(device)
        if kind in backend.modules
    )


def backend_names(device: torch.device, kinds: Iterable[str] = KINDS) -> dict[str, str]:
    """The backend of each kind of attention in float32 on a device."""
    return {kind: _first(kind, device.type) for kind in sorted(kinds)}


def _first(kind: str, device: str) -> str:
    for backend in allowed(device):
        if verified(backend, kind, device, torch.float32) is not None:
            return backend.name
    return RECOMPUTE if forced(RECOMPUTE) else EAGER


def _attend(kind: str, q: Tensor, *rest: Any) -> Tensor | None:
    with torch.autocast(q.device.type, enabled=False):
        only_one = _forced() is not None
        for backend in allowed(q.device.type):
            pays = only_one or q.shape[2] >= backend.min_queries
            if pays and q.dtype in FULL:
                attend = verified(backend, kind, q.device.type, q.dtype)
                out = None if attend is None else attend(q, *rest)
                if out is not None:
                    return out
    return None


# Their arguments are those of the functions of these names in cpu/.
relative = functools.partial(_attend, "relative")
stick_breaking = functools.partial(_attend, "stick_breaking")
path = functools.partial(_attend, "path")
dape = functools.partial(_attend, "dape")
near_far = functools.partial(_attend, "near_far")


def cpu_kernels_may_read(x: Tensor) -> bool:
    """Whether a C++ kernel other than attention may be used on such tensors."""
    return x.is_cpu and x.dtype in FULL and any(backend.name == "cpu" for backend in allowed("cpu"))


def allowed(device: str) -> Iterator[Backend]:
    """The backends of a device type, the fastest first."""
    name = _forced()
    return (b for b in BACKENDS if b.device in (None, device) and name in (None, b.name))


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
def verified(backend: Backend, kind: str, device: str, dtype: torch.dtype) -> Attend | None:
    """The backend's function, if it is available and passes the self-check; else a warning."""
    from pe_lab.kernels.selfcheck import difference

    try:
        attend = backend.function(kind)
        if attend is None:
            return None
        wrong = difference(kind, attend, torch.device(device), dtype)
    except Exception as error:  # whatever it is, slower code remains
        wrong = f"{type(error).__name__}: {error}".splitlines()[0]
    if wrong:
        logger.warning(
            "the %s kernel of %s attention failed its self-check (%s); falling back to PyTorch",
            backend.name,
            kind,
            wrong,
        )
        return None
    return attend
