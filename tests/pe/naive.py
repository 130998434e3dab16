"""Attention with each encoding, one number at a time, straight from the formulas.

Loops over b, h, i and j, no shared code with pe_lab.pe, slow on purpose. ``S`` keys, of which
the last T are the queries; a query sees the keys up to its own.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from formulas import rotated, sigmoid
from torch import Tensor


@dataclass
class Sight:
    """The inputs of one layer's attention, and the tensors of the encoding by name."""

    q: Tensor  # (B, H, T, D)
    k: Tensor  # (B, H, S, D)
    v: Tensor  # (B, H, S, D)
    x: Tensor  # (B, S, E)
    pos: Tensor  # (B, S)
    own: dict[str, Tensor]
    keys: dict[str, Any]

    @property
    def n_heads(self) -> int:
        return self.q.shape[1]

    @property
    def width(self) -> int:
        return self.q.shape[3]

    def key_of(self, i: int) -> int:
        """Which key query i is."""
        return self.k.shape[2] - self.q.shape[2] + i

    def distance(self, b: int, i: int, j: int) -> int:
        return int(self.pos[b, self.key_of(i)]) - int(self.pos[b, j])


def softplus(x: Tensor) -> Tensor:
    return (1 + x.exp()).log()


Logit = Callable[[Sight, int, int, int, int], Tensor]
Value = Callable[[Sight, int, int, int, int], Tensor]


def every_query(s: Sight, at: Callable[[int, int, int], Tensor]) -> Tensor:
    """``at(b, h, i)`` for every query of every head, (B, H, T, D)."""
    batch, heads, queries, _ = s.q.shape
    out = [at(b, h, i) for b in range(batch) for h in range(heads) for i in range(queries)]
    return torch.stack(out).view(batch, heads, queries, -1)


def attend(s: Sight, logit: Logit, value: Value) -> Tensor:
    def at(b: int, h: int, i: int) -> Tensor:
        visible = range(s.key_of(i) + 1)
        exps = [logit(s, b, h, i, j).exp() for j in visible]
        total = sum(exps)
        return sum(e / total * value(s, b, h, i, j) for e, j in zip(exps, visible, strict=True))

    return every_query(s, at)


def plain_value(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    return s.v[b, h, j]


def content(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    return s.q[b, h, i] @ s.k[b, h, j] / math.sqrt(s.width)


def turned(
    s: Sight, b: int, h: int, i: int, j: int, angles: Sequence[Tensor | float], pairing: str = ""
) -> Tensor:
    """q_i . k_j / sqrt(D), the pair m of q_i rotated by angles[m]."""
    q, k, half = s.q[b, h, i], s.k[b, h, j], s.width // 2
    total = torch.zeros((), dtype=q.dtype)
    for m, angle in enumerate(torch.as_tensor(angle) for angle in angles):
        halves = (pairing or s.keys["pairing"]) == "half"
        first, second = (m, m + half) if halves else (2 * m, 2 * m + 1)
        real = q[first] * k[first] + q[second] * k[second]
        imaginary = q[first] * k[second] - q[second] * k[first]
        total = total + real * angle.cos() + imaginary * angle.sin()
    return total / math.sqrt(s.width)


def relative(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    row = s.own["table"][s.distance(b, i, j)]
    return s.q[b, h, i] @ (s.k[b, h, j] + row) / math.sqrt(s.width)


def shaw(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    row = s.own["key_table"][min(s.distance(b, i, j), s.keys["clip"])]
    return s.q[b, h, i] @ (s.k[b, h, j] + row) / math.sqrt(s.width)


def shaw_value(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    if not s.keys["values"]:
        return s.v[b, h, j]
    return s.v[b, h, j] + s.own["value_table"][min(s.distance(b, i, j), s.keys["clip"])]


def t5_bucket(distance: int, buckets: int, most: int) -> int:
    """In whole numbers: bucket exact + n begins at exact * (most / exact)^(n / wide)."""
    exact = buckets // 2
    wide = buckets - exact
    if distance < exact:
        return distance
    begun = [n for n in range(wide) if distance**wide * exact**n >= exact**wide * most**n]
    return exact + begun[-1]


def t5(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    bucket = t5_bucket(s.distance(b, i, j), s.keys["buckets"], s.keys["max_distance"])
    return content(s, b, h, i, j) + s.own["table"][bucket, h]


SLOPES = {  # as the paper gives them, and by its code for three heads
    1: [2**-8],
    2: [2**-4, 2**-8],
    3: [2**-4, 2**-8, 2**-2],
    4: [2**-2, 2**-4, 2**-6, 2**-8],
}


def alibi(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    slope = s.own["slopes"][h] if s.keys["learned"] else SLOPES[s.n_heads][h]
    return content(s, b, h, i, j) - slope * s.distance(b, i, j)


def rope(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    base, pairing = s.keys.get("base", 10000), s.keys.get("pairing", "interleaved")
    q = rotated(s.q[b, h, i], int(s.pos[b, s.key_of(i)]), base, pairing)
    k = rotated(s.k[b, h, j], int(s.pos[b, j]), base, pairing)
    return q @ k / math.sqrt(s.width)


def cope(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    """The paper's ceil and floor; a gate reads q and k as they are before any rotation."""
    q, root = s.q[b, h, i], math.sqrt(s.width)

    def gate(n: int) -> Tensor:
        if s.keys["gates"] == "values":
            against = s.v[b, h, n]
        elif s.keys["gates"] == "sep_keys":
            rows = slice(h * s.width, (h + 1) * s.width)
            weight, bias = s.own["gate_key.weight"][rows], s.own["gate_key.bias"][rows]
            against = weight @ s.x[b, n] + bias
        else:
            against = s.k[b, h, n]
        return sigmoid(q @ against / root)

    npos = s.keys["npos"]
    p = sum((gate(n) for n in range(j, s.key_of(i) + 1)), torch.zeros(()))
    if p > npos - 1:
        p = torch.tensor(float(npos - 1))
    if s.keys["combine"] == "alibi_slope":
        term = -SLOPES[s.n_heads][h] * p
    elif s.keys["position"] == "mlp":
        hidden = s.own["position.hidden.weight"][:, 0] * p / (npos - 1)
        hidden = (hidden + s.own["position.hidden.bias"]).clamp(min=0)
        term = q @ (s.own["position.out.weight"] @ hidden)
    else:
        floor, ceil = math.floor(p.item()), math.ceil(p.item())
        e = s.own["position.table"]
        term = (q @ e[ceil]) * (p - floor) + (q @ e[floor]) * (1 - (p - floor))
    if s.keys["scale_positions"]:
        term = term / root
    if s.keys["combine"] == "rope":
        return rope(s, b, h, i, j) + term
    if s.keys["combine"] == "relative":
        row = s.own["relative.table"][s.distance(b, i, j)]
        return q @ (s.k[b, h, j] + row) / root + term
    return content(s, b, h, i, j) + term


LOGITS: dict[str, Logit] = {
    "none": content,
    "relative": relative,
    "shaw": shaw,
    "t5": t5,
    "alibi": alibi,
    "rope": rope,
    "cope": cope,
}
VALUES: dict[str, Value] = {"shaw": shaw_value}


def sinusoid(position: int, width: int, base: float) -> list[float]:
    waves = (math.sin, math.cos)
    return [waves[n % 2](position / base ** ((n - n % 2) / width)) for n in range(width)]
