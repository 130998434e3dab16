"""The backward pass of CoPE's attention in Triton, which recomputes the weights tile by tile.

Shape letters as in forward.py. Two kernels: gradients of queries need all keys, gradients
of keys need all queries. A gate is part of every position to its left, so its gradient
is a sum from the left: of the tiles there ``columns_backward`` needs one number per row, ``left``,
which ``rows_backward`` has stored.

Gradients of the scores are summed as integers, in a unit per row: atomic additions of many keys to
one score happen in any order, and integers have the same sum in all of them.
"""

import triton
import triton.language as tl

from pe_lab.kernels.triton.forward import head, kept, positions_and_scores, store_tile, tile


@triton.jit
def softmax_backward(
    logits_MN, visible_MN, lse_M, delta_M, d_out_MD, v_ND, rows_M, j, low, high, threshold, keep,
    DROPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Dropped weights, and the gradient of the logits."""
    weights_MN = tl.where(visible_MN, tl.exp(logits_MN - lse_M[:, None]), 0.0)
    d_weights_MN = tl.dot(d_out_MD, tl.trans(v_ND), input_precision=PRECISION)
    dropped_MN = weights_MN
    if DROPS:
        kept_MN = kept(rows_M, j, low, high, threshold)
        dropped_MN = tl.where(kept_MN, weights_MN * keep, 0.0)
        d_weights_MN = tl.where(kept_MN, d_weights_MN * keep, 0.0)
    return dropped_MN, weights_MN * (d_weights_MN - delta_M[:, None])


@triton.jit(do_not_specialize=["first", "low", "high", "threshold"])
def rows_backward(
    q, k, v, gate_q, gate_k, scores, lse, delta, right, d_out, left, unit, d_scores, d_q, d_gate_q,
    q_b, q_h, q_t, k_b, k_h, k_s, v_b, v_h, v_s, gq_b, gq_h, gq_t, gk_b, gk_h, gk_s,
    first, H, T, S, P, width, scale, low, high, threshold, keep,
    D: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    SEPARATE_GATES: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of M queries of a pair; keys from the left to the diagonal.

    A gate is part of every position to its left, so its gradient is a sum from the left.

    Writes d_q and d_gate_q (B, T, H, D), the latter without the part through the scores, and left
    (B H, blocks of N keys, T); adds to d_scores, integers in units of 1 / unit.
    """
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    pair = first + tl.program_id(1)
    t = block * M + tl.arange(0, M)
    place = S - T + t
    inside = t < T
    q_MD = tile(head(q, pair, H, q_b, q_h), t, T, q_t, D, WIDTH)
    d_out_MD = tile(head(d_out, pair, H, T * H * D, D), t, T, H * D, D, WIDTH)
    keys = head(k, pair, H, k_b, k_h)
    values = head(v, pair, H, v_b, v_h)
    if SEPARATE_GATES:
        gate_q_MD = tile(head(gate_q, pair, H, gq_b, gq_h), t, T, gq_t, D, WIDTH)
        gate_keys = head(gate_k, pair, H, gk_b, gk_h)
        d_gate_q_MD = tl.zeros([M, WIDTH], tl.float32)
    scores += tl.program_id(1).to(tl.int64) * T * width
    d_scores += tl.program_id(1).to(tl.int64) * T * width
    row_M = tl.where(inside, t, 0) * width
    last = P - 1
    last_score_M = tl.load(scores + row_M + last)
    lse_M = tl.load(lse + pair * T + t, mask=inside, other=0.0)
    delta_M = tl.load(delta + pair * T + t, mask=inside, other=0.0)
    unit_M = tl.load(unit + pair * T + t, mask=inside, other=0.0)
    left_M = tl.zeros([M], tl.float32)
    d_last_M = tl.zeros([M], tl.float32)
    d_q_MD = tl.zeros([M, WIDTH], tl.float32)
    blocks = tl.cdiv(S, N)
    visible = tl.minimum(S - T + block * M + M, S)
    for n in range(0, tl.cdiv(visible, N)):
        j = n * N + tl.arange(0, N)
        k_ND = tile(keys, j, S, k_s, D, WIDTH)
        v_ND = tile(values, j, S, v_s, D, WIDTH)
        visible_MN = (j[None, :] <= place[:, None]) & inside[:, None]
        logits_MN = tl.dot(q_MD, tl.trans(k_ND), input_precision=PRECISION) * scale
        border_M = (pair.to(tl.int64) * blocks + n) * T + t
        right_M = tl.load(right + border_M, mask=inside, other=float("inf"))
        tl.store(left + border_M, left_M, mask=inside)
        if tl.min(right_M) < last:
            if SEPARATE_GATES:
                gate_k_ND = tile(gate_keys, j, S, gk_s, D, WIDTH)
                gate_logits = tl.dot(gate_q_MD, tl.trans(gate_k_ND), input_precision=PRECISION)
                gate_logits_MN = gate_logits * scale
            else:
                gate_logits_MN = logits_MN
            gates_MN, integer_MN, fraction_MN, low_MN, step_MN = positions_and_scores(
                gate_logits_MN, visible_MN, right_M, scores, row_M, last
            )
            logits_MN += low_MN + fraction_MN * step_MN
            _, d_logits_MN = softmax_backward(
                logits_MN, visible_MN, lse_M, delta_M, d_out_MD, v_ND, pair * S + place, j,
                low, high, threshold, keep, DROPS, PRECISION,
            )  # fmt: skip
            d_position_MN = d_logits_MN * step_MN
            d_gates_MN = left_M[:, None] + tl.cumsum(d_position_MN, 1)
            left_M += tl.sum(d_position_MN, 1)
            d_gate_logits_MN = d_gates_MN * gates_MN * (1 - gates_MN)
            at_MN = d_scores + (row_M[:, None] + integer_MN)
            units_MN = d_logits_MN * unit_M[:, None]
            upper_MN = (units_MN * fraction_MN).to(tl.int64)
            tl.atomic_add(at_MN, units_MN.to(tl.int64) - upper_MN, mask=visible_MN, sem="relaxed")
            above_MN = visible_MN & (integer_MN < last)
            tl.atomic_add(at_MN + 1, upper_MN, mask=above_MN, sem="relaxed")
            if SEPARATE_GATES:
                d_gate_q_MD += tl.dot(
                    d_gate_logits_MN.to(gate_k_ND.dtype), gate_k_ND, input_precision=PRECISION
                )
            else:
                d_logits_MN += d_gate_logits_MN
        else:
            logits_MN += last_score_M[:, None]
            _, d_logits_MN = softmax_backward(
                logits_MN, visible_MN, lse_M, delta_M, d_out_MD, v_ND, pair * S + place, j,
                low, high, threshold, keep, DROPS, PRECISION,
            )  # fmt: skip
            d_last_M += tl.sum(d_logits_MN, 1)
        d_q_MD += tl.dot(d_logits_MN.to(k_ND.dtype), k_ND, input_precision=PRECISION)
    at_last_M = d_scores + row_M + last
    tl.atomic_add(at_last_M, (d_last_M * unit_M).to(tl.int64), mask=inside, sem="relaxed")
    store_tile(head(d_q, pair, H, T * H * D, D), d_q_MD * scale, t, T, H * D, D, WIDTH)
    if SEPARATE_GATES:
        d_gate_q_MD *= scale
        store_tile(head(d_gate_q, pair, H, T * H * D, D), d_gate_q_MD, t, T, H * D, D, WIDTH)


@triton.jit(do_not_specialize=["first", "low", "high", "threshold"])
def columns_backward(
    q, k, v, gate_q, gate_k, scores, lse, delta, right, d_out, left, d_k, d_v, d_gate_k,
    q_b, q_h, q_t, k_b, k_h, k_s, v_b, v_h, v_s, gq_b, gq_h, gq_t, gk_b, gk_h, gk_s,
    first, H, T, S, P, width, scale, low, high, threshold, keep,
    D: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    SEPARATE_GATES: tl.constexpr, DROPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of N keys of a pair; the queries to which they are visible, M at a time.

    Writes d_k, d_v and d_gate_k (B, S, H, D).
    """
    n = tl.program_id(0)
    pair = first + tl.program_id(1)
    j = n * N + tl.arange(0, N)
    k_ND = tile(head(k, pair, H, k_b, k_h), j, S, k_s, D, WIDTH)
    v_ND = tile(head(v, pair, H, v_b, v_h), j, S, v_s, D, WIDTH)
    queries = head(q, pair, H, q_b, q_h)
    d_outs = head(d_out, pair, H, T * H * D, D)
    if SEPARATE_GATES:
        gate_k_ND = tile(head(gate_k, pair, H, gk_b, gk_h), j, S, gk_s, D, WIDTH)
        gate_queries = head(gate_q, pair, H, gq_b, gq_h)
        d_gate_k_ND = tl.zeros([N, WIDTH], tl.float32)
    last = P - 1
    d_k_ND = tl.zeros([N, WIDTH], tl.float32)
    d_v_ND = tl.zeros([N, WIDTH], tl.float32)
    blocks = tl.cdiv(S, N)
    scores += tl.program_id(1).to(tl.int64) * T * width
    first_t = tl.maximum(n * N - (S - T), 0)
    for m in range(first_t // M, tl.cdiv(T, M)):
        t = m * M + tl.arange(0, M)
        place = S - T + t
        inside = t < T
        q_MD = tile(queries, t, T, q_t, D, WIDTH)
        d_out_MD = tile(d_outs, t, T, H * D, D, WIDTH)
        row_M = tl.where(inside, t, 0) * width
        lse_M = tl.load(lse + pair * T + t, mask=inside, other=0.0)
        delta_M = tl.load(delta + pair * T + t, mask=inside, other=0.0)
        visible_MN = (j[None, :] <= place[:, None]) & inside[:, None]
        logits_MN = tl.dot(q_MD, tl.trans(k_ND), input_precision=PRECISION) * scale
        # Rows to which none of these keys is visible have no border here.
        bordered = inside & (place >= n * N)
        border_M = (pair.to(tl.int64) * blocks + n) * T + t
        right_M = tl.load(right + border_M, mask=bordered, other=float("inf"))
        if tl.min(right_M) < last:
            left_M = tl.load(left + border_M, mask=bordered, other=0.0)
            if SEPARATE_GATES:
                gate_q_MD = tile(gate_queries, t, T, gq_t, D, WIDTH)
                gate_logits = tl.dot(gate_q_MD, tl.trans(gate_k_ND), input_precision=PRECISION)
                gate_logits_MN = gate_logits * scale
            else:
                gate_logits_MN = logits_MN
            gates_MN, _, fraction_MN, low_MN, step_MN = positions_and_scores(
                gate_logits_MN, visible_MN, right_M, scores, row_M, last
            )
            logits_MN += low_MN + fraction_MN * step_MN
            dropped_MN, d_logits_MN = softmax_backward(
                logits_MN, visible_MN, lse_M, delta_M, d_out_MD, v_ND, pair * S + place, j,
                low, high, threshold, keep, DROPS, PRECISION,
            )  # fmt: skip
            d_gates_MN = left_M[:, None] + tl.cumsum(d_logits_MN * step_MN, 1)
            d_gate_logits_MN = d_gates_MN * gates_MN * (1 - gates_MN)
            if SEPARATE_GATES:
                d_gate_k_ND += tl.dot(
                    tl.trans(d_gate_logits_MN.to(gate_q_MD.dtype)),
                    gate_q_MD,
                    input_precision=PRECISION,
                )
            else:
                d_logits_MN += d_gate_logits_MN
        else:
            logits_MN += tl.load(scores + row_M + last)[:, None]
            dropped_MN, d_logits_MN = softmax_backward(
                logits_MN, visible_MN, lse_M, delta_M, d_out_MD, v_ND, pair * S + place, j,
                low, high, threshold, keep, DROPS, PRECISION,
            )  # fmt: skip
        d_v_ND += tl.dot(
            tl.trans(dropped_MN.to(d_out_MD.dtype)), d_out_MD, input_precision=PRECISION
        )
        d_k_ND += tl.dot(tl.trans(d_logits_MN.to(q_MD.dtype)), q_MD, input_precision=PRECISION)
    store_tile(head(d_k, pair, H, S * H * D, D), d_k_ND * scale, j, S, H * D, D, WIDTH)
    store_tile(head(d_v, pair, H, S * H * D, D), d_v_ND, j, S, H * D, D, WIDTH)
    if SEPARATE_GATES:
        d_gate_k_ND *= scale
        store_tile(head(d_gate_k, pair, H, S * H * D, D), d_gate_k_ND, j, S, H * D, D, WIDTH)
