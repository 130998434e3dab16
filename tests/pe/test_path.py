"""PaTH against the product of matrices in loops, and against its authors' code."""

import math
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from agreement import SIZES, Size, agree, attend_by_hooks, first_layer
from naive import Sight, attend, plain_value, sigmoid
from peers import fla_naive
from torch import Tensor
from variants import sequential

from pe_lab.pe import path as module

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


def test_reflections_without_end_stay_exact() -> None:
    """beta = 2 and one direction: every other token undoes the one before, 400 times."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 1, 400, 8)
    w = F.normalize(torch.randn(8), dim=0).expand(1, 1, 400, 8)
    beta = torch.full((1, 1, 400), 2.0)
    mirrored = k - 2 * (k * w).sum(-1, keepdim=True) * w
    odd = (torch.arange(400)[:, None] - torch.arange(400)) % 2 == 1
    expected = torch.where(odd, q @ mirrored.mT, q @ k.mT).tril()
    exact = module.path_logits(q, k, w, beta).tril()
    torch.testing.assert_close(exact, expected, rtol=1e-10, atol=1e-10)
    single = module.path_logits(q.float(), k.float(), w.float(), beta.float()).tril()
    # One rounding a matrix, of a product no longer than |q| |k|.
    longest = float(q.norm(dim=-1).max() * k.norm(dim=-1).max())
    limit = 400 * torch.finfo(torch.float32).eps * longest
    torch.testing.assert_close(single.double(), expected, rtol=0, atol=limit)


@pytest.mark.parametrize("forget", [False, True])
def test_path_as_flash_linear_attention(forget: bool) -> None:
    theirs = fla_naive("path_attn").naive_path_attn
    heads, width, n = 2, 8, 70
    ours = first_layer("path", {"forget": forget}, d_model=heads * width, n_heads=heads)
    own = dict(ours.named_parameters())
    q, k, v = torch.randn(3, 2, heads, n, width).unbind(0)
    x = torch.randn(2, n, heads * width)
    got = attend_by_hooks(ours, q, k, v, x, sequential(n))
    # Their short convolution is PyTorch's, padded at the front, then silu.
    u = (x @ own["direction.0.weight"].T @ own["direction.1.weight"].T).mT
    taps = own["filter"].T[:, None]
    u = F.silu(F.conv1d(u, taps, padding=taps.shape[2] - 1, groups=len(taps))[..., :n])
    w = u.unflatten(1, (heads, width)).permute(0, 3, 1, 2)
    w = w / (w.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    beta = (x @ own["strength.weight"].T + own["strength.bias"]).sigmoid() * 2
    g = torch.zeros(2, n, heads)
    if forget:
        # They scale the gates' sum with the logits.
        g = F.logsigmoid(x @ own["gate.weight"].T + own["gate.bias"]) * width**0.5
    inputs = (part.transpose(1, 2) for part in (q, k, v))
    expected = theirs(*inputs, w, beta, g, scale=width**-0.5, chunk_size=16).transpose(1, 2)
    # They compute in float32.
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
