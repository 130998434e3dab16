"""The choice of the code that computes attention: a C++ kernel, or PyTorch.

A kernel is compared with its formula once per process and dtype, before its first use
(selfcheck.py). If it fails, a warning says so and PyTorch computes attention. ``PE_LAB_BACKEND``
allows a single backend, for tests and measurements:

- ``cpu``: the kernels;
- ``recompute``: the plain formulas by blocks of queries (attention.py);
- ``eager``: the plain formulas.
"""

import functools
import importlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from pe_lab.common.errors import UsageError
from pe_lab.kernels.requests import KINDS, Request

logger = logging.getLogger("pe_lab")

Attend = Callable[[Any], Tensor | None]
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
    name = _forced()
    if not readable(q_BHTD, name):
        return None
    # PyTorch takes a tenth of the kernel's time for a single query, as in decoding (CoPE's formula:
    # three quarters), as the kernel computes whole blocks of queries.
    if q_BHTD.shape[2] < 2 and name is None:
        return None
    return verified(kind, q_BHTD.dtype)


def cpu_kernels_may_read(x: Tensor) -> bool:
    """Whether a C++ kernel may be used on this tensor."""
    return readable(x, _forced())


def readable(x: Tensor, name: str | None) -> bool:
    """As ``cpu_kernels_may_read``, where ``name`` is the only backend allowed (None: all are)."""
    return name in (None, CPU) and x.is_cpu and x.dtype in FULL


def backend_names(device: torch.device, kinds: Iterable[type[Request]] = KINDS) -> dict[str, str]:
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


def kernel(kind: type[Request]) -> Attend:
    """The kernel of a kind of attention, not yet compared with its formula."""
    return importlib.import_module(f"pe_lab.kernels.cpu.{kind.module}").attend


@functools.cache
def verified(kind: type[Request], dtype: torch.dtype) -> Attend | None:
    """The kernel, if it is available and passes the self-check; else a warning."""
    from pe_lab.kernels.cpu.build import NoLibraryError
    from pe_lab.kernels.selfcheck import difference

    try:
        found = kernel(kind)
        wrong = difference(kind, found, dtype)
    except NoLibraryError:
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
    return found
