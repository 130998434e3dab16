"""Which road serves: the fastest that is known, on this machine, to equal the eager formulas.

A road is proved once in a process, for each type of device and of number, before it is used (see
proof.py); where it fails one warning says so, and the next one serves. ``PE_LAB_ROAD`` names the
only road that may serve, for tests and measurements; ``eager``: none.
"""

import functools
import importlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from pe_lab.common.dropout import Drop, mapped
from pe_lab.common.tracing import tracing
from pe_lab.kernels.turns import Turns

logger = logging.getLogger("pe_lab")

Attend = Callable[..., Tensor | None]
Given = tuple[Tensor | None, ...]
"""Of ``cope`` or ``distance``: all tensors, the table or the bias last."""
EAGER = "eager"
KINDS = ("cope", "distance")


@dataclass(frozen=True, eq=False)
class Road:
    """One way to compute attention.

    Args:
        modules: ``cope`` and ``distance``, or one of them -> the module that has it. It returns
            None for tensors that it does not serve.
        device: the type of device on which it serves; None: any.
        half: whether it takes queries, keys and values in half precision.
        needs: the package without which it is not there.
        pays: whether it is faster than the eager code for these tensors.
    """

    name: str
    modules: dict[str, str]
    device: str | None
    half: bool = False
    needs: str = "torch"
    pays: Callable[[str, Given, Drop | None], bool] = lambda kind, given, drop: True

    def function(self, kind: str) -> Attend | None:
        """None where this machine does not have it."""
        if kind not in self.modules or find_spec(self.needs) is None:
            return None
        if self.name == "compiled":
            from pe_lab.kernels import build

            # It has told why.
            if build.library(kind.removeprefix("turned_")) is None:
                return None
        found: Attend = getattr(importlib.import_module(self.modules[kind]), kind)
        return found


def _in(module: str) -> str:
    return f"pe_lab.kernels.{module}"


def _in_blocks(kind: str, given: Given, drop: Drop | None) -> bool:
    """As measured on a CPU. PyTorch's own fused attention is faster where a bias stays what it is
    and nothing is dropped, as long as there is memory for (H, T, S)."""
    q_BHTD, k_BHSD = given[:2]
    assert q_BHTD is not None
    assert k_BHSD is not None
    (b, h, t, _), s = q_BHTD.shape, k_BHSD.shape[2]
    bias_HN = given[-1]
    moves = bias_HN is not None and bias_HN.requires_grad
    if kind == "distance" and drop is None and not moves and t * s < 2048 * 2048:
        return False
    return t * s >= 128 * 128 and max(b, h) * min(t, 64) * s >= 2**15


def _several_queries(kind: str, given: Given, drop: Drop | None) -> bool:
    """As measured on a CPU: the work is a block of queries at least, where PyTorch's own needs a
    tenth of the time for one, as it is decoded (CoPE's eager formula: three quarters)."""
    q_BHTD = given[0]
    assert q_BHTD is not None
    return q_BHTD.shape[2] > 1


# The faster first.
ROADS = (
    Road(
        "compiled",
        {
            "cope": _in("compiled_cope"),
            **dict.fromkeys(("distance", "turned_distance"), _in("compiled")),
        },
        "cpu",
        pays=_several_queries,
    ),
    Road("triton", {"cope": _in("triton_cope")}, "cuda", half=True, needs="triton"),
    Road("flex", {"distance": _in("flex")}, "cuda", half=True),
    Road("chunked", dict.fromkeys(KINDS, _in("chunked")), None, pays=_in_blocks),
)
FULL, HALF = (torch.float32, torch.float64), (torch.bfloat16, torch.float16)
NAMES = (*(road.name for road in ROADS), EAGER)
_only: ContextVar[str | None] = ContextVar("only", default=None)
_asked: ContextVar[set[str] | None] = ContextVar("asked", default=None)


@contextmanager
def only(name: str) -> Iterator[None]:
    """No other road serves than the one of this name; ``eager``: none."""
    token = _only.set(_known(name))
    try:
        yield
    finally:
        _only.reset(token)


def taken(fast: bool) -> AbstractContextManager[None]:
    """Whether a kernel may serve inside."""
    return nullcontext() if fast else only(EAGER)


@contextmanager
def asked() -> Iterator[set[str]]:
    """The kinds of attention that are asked for inside; no road is tried, the eager code serves."""
    kinds: set[str] = set()
    token = _asked.set(kinds)
    try:
        yield kinds
    finally:
        _asked.reset(token)


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
    """Causal attention with contextual positions, (B, H, T, D); None: the eager code serves.

    Logits are q.k / sqrt(D) + position_scale gate_q.e[p], e the table, p the sums of the gates
    sigmoid(gate_q.gate_k / sqrt(D)). The T queries are the last of the S tokens.
    """
    given = (q_BHTD, k_BHSD, v_BHSD, gate_q_BHTD, gate_k_BHSD, table_ND)
    return _serve("cope", given, position_scale, drop)


