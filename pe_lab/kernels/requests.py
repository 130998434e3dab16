"""Requests: the tensors of one call of attention, one class for each kind, with its formula.

A kernel must equal the formula. Attention is causal, and the T queries are the last of the S
tokens. The formulas share no code with the encodings in pe/, so that neither a kernel nor an
encoding can hide an error of the other. Shape letters as in pe/base.py.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pe_lab.core.dropout import Drop, attention_rows
from pe_lab.pe.functional import Rotation, multiply_pairs


@dataclass(frozen=True, eq=False, kw_only=True)
class Request(ABC):
    """Queries, keys, values, and dropout of the weights."""

    kind: ClassVar[str]
    """The name of the kind of attention."""
    has_gradients: ClassVar[bool] = True
    """Whether its kernel has a backward pass."""

    q: Tensor
    k: Tensor
    v: Tensor
    drop: Drop | None = None

    @abstractmethod
    def formula(self) -> Tensor:
        """The output, (B, H, T, D), in PyTorch."""

    def content(self) -> Tensor:
        """q_i . k_j / sqrt(D), (B, H, T, S)."""
        return self.q @ self.k.mT / math.sqrt(self.q.shape[-1])

    def mask(self) -> Tensor:
        """True where a query may see a key, (T, S)."""
        t, s = self.q.shape[2], self.k.shape[2]
        return torch.ones(t, s, dtype=torch.bool, device=self.q.device).tril(s - t)

    def distances(self) -> Tensor:
        """n = i - j, (T, S); 0 where the key is later."""
        t, s = self.q.shape[2], self.k.shape[2]
        place = torch.arange(s, device=self.q.device)
        return (place[s - t :, None] - place).clamp(min=0)

    def softmax(self, logits: Tensor) -> Tensor:
        """The weights after softmax and dropout."""
        return self.dropped(logits.masked_fill(~self.mask(), -math.inf).softmax(-1))

    def dropped(self, weights: Tensor) -> Tensor:
        """The weights after dropout."""
        return weights if self.drop is None else self.drop(weights, attention_rows(weights))


@dataclass(frozen=True, eq=False, kw_only=True)
class Cope(Request):
    """Contextual positions (CoPE), from a table of N of them:

    logits = q_i . k_j / sqrt(D) + position_scale gate_q_i . table[p_ij]
    p_ij   = sum over j <= l <= i of sigmoid(gate_q_i . gate_k_l / sqrt(D))
    """

    kind = "cope"

    gate_q: Tensor
    gate_k: Tensor
    table_ND: Tensor
    position_scale: float

    def formula(self) -> Tensor:
        gate_logits = self.gate_q @ self.gate_k.mT / math.sqrt(self.q.shape[-1])
        scores = self.gate_q @ self.table_ND.T
        last = len(self.table_ND) - 1
        gates = gate_logits.sigmoid() * self.mask()
        p = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=last)
        below = p.detach().long()
        above = (below + 1).clamp(max=last)
        term = torch.lerp(scores.gather(-1, below), scores.gather(-1, above), p - below)
        return self.softmax(self.content() + self.position_scale * term) @ self.v


@dataclass(frozen=True, eq=False, kw_only=True)
class Distance(Request):
    """Terms of the distance n = i - j and of pairs, each of which may be None:

    logits = q_i . k_j / sqrt(D) + bias[h, n] + kept_i - kept_j + bias_of_pairs[h, i, j]
             + q_i . key[h, n] / sqrt(D) + k_j . query[h, n] / sqrt(D)
    out_i  = sum over j of weight_ij (v_j + value[h, n])

    ``rotation`` is applied to queries and keys first. Tables may have more rows than S.
    """

    kind = "distance"

    rotation: Rotation | None = None
    bias_HN: Tensor | None = None
    kept_BHS: Tensor | None = None
    bias_HTS: Tensor | None = None
    key_HND: Tensor | None = None
    query_HND: Tensor | None = None
    value_HND: Tensor | None = None

    def formula(self) -> Tensor:
        q, k, scale = self.q, self.k, self.q.shape[-1] ** -0.5
        if self.rotation is not None:
            q = rotated(q, self.rotation.q, self.rotation)
            k = rotated(k, self.rotation.k, self.rotation)
        n = self.distances()
        logits = q @ k.mT * scale
        if self.bias_HN is not None:
            logits = logits + self.bias_HN[:, n]
        if self.kept_BHS is not None:
            of_queries = self.kept_BHS[:, :, k.shape[2] - q.shape[2] :, None]
            logits = logits + (of_queries - self.kept_BHS[:, :, None])
        if self.bias_HTS is not None:
            logits = logits + self.bias_HTS
        if self.key_HND is not None:
            logits = logits + torch.einsum("bhtd,htsd->bhts", q, self.key_HND[:, n]) * scale
        if self.query_HND is not None:
            logits = logits + torch.einsum("bhsd,htsd->bhts", k, self.query_HND[:, n]) * scale
        weights = self.softmax(logits)
        out = weights @ self.v
        if self.value_HND is not None:
            out = out + torch.einsum("bhts,htsd->bhtd", weights, self.value_HND[:, n])
        return out


@dataclass(frozen=True, eq=False, kw_only=True)
class NearFar(Request):
    """Queries and keys rotated by ``rotation`` where i - j < ``near``, elsewhere by the complex
    factors ``far_q`` and ``far_k`` (None: keys stay as they are)."""

    kind = "near_far"
    has_gradients = False

    near: int
    rotation: Rotation
    far_q: Tensor
    far_k: Tensor | None

    def formula(self) -> Tensor:
        near, far = (
            rotated(self.q, of_q, self.rotation) @ rotated(self.k, of_k, self.rotation).mT
            for of_q, of_k in ((self.rotation.q, self.rotation.k), (self.far_q, self.far_k))
        )
        logits = torch.where(self.distances() < self.near, near, far) / math.sqrt(self.q.shape[-1])
        return self.softmax(logits) @ self.v


@dataclass(frozen=True, eq=False, kw_only=True)
class Path(Request):
    """Reflections of the tokens between (PaTH), with optional running sums of gates:

    logits = k_j^T H_(j+1) .. H_i q_i / sqrt(D) + kept_i - kept_j,   H_t = I - beta_t w_t w_t^T
    """

    kind = "path"

    w_BHSD: Tensor
    beta_BHS: Tensor
    kept_BHS: Tensor | None = None

    def formula(self) -> Tensor:
        """Each token in turn multiplies the queries that are not before it."""
        (t, d), s = self.q.shape[2:], self.k.shape[2]
        q, columns = self.q / math.sqrt(d), []
        for j in reversed(range(s)):
            columns.append(q @ self.k[:, :, j, :, None])
            w = self.w_BHSD[:, :, j, None]
            passed = q - self.beta_BHS[:, :, j, None, None] * (q @ w.mT) * w
            q = torch.where(torch.arange(s - t, s, device=q.device)[:, None] >= j, passed, q)
        logits = torch.cat(columns[::-1], -1)
        if self.kept_BHS is not None:
            logits = logits + (self.kept_BHS[:, :, s - t :, None] - self.kept_BHS[:, :, None])
        return self.softmax(logits) @ self.v


@dataclass(frozen=True, eq=False, kw_only=True)
class Dape(Request):
    """A bias adjusted by a network of W hidden units over the heads (DAPE):

    logits_h = a_h + bias[h, n] + sum over w of out[w, h] leaky_relu(u_w),   a = q . k / sqrt(D)
    u_w      = by_distance[w, n] + sum over h of from_content[w, h] a_h
    """

    kind = "dape"

    bias_HN: Tensor
    from_content_WH: Tensor
    by_distance_WN: Tensor
    out_WH: Tensor

    def formula(self) -> Tensor:
        n, content = self.distances(), self.content()
        units = torch.einsum("wh,bhts->bwts", self.from_content_WH, content)
        units = self.by_distance_WN[:, n] + units
        units = torch.where(units > 0, units, 0.01 * units)
        adjustment = torch.einsum("wh,bwts->bhts", self.out_WH, units)
        return self.softmax(content + self.bias_HN[:, n] + adjustment) @ self.v


@dataclass(frozen=True, eq=False, kw_only=True)
class StickBreaking(Request):
    """Stick-breaking weights instead of softmax: from the nearest earlier key back, each takes the
    share sigmoid(q_i . k_j / sqrt(D)) of what is left. ``remainder``: what is left at the end is
    the weight of the query's own token."""

    kind = "stick_breaking"

    remainder: bool

    def formula(self) -> Tensor:
        seen = self.mask()
        before = seen.tril(self.k.shape[2] - self.q.shape[2] - 1)
        share = self.content().sigmoid() * before
        left = (1 - share).flip(-1).cumprod(-1).flip(-1)
        left_after = torch.cat((left[..., 1:], torch.ones_like(left[..., :1])), -1)
        weights = share * left_after
        if self.remainder:
            weights = weights + left[..., :1] * (seen & ~before)
        return self.dropped(weights) @ self.v


def rotated(x: Tensor, factors: Tensor | None, like: Rotation) -> Tensor:
    """x with its pairs multiplied by complex factors; None: x unchanged."""
    if factors is None:
        return x
    return multiply_pairs(x.contiguous(), factors.to(x.dtype.to_complex()), like.halves)
