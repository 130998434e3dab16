"""Gated DeltaNet and Mamba-2: the formulas in loops, the code of transformers, states that do not
grow."""

import math
from typing import Any

import pytest
import torch
from formulas import activated, normed, sigmoid
from torch import Tensor

from docs import facts
from pe_lab.check.base import model_config
from pe_lab.models import linear_recurrent
from pe_lab.models.config import Vocabulary
from pe_lab.models.gated_deltanet import GatedDelta
from pe_lab.models.linear_recurrent import LinearRecurrent, ShortConv
from pe_lab.models.mamba2 import StateSpace
from pe_lab.train.encodings import build_encodings

WORDS = 5
SIZES: dict[str, dict[str, Any]] = {
    "gated_deltanet": {"d_model": 6, "n_heads": 2, "head_width": 3},
    "mamba2": {"n_layers": 2, "d_model": 6, "head_width": 4, "state_width": 3},
}
every_kind = pytest.mark.parametrize("kind", SIZES)


def built(kind: str, **changes: Any) -> LinearRecurrent:
    """With all parameters moved: decays between 0.2 and 0.9, and convolutions that matter."""
    cfg = model_config(facts.section(kind, "model"), **{**SIZES[kind], **changes})
    torch.manual_seed(0)
    encodings = build_encodings(facts.section("none"), cfg.dims(WORDS, 9, 64))
    model = cfg.build(Vocabulary(WORDS), encodings)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.uniform_(-1, 1) if p.dim() > 1 else p.add_(torch.rand_like(p) - 0.5)
            if name.endswith("a_log"):
                p.uniform_(-1, 0.5)
            if name.endswith("dt_bias"):
                p.uniform_(-1, 1)
    return model


def tokens(length: int) -> Tensor:
    return torch.randint(0, WORDS, (2, length), generator=torch.Generator().manual_seed(1))


def softplus(x: Tensor) -> Tensor:
    return (1 + x.exp()).log()


def convolved(conv: ShortConv, rows: Tensor) -> list[Tensor]:
    out = []
    for i in range(len(rows)):
        total = rows[i]
        if conv.taps is not None:
            n = len(conv.taps)
            total = sum(conv.taps[n - 1 - back] * rows[i - back] for back in range(min(n, i + 1)))
            total = total if conv.bias is None else total + conv.bias
        out.append(activated(total, "silu"))
    return out


def unit(x: Tensor) -> Tensor:
    return x / ((x * x).sum() + 1e-6).sqrt()


def naive_delta(mixer: GatedDelta, x_TE: Tensor, most: int) -> list[Tensor]:
    d, w, h = mixer.widths[0] // mixer.n_heads, mixer.norm.weight.numel(), mixer.n_heads
    states, out = [torch.zeros(w, d) for _ in range(h)], []
    qkv = convolved(mixer.conv, x_TE @ mixer.qkv.weight.T)
    for x, parts in zip(x_TE, qkv, strict=True):
        q, k, v = parts.split(mixer.widths)
        beta, a = (mixer.beta_decay.weight @ x).chunk(2)
        dt = softplus(a + mixer.decay.dt_bias)
        joined = []
        for i in range(h):
            decay = (-mixer.decay.a_log[i].exp() * dt[i]).exp()
            key, rate = unit(k[i * d : (i + 1) * d]), most * sigmoid(beta[i])
            kept = states[i] @ (torch.eye(d) - rate * torch.outer(key, key))
            states[i] = decay * kept + rate * torch.outer(v[i * w : (i + 1) * w], key)
            read = states[i] @ unit(q[i * d : (i + 1) * d]) / math.sqrt(d)
            joined.append(normed(read, mixer.norm))
        gate = activated(mixer.gate.weight @ x, "silu")
        out.append(mixer.out.weight @ (torch.cat(joined) * gate))
    return out


