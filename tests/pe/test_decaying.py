"""Attention that depends on the tokens between: fox, stick_breaking, PaTH and TAPE."""

import cmath
import copy
import math
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from agreement import SIZES, Size, agree
from naive import Sight, attend, content, every_query, plain_value, sigmoid
from torch import Tensor
from variants import SECTIONS, model, scattered, tokens

from pe_lab.models.transformer import Transformer
from pe_lab.pe import path as module


def fox(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    """The gates after the key, multiplied as probabilities are."""
    w, bias = s.own["gate.weight"][h], s.own["gate.bias"][h]
    kept = torch.ones(())
    for n in range(j + 1, s.key_of(i) + 1):
        kept = kept * sigmoid(w @ s.x[b, n] + bias)
    return content(s, b, h, i, j) + kept.log()


def stick_breaking(s: Sight) -> Tensor:
    """The stick in one's hand, broken key by key from the query back."""

    def at(b: int, h: int, i: int) -> Tensor:
        left, total = torch.ones(()), torch.zeros(s.width)
        for j in reversed(range(s.key_of(i))):
            share = sigmoid(content(s, b, h, i, j))
            total = total + left * share * s.v[b, h, j]
            left = left * (1 - share)
        return total + left * s.v[b, h, s.key_of(i)] if s.keys["remainder"] == "self" else total

    return every_query(s, at)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_fox(size: Size) -> None:
    agree("fox", {}, size, partial(attend, logit=fox, value=plain_value))


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("remainder", ["none", "self"])
def test_stick_breaking(remainder: str, size: Size) -> None:
    agree("stick_breaking", {"remainder": remainder}, size, stick_breaking)


CHOICES: list[dict[str, Any]] = [
    {},
    {"rank": None},
    {"rank": 1, "conv": 1},
    {"conv": 4, "silu": False},
    {"forget": True},
]


def direction(s: Sight, b: int, h: int, t: int) -> Tensor:
    """w_t: project, look back, activate, take to length 1."""
    matrix = s.own.get("direction.weight")
    if matrix is None:
        matrix = s.own["direction.1.weight"] @ s.own["direction.0.weight"]
    taps = s.own["filter"]
    u = torch.zeros(s.x.shape[2], dtype=s.x.dtype)
    for back in range(min(len(taps), t + 1)):
        u = u + taps[len(taps) - 1 - back] * (matrix @ s.x[b, t - back])
    if s.keys["silu"]:
        u = u / (1 + (-u).exp())
    u = u[h * s.width : (h + 1) * s.width]
    return u / (u @ u + 1e-6).sqrt()


def gate(s: Sight, name: str, b: int, h: int, t: int) -> Tensor:
    return sigmoid(s.own[f"{name}.weight"][h] @ s.x[b, t] + s.own[f"{name}.bias"][h])


def path(s: Sight, b: int, h: int, i: int, j: int) -> Tensor:
    product = torch.eye(s.width, dtype=s.x.dtype)
    forgotten = torch.zeros((), dtype=s.x.dtype)
    for t in range(j + 1, s.key_of(i) + 1):
        w, beta = direction(s, b, h, t), 2 * gate(s, "strength", b, h, t)
        product = product @ (torch.eye(s.width, dtype=s.x.dtype) - beta * torch.outer(w, w))
        if s.keys["forget"]:
            forgotten = forgotten + gate(s, "gate", b, h, t).log()
    return s.k[b, h, j] @ product @ s.q[b, h, i] / math.sqrt(s.width) + forgotten


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_path(choice: dict[str, Any], size: Size) -> None:
    agree("path", choice, size, partial(attend, logit=path, value=plain_value))


@pytest.mark.parametrize("chunk", [1, 2, 4])
def test_path_in_chunks(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    agree("path", {}, (2, 6, 3, 2, True), partial(attend, logit=path, value=plain_value))


def plane(position: int, width: int, base: float) -> list[complex]:
    return [cmath.rect(1, position * base ** (-2 * m / width)) for m in range(width // 2)]


def rotated(x: Tensor, z: Tensor) -> Tensor:
    """Complex pairs of one head of one token."""
    return torch.complex(x[0::2], x[1::2]) * z


def one_sequence(built: Transformer, seen: Tensor, pos: Tensor, base: float) -> Tensor:
    """The hidden states of one sequence, token by token and head by head."""
    length, heads = len(seen), built.blocks[0].attention.n_heads
    x = [built.tokens.weight[token] for token in seen]
    width = len(x[0]) // heads
    planes = [torch.tensor(plane(int(p), width, base)).to(torch.complex128) for p in pos]
    z = [[planes[t]] * heads for t in range(length)]
    for block in built.blocks:
        own = dict(block.attention.encoding.named_parameters())
        qkv = [
            block.attention.qkv(block.norm_attention(x[t]) if block.pre else x[t])
            for t in range(length)
        ]
        new_x, new_z = [], []
        for i in range(length):
            mixed, seen_z = [], []
            for h in range(heads):
                q, k, v = ([part.split(width)[n * heads + h] for part in qkv] for n in range(3))
                logits = [
                    (rotated(q[i], z[i][h]) * rotated(k[j], z[j][h]).conj()).real.sum()
                    / math.sqrt(width)
                    for j in range(i + 1)
                ]
                weights = torch.stack(logits).softmax(0)
                mixed.append(sum(w * v[j] for j, w in enumerate(weights)))
                seen_z.append(sum(w * z[j][h] for j, w in enumerate(weights)))
            attended = x[i] + block.attention.out(torch.cat(mixed))
            entering = block.norm_ff(attended) if block.pre else block.norm_attention(attended)
            leaving = (attended if block.pre else entering) + block.ff(entering)
            new_x.append(leaving if block.pre else block.norm_ff(leaving))
            if own:
                first = [z[i][h] + own["attended"][h] * seen_z[h] for h in range(heads)]
                gates = F.silu(own["gate.weight"] @ entering)
                hidden = [
                    gate * sum(u * first[h] for h, u in enumerate(row))
                    for gate, row in zip(gates, own["up"], strict=True)
                ]
                new_z.append(
                    [
                        first[h] + sum(d * one for d, one in zip(row, hidden, strict=True))
                        for h, row in enumerate(own["down"])
                    ]
                )
        x, z = new_x, new_z
    return torch.stack([built.norm(token) for token in x])


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("choice", [{}, {"base": 20.0, "width": 3}], ids=str)
def test_tape(choice: dict[str, Any], norm_position: str) -> None:
    section = {**SECTIONS["tape"], **choice}
    built = model(section, norm_position=norm_position, d_model=8)
    seen, pos = tokens(2, 5), scattered(2, 5, 16)
    fast = built(seen, pos)
    slow = torch.stack(
        [one_sequence(built, seen[b], pos[b], section["base"]) for b in range(len(seen))]
    )
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-10)
    direction = torch.randn(fast.shape)
    leaves = [p for p in built.parameters() if p is not built.head.weight]
    slow_grads, fast_grads = (torch.autograd.grad(out, leaves, direction) for out in (slow, fast))
    torch.testing.assert_close(fast_grads, slow_grads, rtol=1e-10, atol=1e-10)
    single = copy.deepcopy(built).float()(seen, pos)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), slow, rtol=1e-5, atol=1e-5)