def distance(
    q_BHTD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, bias_HN: Tensor | None, drop: Drop | None
) -> Tensor | None:
    """Causal attention, (B, H, T, D), with a bias for each head and distance; None as above."""
    return _serve("distance", (q_BHTD, k_BHSD, v_BHSD, bias_HN), drop)


def turned_distance(
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSD: Tensor,
    bias_HN: Tensor | None,
    turns: Turns,
    drop: Drop | None,
) -> Tensor | None:
    """``distance`` of queries and keys that are turned on the way; None where who asks turns them
    and then asks for ``distance``."""
    learned = turns.q.requires_grad or turns.k.requires_grad
    if _asked.get() is not None or learned or not reachable(drop, turns.q, turns.k):
        return None
    given = (q_BHTD, k_BHSD, v_BHSD, bias_HN)
    return _serve("turned_distance", given, turns, drop)


def turns_on_the_way(q_BHTD: Tensor) -> bool:
    """Whether ``turned_distance`` may serve such queries: without a road that turns them, who asks
    need not make the turns."""
    device, dtype = q_BHTD.device.type, q_BHTD.dtype
    return reachable(None, q_BHTD) and any(
        dtype in FULL and proved(road, "turned_distance", device, dtype) is not None
        for road in allowed(device)
        if "turned_distance" in road.modules
    )


def named(device: torch.device, kinds: Iterable[str] = KINDS) -> dict[str, str]:
    """The road that serves each kind of attention in float32 on a device."""
    return {kind: _first(kind, device.type) for kind in sorted(kinds)}


def _first(kind: str, device: str) -> str:
    for road in allowed(device):
        if proved(road, kind, device, torch.float32) is not None:
            return road.name
    return EAGER


def _serve(kind: str, given: Given, *rest: Any) -> Tensor | None:
    q, drop = given[0], rest[-1]
    assert q is not None
    if (kinds := _asked.get()) is not None:
        kinds.add(kind)
        return None
    if tracing():
        return _traced(kind, given, *rest)
    if not reachable(drop, *given):
        return None
    with torch.autocast(q.device.type, enabled=False):
        forced = _forced() is not None
        for road in allowed(q.device.type):
            pays = forced or road.pays(kind, given, drop)
            if pays and (q.dtype in FULL or (road.half and q.dtype in HALF)):
                attend = proved(road, kind, q.device.type, q.dtype)
                out = None if attend is None else attend(*given, *rest)
                if out is not None:
                    return out
    return None


def _traced(kind: str, given: Given, *rest: Any) -> Tensor | None:
    """``_serve`` where the step is traced: a kernel is written down, which was proved before."""
    from pe_lab.kernels import traced

    q, scale, drop = given[0], 1.0 if len(rest) == 1 else rest[0], rest[-1]
    assert q is not None
    with torch.autocast(q.device.type, enabled=False):
        for road in allowed(q.device.type):
            kernel = traced.KERNELS.get((road.name, kind))
            known = q.dtype in FULL or (road.half and q.dtype in HALF)
            if kernel is None or not known or not road.pays(kind, given, drop):
                continue
            served = proved(road, kind, q.device.type, q.dtype) is not None
            if served and kernel.serves(given, drop):
                return traced.attended(road.name, kind, given, scale, drop)
    return None


def reachable(drop: Drop | None, *given: Tensor | None) -> bool:
    """Whether a kernel can read these: what is traced has no values, what torch.func maps over has
    no memory of its own, and several models trained at once have several keys."""
    several = drop is not None and mapped(drop.key)
    compiling = tracing() or torch.compiler.is_compiling()
    return not (several or compiling or any(map(mapped, given)))


def compiled_may(x: Tensor, *others: Tensor | None, drop: Drop | None = None) -> bool:
    """Whether a compiled kernel for something else than attention may read these."""
    return (
        reachable(drop, x, *others)
        and x.is_cpu
        and x.dtype in (torch.float32, torch.float64)
        and any(road.name == "compiled" for road in allowed("cpu"))
    )


def allowed(device: str) -> Iterator[Road]:
    """The roads of a type of device, the faster first."""
    forced = _forced()
    return (r for r in ROADS if r.device in (None, device) and forced in (None, r.name))


def _forced() -> str | None:
    forced = _only.get() or os.environ.get("PE_LAB_ROAD")
    return None if forced is None else _known(forced)


def _known(name: str) -> str:
    if name not in NAMES:
        raise ValueError(f"there is no road {name!r}: choose one of {', '.join(NAMES)}")
    return name


@functools.cache
def proved(road: Road, kind: str, device: str, dtype: torch.dtype) -> Attend | None:
    """The road's function, if it is there and equals the eager one; a warning if it does not."""
    from pe_lab.kernels.proof import difference

    try:
        attend = road.function(kind)
        if attend is None:
            return None
        wrong = difference(kind, attend, torch.device(device), dtype)
    except Exception as error:  # whatever it is, slower code can serve
        wrong = f"{type(error).__name__}: {error}".splitlines()[0]
    if wrong:
        logger.warning(
            "the %s kernel of %s attention does not serve on this machine (%s): slower code does",
            road.name,
            kind,
            wrong,
        )
        return None
    return attend
