"""The C++ kernel of attention with a bias by distance, or with forget gates.

logits[i, j] = q_i . k_j / sqrt(D) + bias[h, i - j] + kept_i - kept_j
"""

import ctypes
from typing import ClassVar

import torch
from torch import Tensor

from pe_lab.kernels.call import Dropout, Kernel, Problem, Strided, parts_of
from pe_lab.pe.base import AttentionInputs, PositionalEncoding
from pe_lab.pe.fox import FoX
from pe_lab.pe.functional import consecutive

BLOCK = 64
PARTS = 16


class DistanceProblem(Problem):
    """distance_problem.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "heads", "queries", "keys", "width")),
        ("parts", ctypes.c_int64),
        ("softmax_scale", ctypes.c_double),
        ("drop", Dropout),
        *((name, Strided) for name in ("q", "k", "v", "out")),
        *((name, ctypes.c_void_p) for name in ("largest", "sum", "bias", "kept")),
        *((name, Strided) for name in ("grad_out", "grad_q", "grad_k", "grad_v")),
        *((name, ctypes.c_void_p) for name in ("grad_bias", "grad_kept")),
        *((name, ctypes.c_void_p) for name in ("products", "diagonal")),
        *((name, ctypes.c_void_p) for name in ("grad_products", "grad_diagonal")),
    )
    statistics: ClassVar[tuple[str, ...]] = ("largest", "sum")


def make_problem(tensors: dict[str, Tensor], drop: Dropout, setting: None) -> DistanceProblem:
    q, s = tensors["q"], tensors["k"].shape[2]
    b, h, t, d = q.shape
    # Queries of path.py come divided by sqrt(D).
    scale = 1 if "products" in tensors else d**-0.5
    return DistanceProblem(b, h, t, s, d, parts_of(PARTS, q, b * h, BLOCK), scale, drop)


def room(problem: DistanceProblem, batch: int) -> dict[str, tuple[int, ...]]:
    of_parts = (problem.parts,)
    return {"q": of_parts, "products": of_parts, "bias": (problem.parts, batch)}


DISTANCE = Kernel("distance", make_problem, room)


def attend(
    encoding: PositionalEncoding, q: Tensor, k: Tensor, inputs: AttentionInputs, drop: Dropout
) -> Tensor | None:
    """The averaged values, (B, H, T, D); None where distances of positions are not those of the
    places of tokens."""
    kept = bias = None
    if isinstance(encoding, FoX):
        kept = encoding.log_decay(inputs).to(q.dtype)
    elif "bias" in encoding.hooks():
        if not consecutive(inputs.pos_k_BS):
            return None
        bias = bias_by_distance(encoding, k)
    return DISTANCE.attend(drop, q=q, k=k, v=inputs.v_BHSD, bias=bias, kept=kept)


def bias_by_distance(encoding: PositionalEncoding, k_BHSD: Tensor) -> Tensor | None:
    """The bias at the distances 0 .. S - 1, (H, S)."""
    (_, h, s, _), dtype = k_BHSD.shape, k_BHSD.dtype
    pos_BS = torch.arange(s)[None]
    bias_BHTS = encoding.bias(pos_BS[:, -1:], pos_BS)
    return None if bias_BHTS is None else bias_BHTS[0, :, 0].flip(-1).expand(h, s).to(dtype)
