"""CoPE's attention on a GPU: the autograd function of the Triton kernels.

Memory in addition to inputs and outputs: for each head of each sequence T S / 32 numbers of float32
from the forward to the backward pass; and for a few heads at a time T min(npos, S + 1) scores, 4
bytes each in the forward pass and 16 in the backward pass, in total at most ``SCORES_BYTES``, or
what one head needs.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from pe_lab.core.dropout import Drop
from pe_lab.kernels.triton.backward import columns_backward, rows_backward
from pe_lab.kernels.triton.forward import forward

SCORES_BYTES = 2**30
KEYS = 32
# The gradients of the scores of a row are at most its bound: 2^60 units leave room below 2^63.
UNITS = 2.0**60
_MAX_HEADS = 65535  # of a launch: the grid's second dimension


def supports(q_BHTD: Tensor, table_ND: Tensor, drop: Drop | None) -> bool:
    """Whether ``cope`` supports these tensors."""
    dtype = q_BHTD.dtype in (torch.float32, torch.bfloat16, torch.float16)
    return q_BHTD.is_cuda and dtype and table_ND.dtype == torch.float32


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
    """Attention with contextual positions, as in pe/cope.py, (B, H, T, D); None for tensors that it
    does not support.

    logits_ij = q_i.k_j / sqrt(D) + position_scale gate_q_i.e[p_ij], j <= i, the T queries the last
    of the S tokens; p_ij sums sigmoid(gate_q_i.gate_k_n / sqrt(D)) over n = j .. i, up to npos - 1.

    Positions, softmax and sums are float32. Products of float32 are computed by three in tf32, with
    errors of a few 1e-7, or by one if ``torch.set_float32_matmul_precision`` allows it.

    Args:
        table_ND: e, (npos, D), float32.
        drop: of the softmax weights; its rows are (b H + h) S + S - T + t.
    """
    if not supports(q_BHTD, table_ND, drop):
        return None
    shared = gate_q_BHTD is q_BHTD and gate_k_BHSD is k_BHSD
    gates = (None, None) if shared else (gate_q_BHTD, gate_k_BHSD)
    out: Tensor = _Cope.apply(  # type: ignore[no-untyped-call]
        q_BHTD, k_BHSD, v_BHSD, *gates, table_ND, position_scale, drop
    )
    return out


class _Cope(torch.autograd.Function):
    """``cope``; gate_q and gate_k are None if they are q and k."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        (b, h, t, d), s = q.shape, k.shape[2]
        call = _Call(q, k, v, *rest)
        out = q.new_empty(b, t, h, d)
        lse = q.new_empty(b, h, t, dtype=torch.float32)
        right = q.new_empty(b * h, triton.cdiv(s, KEYS), t, dtype=torch.float32)
        for heads in call.groups(bytes_per_score=4):
            call.launch(forward, t, call.block, heads, call.scores(heads), out, lse, right)
        result = out.transpose(1, 2)
        gate_q, gate_k, table, ctx.position_scale, ctx.drop = rest
        ctx.save_for_backward(q, k, v, gate_q, gate_k, table, result, lse, right)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_result: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, gate_q, gate_k, table, result, lse, right = ctx.saved_tensors
        (b, h, t, d), s = q.shape, k.shape[2]
        call = _Call(q, k, v, gate_q, gate_k, table, ctx.position_scale, ctx.drop)
        d_out = d_result.to(q.dtype).transpose(1, 2).contiguous()
        wide = d_out.transpose(1, 2).float()
        delta = (wide * result).sum(-1).contiguous()
        # |gradient of weights_ij| <= |d_out_i| |v_j| / (1 - p), and a row's weights sum up to 1.
        longest = torch.linalg.vector_norm(v.float(), dim=-1).amax(-1, keepdim=True)
        bound = call.keep * torch.linalg.vector_norm(wide, dim=-1) * longest + delta.abs()
        unit = (UNITS / bound.clamp(min=1e-18)).contiguous()
        left = torch.empty_like(right)
        d_q = q.new_empty(b, t, h, d)
        d_k, d_v = k.new_empty(b, s, h, d), v.new_empty(b, s, h, d)
        d_gate_q = None if gate_q is None else torch.empty_like(d_q)
        d_gate_k = None if gate_k is None else torch.empty_like(d_k)
        d_queries = torch.empty_like(call.queries)
        d_rows = torch.zeros_like(call.rows)
        for heads in call.groups(bytes_per_score=16):
            scores = call.scores(heads)
            d_scores = torch.zeros_like(scores, dtype=torch.int64)
            read = scores, lse, delta, right, d_out, left
            written = unit, d_scores, d_q, d_gate_q
            call.launch(rows_backward, t, call.block, heads, *read, *written)
            call.launch(columns_backward, s, KEYS, heads, *read, d_k, d_v, d_gate_k)
            d_scores = d_scores / unit.view(b * h, t, 1)[heads]
            d_queries[heads] = _product(d_scores, call.rows)
            d_rows += _product(d_scores.flatten(0, 1).T, call.queries[heads].flatten(0, 1))
        counting = d_q if d_gate_q is None else d_gate_q
        counting += d_queries.view(b, h, t, d).transpose(1, 2)
        d_table = torch.zeros_like(table)
        d_table[: call.positions] = call.position_scale * d_rows[: call.positions]
        grads = d_q, d_k, d_v, d_gate_q, d_gate_k
        return *(g if g is None else g.transpose(1, 2) for g in grads), d_table, None, None


