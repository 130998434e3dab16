"""The C++ kernel of attention with contextual positions."""

import ctypes
import math

from torch import Tensor

from pe_lab.core.dropout import Drop
from pe_lab.kernels.cpu.call import Dropout, Kernel, Problem, Strided, check, parts_of
from pe_lab.kernels.requests import Cope

BLOCK = 32
# Work is split into about this many parts, and the table's gradient summed in this many chunks,
# whatever the number of threads, so that results do not depend on it. Each part holds gradients of
# the keys and each chunk one of the table; more of them would take memory that grows with the
# length.
PARTS, CHUNKS = 8, 32


class CopeProblem(Problem):
    """cope_problem.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "heads", "queries", "keys", "width")),
        *((name, ctypes.c_int64) for name in ("positions", "parts", "chunks")),
        ("softmax_scale", ctypes.c_double),
        ("position_scale", ctypes.c_double),
        ("drop", Dropout),
        *((name, Strided) for name in ("q", "k", "v", "gate_q", "gate_k", "table", "out")),
        ("log_sum", ctypes.c_void_p),
        *((name, Strided) for name in ("grad_out", "grad_q", "grad_k", "grad_v")),
        *((name, Strided) for name in ("grad_gate_q", "grad_gate_k", "grad_table")),
    )
    statistics = ("log_sum",)


def _problem(settings: tuple[Drop | None, float], of: dict[str, Tensor]) -> CopeProblem:
    drop, position_scale = settings
    (b, h, t, d), s = of["q"].shape, of["k"].shape[2]
    parts = parts_of(PARTS, of["q"], b * h, BLOCK)
    sizes = b, h, t, s, d, of["table"].shape[1], parts, min(CHUNKS, b * h * parts)
    return CopeProblem(*sizes, 1 / math.sqrt(d), position_scale, Dropout(drop))


def _room(problem: CopeProblem, batch: int) -> dict[str, tuple[int, ...]]:
    keys = dict.fromkeys(("k", "v", "gate_k"), (problem.parts,))
    return {**keys, "table": (problem.chunks, 1)}


COPE = Kernel("cope", _problem, _room)


def attend(request: Cope) -> Tensor:
    """The kernel of ``Cope``, (B, H, T, D). Memory grows with T + S + N; the backward pass
    recomputes the weights. float32 and float64; tensors with a contiguous last dimension are not
    copied."""
    q, k, table = request.q, request.k, request.table_ND
    check(
        request,
        gate_q=(request.gate_q, tuple(q.shape)),
        gate_k=(request.gate_k, tuple(k.shape)),
        table=(table, (max(len(table), 1), k.shape[-1])),
    )
    # The kernel reads queries and keys once if they are the gates', too.
    gate_q = None if request.gate_q is q else request.gate_q
    gate_k = None if request.gate_k is k and gate_q is None else request.gate_k
    return COPE.attend(
        (request.drop, request.position_scale),
        q=q,
        k=k,
        v=request.v,
        gate_q=gate_q,
        gate_k=gate_k,
        # S gates count to S at most.
        table=table[None, : k.shape[-2] + 1],
    )