def naive_state_space(mixer: StateSpace, u_TE: Tensor, _: int) -> list[Tensor]:
    inner, d, _ = mixer.widths
    h, w = mixer.n_heads, inner // mixer.n_heads
    states, out = [torch.zeros(w, d) for _ in range(h)], []
    for u, parts in zip(u_TE, convolved(mixer.conv, u_TE @ mixer.xbc.weight.T), strict=True):
        x, b, c = parts.split(mixer.widths)
        dt = softplus(mixer.dt.weight @ u + mixer.decay.dt_bias)
        joined = []
        for i in range(h):
            x_i = x[i * w : (i + 1) * w]
            decay = (-mixer.decay.a_log[i].exp() * dt[i]).exp()
            states[i] = decay * states[i] + dt[i] * torch.outer(x_i, b)
            joined.append(states[i] @ c + mixer.skip[i] * x_i)
        gate = activated(mixer.gate.weight @ u, "silu")
        out.append(mixer.out.weight @ normed(torch.cat(joined) * gate, mixer.norm))
    return out


def naive(model: LinearRecurrent, seen: Tensor, most_beta: int) -> Tensor:
    rows = []
    for row in seen:
        x = model.tokens.weight[row]
        for block in model.blocks:
            given = torch.stack([normed(e, block.norm_mixer) for e in x])
            mixer = naive_delta if isinstance(block.mixer, GatedDelta) else naive_state_space
            x = x + torch.stack(mixer(block.mixer, given, most_beta))
            if block.ff is not None:
                up = [block.ff["up"].weight @ normed(e, block.ff["norm"]) for e in x]
                x = x + torch.stack([block.ff["out"].weight @ activated(e, "swiglu") for e in up])
        rows.append(torch.stack([normed(e, model.norm) for e in x]))
    return torch.stack(rows)


@pytest.mark.parametrize("chunk", [4, 32])
@pytest.mark.parametrize("length", [1, 3, 4, 9])
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("gated_deltanet", {}),
        ("gated_deltanet", {"negative_eigenvalues": True, "short_conv": None}),
        ("mamba2", {}),
        ("mamba2", {"short_conv": None}),
    ],
)
def test_equals_the_formula_in_value_and_gradient(
    kind: str, changes: dict[str, Any], length: int, chunk: int, float64: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(linear_recurrent, "CHUNK", chunk)
    model, seen = built(kind, **changes), tokens(length)
    most_beta = 2 if changes.get("negative_eigenvalues") else 1
    outs = [model(seen, torch.arange(length)[None]), naive(model, seen, most_beta)]
    torch.testing.assert_close(*outs, rtol=1e-10, atol=1e-10)
    trunk = [p for name, p in model.named_parameters() if name != "head.weight"]
    direction = torch.randn_like(outs[0])
    found = [torch.autograd.grad(out, trunk, direction) for out in outs]
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-10)


@every_kind
def test_a_cache_continues_from_any_place_and_does_not_grow(
    kind: str, float64: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_recurrent, "CHUNK", 4)
    model, seen, pos = built(kind), tokens(21), torch.arange(21)[None]
    cache, parts, sizes = model.empty_cache(), [], set()
    for a, b in ((0, 6), (6, 7), (7, 16), (16, 20), (20, 21)):
        parts.append(model(seen[:, a:b], pos[:, :b], cache))
        assert (cache.tokens_BS.length, cache.layers[0].keys.length) == (0, 0)
        sizes.add((cache.layers[0].state_BHDW.shape, cache.layers[0].recent.shape))
    torch.testing.assert_close(torch.cat(parts, 1), model(seen, pos), rtol=1e-10, atol=1e-10)
    assert len(sizes) == 1


@every_kind
def test_decays_start_as_published(kind: str) -> None:
    """exp(A) is uniform up to 16, dt log-uniform from 0.001 to 0.1."""
    sizes = {"gated_deltanet": {"n_heads": 1000, "head_width": 1}, "mamba2": {"head_width": 1}}
    cfg = model_config(facts.section(kind, "model"), **sizes[kind], n_layers=1, d_model=500)
    encodings = build_encodings(facts.section("none"), cfg.dims(WORDS, 9, 64))
    decay = cfg.build(Vocabulary(WORDS), encodings).blocks[0].mixer.decay
    a, dt = decay.a_log.detach().exp(), softplus(decay.dt_bias.detach())
    lowest = 1.0 if kind == "mamba2" else 0.01
    assert lowest <= a.min() < lowest + 0.2
    assert 15.8 < a.max() <= 16
    assert float(a.mean()) == pytest.approx((16 + lowest) / 2, rel=0.06)
    assert 0.99e-3 < dt.min() < 1.1e-3
    assert 0.09 < dt.max() < 0.1001
    assert float(dt.log().mean()) == pytest.approx(math.log(0.01), rel=0.03)