class _Call:
    """The arguments of the kernels, from those of ``_Cope``."""

    def __init__(self, *inputs: Any) -> None:
        q, k, v, gate_q, gate_k, table, position_scale, drop = inputs
        (b, h, t, d), s = q.shape, k.shape[2]
        self.inputs = [_rows(x) for x in (q, k, v, gate_q, gate_k)]
        self.strides = [n for x in self.inputs for n in ((0,) * 3 if x is None else x.stride()[:3])]
        self.position_scale = position_scale
        self.positions = min(len(table), s + 1)
        self.queries = (q if gate_q is None else gate_q).reshape(b * h, t, d).float()
        # Rows of scores are aligned to 32 bytes, for faster matrix products.
        self.rows = F.pad(position_scale * table[: self.positions], (0, 0, 0, -self.positions % 8))
        self.keep = 1.0 if drop is None else drop.scale
        hashed = (0, 0, 0)
        if drop is not None:
            hashed = (_signed(int(drop.low)), _signed(int(drop.high)), drop.threshold)
        self.numbers = (h, t, s, self.positions, len(self.rows), d**-0.5, *hashed, self.keep)
        width = max(16, triton.next_power_of_2(d))
        # The largest that fit into the registers, by the compiler's report for sm_80 and sm_90.
        if q.dtype == torch.float32:
            self.block, warps = 16, 4 if width <= 64 else 8
        else:
            self.block, warps = 64 if width <= 64 else 32, 8
        self.constants = {
            "D": d,
            "WIDTH": width,
            "M": self.block,
            "N": KEYS,
            "SEPARATE_GATES": gate_q is not None,
            "DROPS": drop is not None,
            # Products of float32.
            "PRECISION": "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32",
            "num_warps": warps,
            "num_stages": 2,
        }

    def groups(self, bytes_per_score: int) -> Iterator[slice]:
        """Slices of heads whose scores fit into ``SCORES_BYTES``."""
        each = self.queries.shape[1] * len(self.rows) * bytes_per_score
        size = min(max(1, SCORES_BYTES // each), _MAX_HEADS)
        for first in range(0, len(self.queries), size):
            yield slice(first, min(first + size, len(self.queries)))

    def scores(self, heads: slice) -> Tensor:
        """position_scale gate_q e^T of these heads."""
        return _product(self.queries[heads], self.rows.T)

    def launch(
        self, kernel: Any, rows: int, block: int, heads: slice, *tensors: Tensor | None
    ) -> None:
        """Run one program for each block of rows of each of these heads."""
        grid = (triton.cdiv(rows, block), heads.stop - heads.start)
        numbers = (*self.strides, heads.start, *self.numbers)
        kernel[grid](*self.inputs, *tensors, *numbers, **self.constants)


def _rows(x: Tensor | None) -> Tensor | None:
    return x if x is None or x.stride(-1) == 1 else x.contiguous()


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in the precision of a and b, also under autocast."""
    with torch.autocast(a.device.type, enabled=False):
        return a @ b


def _signed(half: int) -> int:
    """The same 32 bits as a signed number: one type for all keys, or Triton would recompile."""
    return half - 2**32 if half >= 2**31 else half
