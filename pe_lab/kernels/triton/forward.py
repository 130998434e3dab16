"""The forward pass of CoPE's attention in Triton, and functions shared with the backward pass.

Tiles are blocks of (queries, keys).

Shape letters: M queries and N keys of a tile, D head width, T queries, S keys, P positions (the
rows of the table that S keys can reach). ``pair`` is the index b H + h of one head of one sequence.

The kernels read ``scores``, gate_q e^T, a row of P numbers for each query, computed by a matrix
product before the launch. Of the tiles to its right a tile needs one number per row, the sum of
their gates, ``right``; it is stored, so that the backward pass can start at any tile.
"""

import triton
import triton.language as tl


@triton.jit
def mix(x):
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def kept(rows_M, keys_N, low, high, threshold):
    """Dropout with the mask of pe_lab/core/dropout.py, bit for bit."""
    hashed_M = mix(mix(rows_M.to(tl.uint32) + low.to(tl.uint32)) + high.to(tl.uint32))
    bits_MN = mix(hashed_M[:, None] + (keys_N.to(tl.uint32) * 0x9E3779B9)[None, :])
    return (bits_MN >> 8) >= threshold.to(tl.uint32)


@triton.jit
def tile(start, rows, limit, stride, D: tl.constexpr, WIDTH: tl.constexpr):
    """Rows of a matrix; zeros below its end, and right of column D."""
    d = tl.arange(0, WIDTH)
    inside = (rows < limit)[:, None] & (d < D)[None, :]
    return tl.load(start + rows[:, None] * stride + d[None, :], mask=inside, other=0.0)


@triton.jit
def store_tile(start, values, rows, limit, stride, D: tl.constexpr, WIDTH: tl.constexpr):
    """Store rows of a matrix, the inverse of ``tile``."""
    d = tl.arange(0, WIDTH)
    inside = (rows < limit)[:, None] & (d < D)[None, :]
    at = start + rows[:, None] * stride + d[None, :]
    tl.store(at, values.to(start.dtype.element_ty), mask=inside)


@triton.jit
def head(start, pair, H, stride_b, stride_h):
    return start + (pair // H).to(tl.int64) * stride_b + (pair % H) * stride_h


@triton.jit
def positions_and_scores(gate_logits_MN, visible_MN, right_M, scores, row_M, last):
    """Gates, integer and fractional part of the positions, the score below and the step from it."""
    gates_MN = tl.where(visible_MN, tl.sigmoid(gate_logits_MN), 0.0)
    position_MN = right_M[:, None] + tl.cumsum(gates_MN, 1, reverse=True)
    # The minimum of NaN and the last position is the latter, so every address is valid.
    position_MN = tl.minimum(position_MN, 1.0 * last)
    floor_MN = tl.floor(position_MN)
    integer_MN = floor_MN.to(tl.int32)
    at_MN = row_M[:, None] + integer_MN
    low_MN = tl.load(scores + at_MN, mask=visible_MN, other=0.0)
    high_MN = tl.load(
        scores + tl.minimum(at_MN + 1, row_M[:, None] + last), mask=visible_MN, other=0.0
    )
    return gates_MN, integer_MN, position_MN - floor_MN, low_MN, high_MN - low_MN


@triton.jit(do_not_specialize=["first", "low", "high", "threshold"])
def forward(
    q, k, v, gate_q, gate_k, scores, out, lse, right,
    q_b, q_h, q_t, k_b, k_h, k_s, v_b, v_h, v_s, gq_b, gq_h, gq_t, gk_b, gk_h, gk_s,
    first, H, T, S, P, width, scale, low, high, threshold, keep,
    D: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    SEPARATE_GATES: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """M queries of a pair and all their keys, from the diagonal to the left.

    Writes out (B, T, H, D), the logarithm of the softmax's denominator lse (B H, T) and right
    (B H, blocks of N keys, T).
    """
    # The longest rows first, so that no long program is left for the end.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    pair = first + tl.program_id(1)
    t = block * M + tl.arange(0, M)
    place = S - T + t
    inside = t < T
    q_MD = tile(head(q, pair, H, q_b, q_h), t, T, q_t, D, WIDTH)
    keys = head(k, pair, H, k_b, k_h)
    values = head(v, pair, H, v_b, v_h)
    if SEPARATE_GATES:
        gate_q_MD = tile(head(gate_q, pair, H, gq_b, gq_h), t, T, gq_t, D, WIDTH)
        gate_keys = head(gate_k, pair, H, gk_b, gk_h)
    scores += tl.program_id(1).to(tl.int64) * T * width
    row_M = tl.where(inside, t, 0) * width
    last = P - 1
    last_score_M = tl.load(scores + row_M + last)
    right_M = tl.where(inside, 0.0, 1.0 * last)
    most_M = tl.full([M], -float("inf"), tl.float32)
    total_M = tl.zeros([M], tl.float32)
    out_MD = tl.zeros([M, WIDTH], tl.float32)
    blocks = tl.cdiv(S, N)
    visible = tl.minimum(S - T + block * M + M, S)
    for back in range(0, tl.cdiv(visible, N)):
        n = tl.cdiv(visible, N) - 1 - back
        j = n * N + tl.arange(0, N)
        k_ND = tile(keys, j, S, k_s, D, WIDTH)
        v_ND = tile(values, j, S, v_s, D, WIDTH)
        visible_MN = (j[None, :] <= place[:, None]) & inside[:, None]
        logits_MN = tl.dot(q_MD, tl.trans(k_ND), input_precision=PRECISION) * scale
        tl.store(right + (pair.to(tl.int64) * blocks + n) * T + t, right_M, mask=inside)
        if tl.min(right_M) < last:
            if SEPARATE_GATES:
                gate_k_ND = tile(gate_keys, j, S, gk_s, D, WIDTH)
                gate_logits = tl.dot(gate_q_MD, tl.trans(gate_k_ND), input_precision=PRECISION)
                gate_logits_MN = gate_logits * scale
            else:
                gate_logits_MN = logits_MN
            gates_MN, _, fraction_MN, low_MN, step_MN = positions_and_scores(
                gate_logits_MN, visible_MN, right_M, scores, row_M, last
            )
            right_M += tl.sum(gates_MN, 1)
            logits_MN += low_MN + fraction_MN * step_MN
        else:
            # Every row has reached the last position: the rest is ordinary attention.
            logits_MN += last_score_M[:, None]
        logits_MN = tl.where(visible_MN, logits_MN, -float("inf"))
        higher_M = tl.maximum(most_M, tl.max(logits_MN, 1))
        # For rows without a visible key so far, infinities would be subtracted.
        shift_M = tl.where(higher_M == -float("inf"), 0.0, higher_M)
        weights_MN = tl.exp(logits_MN - shift_M[:, None])
        shrink_M = tl.exp(most_M - shift_M)
        total_M = total_M * shrink_M + tl.sum(weights_MN, 1)
        if DROPS:
            kept_MN = kept(pair * S + place, j, low, high, threshold)
            weights_MN = tl.where(kept_MN, weights_MN * keep, 0.0)
        out_MD *= shrink_M[:, None]
        out_MD += tl.dot(weights_MN.to(v_ND.dtype), v_ND, input_precision=PRECISION)
        most_M = higher_M
    total_M = tl.where(inside, total_M, 1.0)
    tl.store(lse + pair * T + t, most_M + tl.log(total_M), mask=inside)
    store_tile(head(out, pair, H, T * H * D, D), out_MD / total_M[:, None], t, T, H * D, D, WIDTH)
