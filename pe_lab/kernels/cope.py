"""The C++ kernel of attention with contextual positions."""

import ctypes

from torch import Tensor

from pe_lab.kernels.call import Dropout, Kernel, Problem, Strided, parts_of
from pe_lab.pe.base import AttentionInputs
from pe_lab.pe.cope import CoPE, TablePositions

BLOCK = 32
# Each part holds gradients of the keys and each chunk one of the table: more of them would take
# memory that grows with the length.
PARTS, CHUNKS = 8, 32


class CopeProblem(Problem):
    """cope_problem.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "heads", "queries", "keys", "width")),
        *((name, ctypes.c_int64) for name in ("positions", "parts", "chunks")),
        *((name, ctypes.c_double) for name in ("softmax_scale", "position_scale")),
        ("drop", Dropout),
        *((name, Strided) for name in ("q", "k", "v", "gate_q", "gate_k", "table", "out")),
        ("log_sum", ctypes.c_void_p),
        *((name, Strided) for name in ("grad_out", "grad_q", "grad_k", "grad_v")),
        *((name, Strided) for name in ("grad_gate_q", "grad_gate_k", "grad_table")),
    )
    statistics = ("log_sum",)


def make_problem(tensors: dict[str, Tensor], drop: Dropout, position_scale: float) -> CopeProblem:
    q, s = tensors["q"], tensors["k"].shape[2]
    b, h, t, d = q.shape
    parts = parts_of(PARTS, q, b * h, BLOCK)
    sizes = b, h, t, s, d, tensors["table"].shape[1], parts, min(CHUNKS, b * h * parts)
    return CopeProblem(*sizes, d**-0.5, position_scale, drop)


def room(problem: CopeProblem, batch: int) -> dict[str, tuple[int, ...]]:
    return dict.fromkeys(("k", "v", "gate_k"), (problem.parts,)) | {"table": (problem.chunks, 1)}


COPE = Kernel("cope", make_problem, room)


def attend(
    encoding: CoPE, q: Tensor, k: Tensor, inputs: AttentionInputs, drop: Dropout
) -> Tensor | None:
    """The averaged values, (B, H, T, D)."""
    gate_q, gate_k = encoding.gate_operands(inputs)
    # The kernel reads queries and keys once if they are the gates', too.
    gates = {
        "gate_q": None if gate_q is q else gate_q,
        "gate_k": None if gate_q is q and gate_k is k else gate_k,
    }
    assert isinstance(encoding.position, TablePositions)
    table = encoding.position.table[None, : k.shape[2] + 1].to(q.dtype)  # S gates count to S
    scale = q.shape[-1] ** -0.5 if encoding.scale_positions else 1.0
    return COPE.attend(drop, scale, q=q, k=k, v=inputs.v_BHSD, table=table, **gates)
