"""The eager formulas of each kind of attention, with which the self-check compares the kernels.

Shape letters as in pe/base.py.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pe_lab.core.dropout import Drop, attention_rows
from pe_lab.pe.rotation import Rotation, multiply_pairs


def cope(
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSD: Tensor,
    gate_q_BHTD: Tensor,
    gate_k_BHSD: Tensor,
    table_ND: Tensor,
    position_scale: float,
    drop: Drop | None,
) -> Tensor:
    """``dispatch.cope``, written out: no code is shared with pe/cope.py, so that neither a kernel
    nor the encoding can hide an error of the other."""
    width, (t, s) = q_BHTD.shape[-1], (q_BHTD.shape[2], k_BHSD.shape[2])
    gate_logits = gate_q_BHTD @ gate_k_BHSD.mT / math.sqrt(width)
    scores = gate_q_BHTD @ table_ND.T
    gates = gate_logits.sigmoid() * _causal_mask(t, s, q_BHTD.device)
    p = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=len(table_ND) - 1)
    below = p.detach().long()
    above = (below + 1).clamp(max=len(table_ND) - 1)
    term = torch.lerp(scores.gather(-1, below), scores.gather(-1, above), p - below)
    return _mix(q_BHTD @ k_BHSD.mT / math.sqrt(width) + position_scale * term, v_BHSD, drop)


def distance(
    q_BHTD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, bias_HN: Tensor | None, drop: Drop | None
) -> Tensor:
    """``dispatch.distance``."""
    t, s = q_BHTD.shape[2], k_BHSD.shape[2]
    logits = q_BHTD @ k_BHSD.mT / math.sqrt(q_BHTD.shape[-1])
    if bias_HN is not None:
        logits = logits + bias_HN[:, _far(t, s, q_BHTD.device)]
    return _mix(logits, v_BHSD, drop)


def stick_breaking(
    q_BHTD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, remainder: bool, drop: Drop | None
) -> Tensor:
    """``dispatch.stick_breaking``."""
    t, s = q_BHTD.shape[2], k_BHSD.shape[2]
    seen = _causal_mask(t, s, q_BHTD.device)
    before = seen.tril(s - t - 1)
    share = (q_BHTD @ k_BHSD.mT / math.sqrt(q_BHTD.shape[-1])).sigmoid() * before
    left = (1 - share).flip(-1).cumprod(-1).flip(-1)
    left_after = torch.cat((left[..., 1:], torch.ones_like(left[..., :1])), -1)
    weights = share * left_after
    if remainder:
        weights = weights + left[..., :1] * (seen & ~before)
    return (weights if drop is None else drop(weights, attention_rows(weights))) @ v_BHSD


def dape(
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSD: Tensor,
    bias_HN: Tensor,
    from_content_WH: Tensor,
    by_distance_WN: Tensor,
    out_WH: Tensor,
    drop: Drop | None,
) -> Tensor:
    """``dispatch.dape``."""
    t, s = q_BHTD.shape[2], k_BHSD.shape[2]
    far_TS = _far(t, s, q_BHTD.device)
    content = q_BHTD @ k_BHSD.mT / math.sqrt(q_BHTD.shape[-1])
    units = by_distance_WN[:, far_TS] + torch.einsum("wh,bhts->bwts", from_content_WH, content)
    units = torch.where(units > 0, units, 0.01 * units)
    adjustment = torch.einsum("wh,bwts->bhts", out_WH, units)
    return _mix(content + bias_HN[:, far_TS] + adjustment, v_BHSD, drop)


def path(
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSD: Tensor,
    w_BHSD: Tensor,
    beta_BHS: Tensor,
    kept_BHS: Tensor | None,
    drop: Drop | None,
) -> Tensor:
    """``dispatch.path``: each token in turn multiplies the queries that are not before it."""
    (t, d), s = q_BHTD.shape[2:], k_BHSD.shape[2]
    q, columns = q_BHTD / math.sqrt(d), []
    for j in reversed(range(s)):
        columns.append(q @ k_BHSD[:, :, j, :, None])
        w = w_BHSD[:, :, j, None]
        passed = q - beta_BHS[:, :, j, None, None] * (q @ w.mT) * w
        at_or_after = torch.arange(s - t, s, device=q.device)[:, None] >= j
        q = torch.where(at_or_after, passed, q)
    logits = torch.cat(columns[::-1], -1)
    if kept_BHS is not None:
        logits = logits + (kept_BHS[:, :, s - t :, None] - kept_BHS[:, :, None])
    return _mix(logits, v_BHSD, drop)


def relative(
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSD: Tensor,
    bias_HN: Tensor | None,
    kept_BHS: Tensor | None,
    bias_HTS: Tensor | None,
    key_HND: Tensor | None,
    query_HND: Tensor | None,
    value_HND: Tensor | None,
    drop: Drop | None,
) -> Tensor:
    """``dispatch.relative``."""
    (t, d), s = q_BHTD.shape[2:], k_BHSD.shape[2]
    far_TS = _far(t, s, q_BHTD.device)
    logits = q_BHTD @ k_BHSD.mT / math.sqrt(d)
    if bias_HN is not None:
        logits = logits + bias_HN[:, far_TS]
    if kept_BHS is not None:
        logits = logits + (kept_BHS[:, :, s - t :, None] - kept_BHS[:, :, None])
    if bias_HTS is not None:
        logits = logits + bias_HTS
    if key_HND is not None:
        logits = logits + torch.einsum("bhtd,htsd->bhts", q_BHTD, key_HND[:, far_TS]) / math.sqrt(d)
    if query_HND is not None:
        found = torch.einsum("bhsd,htsd->bhts", k_BHSD, query_HND[:, far_TS])
        logits = logits + found / math.sqrt(d)
    weights = _weights(logits, drop)
    out = weights @ v_BHSD
    if value_HND is not None:
        out = out + torch.einsum("bhts,htsd->bhtd", weights, value_HND[:, far_TS])
    return out


def rotary_distance(
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSD: Tensor,
    bias_HN: Tensor | None,
    rotation: Rotation,
    drop: Drop | None,
) -> Tensor:
    """``dispatch.rotary_distance``."""
    q, k = (
        multiply_pairs(x, factors.to(x.dtype.to_complex()), rotation.halves)
        for x, factors in ((q_BHTD, rotation.q), (k_BHSD, rotation.k))
    )
    return distance(q, k, v_BHSD, bias_HN, drop)


def near_far(
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSD: Tensor,
    near: int,
    rotation: Rotation,
    far_q: Tensor,
    far_k: Tensor | None,
    drop: Drop | None,
) -> Tensor:
    """``dispatch.near_far``."""

    def rotated(x: Tensor, factors: Tensor | None) -> Tensor:
        if factors is None:
            return x
        return multiply_pairs(x.contiguous(), factors.to(x.dtype.to_complex()), rotation.halves)

    (t, d), s = q_BHTD.shape[2:], k_BHSD.shape[2]
    either = [
        rotated(q_BHTD, of_q) @ rotated(k_BHSD, of_k).mT / math.sqrt(d)
        for of_q, of_k in ((rotation.q, rotation.k), (far_q, far_k))
    ]
    logits = torch.where(_far(t, s, q_BHTD.device) < near, either[0], either[1])
    return _mix(logits, v_BHSD, drop)


REFERENCE: dict[str, Callable[..., Tensor]] = {
    "cope": cope,
    "dape": dape,
    "distance": distance,
    "path": path,
    "relative": relative,
    "stick_breaking": stick_breaking,
    "rotary_distance": rotary_distance,
    "near_far": near_far,
}


def _causal_mask(t: int, s: int, device: torch.device) -> Tensor:
    return torch.ones(t, s, dtype=torch.bool, device=device).tril(s - t)


def _far(t: int, s: int, device: torch.device) -> Tensor:
    """i - j for the last t of s tokens, (T, S); 0 where the key is later."""
    place = torch.arange(s, device=device)
    return (place[s - t :, None] - place).clamp(min=0)


def _mix(logits: Tensor, v_BHSD: Tensor, drop: Drop | None) -> Tensor:
    return _weights(logits, drop) @ v_BHSD


def _weights(logits: Tensor, drop: Drop | None) -> Tensor:
    mask = _causal_mask(logits.shape[2], logits.shape[3], logits.device)
    weights = logits.masked_fill(~mask, -math.inf).softmax(-1)
    return weights if drop is None else drop(weights, attention_rows(weights))
