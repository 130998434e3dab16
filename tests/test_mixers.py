"""Mixers without attention, alone and in hybrids: the formulas in loops, states that do not grow,
the published start."""

import math
from typing import Any

import pytest
import torch
from formulas import activated, normed, sigmoid
from torch import Tensor

from docs import facts
from pe_lab import nn
from pe_lab.check.base import in_pieces, model_config
from pe_lab.core.errors import UsageError
from pe_lab.models import mixers
from pe_lab.models.config import Vocabulary
from pe_lab.models.mixers import GatedConv, GatedDelta, KimiDelta, LSTMMixer, ShortConv, StateSpace
from pe_lab.models.transformer import Transformer
from pe_lab.train.encodings import build_encodings

WORDS = 5
SIZES: dict[str, dict[str, Any]] = {
    "gated_deltanet": {"d_model": 6, "n_heads": 2, "head_width": 3},
    "mamba2": {"n_layers": 2, "d_model": 6, "head_width": 4, "state_width": 3},
    "transformer": {"pattern": ["kda", "conv", "lstm"], "n_layers": 3, "d_model": 6, "n_heads": 2},
}
every_kind = pytest.mark.parametrize("kind", SIZES)


def built(kind: str, pe: str = "none", **changes: Any) -> Transformer:
    """With all parameters moved: decays between 0.2 and 0.9, and convolutions that matter."""
    cfg = model_config(facts.section(kind, "model"), **{**SIZES[kind], **changes})
    torch.manual_seed(0)
    encodings = build_encodings(
        facts.section(pe), cfg.dims(WORDS, 9, 64), cfg.layers_without_encoding()
    )
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


def naive_kimi_delta(mixer: KimiDelta, x_TE: Tensor, most: int) -> list[Tensor]:
    d, w, h = mixer.d, mixer.w, mixer.n_heads
    states, out = [torch.zeros(d, w) for _ in range(h)], []
    qkv = convolved(mixer.conv, x_TE @ mixer.qkv.weight.T)
    for x, parts in zip(x_TE, qkv, strict=True):
        q, k, v = parts.split(mixer.widths)
        rate = mixer.decay[1].weight @ (mixer.decay[0].weight @ x) + mixer.dt_bias
        joined = []
        for i in range(h):
            of_head = slice(i * d, (i + 1) * d)
            decay = (-5 * sigmoid(mixer.a_log[i].exp() * rate[of_head])).exp()
            key, beta = unit(k[of_head]), most * sigmoid(mixer.beta.weight[i] @ x)
            decayed = torch.diag(decay) @ states[i]
            error = v[i * w : (i + 1) * w] - decayed.T @ key
            states[i] = decayed + beta * torch.outer(key, error)
            joined.append(normed(states[i].T @ unit(q[of_head]) / math.sqrt(d), mixer.norm))
        out.append(mixer.out.weight @ (torch.cat(joined) * sigmoid(mixer.gate.weight @ x)))
    return out


def naive_conv(mixer: GatedConv, x_TE: Tensor, _: int) -> list[Tensor]:
    b, c, u = (x_TE @ mixer.bcu.weight.T).chunk(3, -1)
    n, out = len(mixer.taps), []
    for i in range(len(x_TE)):
        near = [
            mixer.taps[n - 1 - back] * b[i - back] * u[i - back] for back in range(min(n, i + 1))
        ]
        out.append(mixer.out.weight @ (c[i] * torch.stack(near).sum(0)))
    return out


def naive_lstm(mixer: LSTMMixer, x_TE: Tensor, _: int) -> list[Tensor]:
    (w, u), biases = mixer.cells.all_weights[0][:2], mixer.cells.all_weights[0][2:]
    h = c = torch.zeros(x_TE.shape[1])
    out = []
    for x in x_TE:
        i, f, g, o = (w @ x + u @ h + sum(biases)).chunk(4)
        c = sigmoid(f) * c + sigmoid(i) * g.tanh()
        h = sigmoid(o) * c.tanh()
        out.append(mixer.out.weight @ h)
    return out


NAIVE: dict[type, Any] = {
    GatedDelta: naive_delta, KimiDelta: naive_kimi_delta, StateSpace: naive_state_space,
    GatedConv: naive_conv, LSTMMixer: naive_lstm,
}  # fmt: skip


def plus_bias(linear: Any) -> Tensor | float:
    return 0.0 if linear.bias is None else linear.bias


def naive(model: Transformer, seen: Tensor, most_beta: int) -> Tensor:
    rows = []
    for row in seen:
        x = model.tokens.weight[row]
        for block in model.blocks:
            mixer, ff = block.attention, block.ff
            given = torch.stack([normed(e, block.norm_attention) for e in x])
            x = x + torch.stack(NAIVE[type(mixer)](mixer, given, most_beta))
            if ff is not None:
                up = [ff.up.weight @ normed(e, block.norm_ff) + plus_bias(ff.up) for e in x]
                down = [ff.out.weight @ activated(e, ff.activation) + plus_bias(ff.out) for e in up]
                x = x + torch.stack(down)
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
        ("transformer", {"layers": {1: {"d_ff": 0}}}),
        ("transformer", {"mixers": {"negative_eigenvalues": True, "short_conv": None}}),
    ],
)
def test_equals_the_formula_in_value_and_gradient(
    kind: str, changes: dict[str, Any], length: int, chunk: int, float64: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(mixers, "CHUNK", chunk)
    model, seen = built(kind, **changes), tokens(length)
    most_beta = 2 if changes.get("mixers", changes).get("negative_eigenvalues") else 1
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
    monkeypatch.setattr(mixers, "CHUNK", 4)
    model, seen, pos = built(kind), tokens(21), torch.arange(21)[None]
    cache, parts, sizes = model.empty_cache(), [], set()
    for a, b in ((0, 6), (6, 7), (7, 16), (16, 20), (20, 21)):
        parts.append(model(seen[:, a:b], pos[:, :b], cache))
        assert (cache.tokens_BS.length, cache.layers[0].keys.length) == (0, 0)
        sizes.add((cache.layers[0].state.shape, cache.layers[0].recent.shape))
    torch.testing.assert_close(torch.cat(parts, 1), model(seen, pos), rtol=1e-10, atol=1e-10)
    assert len(sizes) == 1


def test_the_strongest_decays_of_kda_are_exact_in_float32() -> None:
    """Factors of exp(5) a token leave float32 after 17 tokens."""
    q, k, v, beta = torch.rand(4, 1, 2, 80, 4)
    given = q, k, v, torch.full_like(q, mixers.LOWER_BOUND), beta[..., 0]
    exact = mixers.scan(*(part.double() for part in given))
    torch.testing.assert_close(mixers.scan(*given).double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["gated_deltanet", "mamba2"])
def test_decays_start_as_published(kind: str) -> None:
    """exp(A) is uniform up to 16, dt log-uniform from 0.001 to 0.1."""
    sizes = {"gated_deltanet": {"n_heads": 1000, "head_width": 1}, "mamba2": {"head_width": 1}}
    cfg = model_config(facts.section(kind, "model"), **sizes[kind], n_layers=1, d_model=500)
    encodings = build_encodings(facts.section("none"), cfg.dims(WORDS, 9, 64))
    decay = cfg.build(Vocabulary(WORDS), encodings).blocks[0].attention.decay
    a, dt = decay.a_log.detach().exp(), softplus(decay.dt_bias.detach())
    lowest = 1.0 if kind == "mamba2" else 0.01
    assert lowest <= a.min() < lowest + 0.2
    assert 15.8 < a.max() <= 16
    assert float(a.mean()) == pytest.approx((16 + lowest) / 2, rel=0.06)
    assert 0.99e-3 < dt.min() < 1.1e-3
    assert 0.09 < dt.max() < 0.1001
    assert float(dt.log().mean()) == pytest.approx(math.log(0.01), rel=0.03)


HYBRIDS = [["kda", "kda", "attention"], ["mamba2", "attention", "lstm"], ["conv", "gated_deltanet"]]


@pytest.mark.parametrize("pe", ["none", "rope", "alibi", "fox", "cope", "learned", "tape"])
@pytest.mark.parametrize("pattern", HYBRIDS, ids="-".join)
def test_a_hybrid_is_causal_and_decodes_with_keys_and_states_side_by_side(
    pattern: list[str], pe: str, float64: None
) -> None:
    hybrid = {"pattern": pattern, "n_layers": 4, "d_model": 8, "n_heads": 2}
    if "attention" not in pattern and pe not in ("none", "learned"):
        cfg = model_config(facts.section("transformer", "model"), **hybrid)
        (encoding,) = build_encodings(facts.section(pe), cfg.dims(WORDS, 9, 64))
        assert "does not have" in str(cfg.refuses(encoding))
        return
    model, seen, pos = built("transformer", pe, **hybrid), tokens(21), torch.arange(21)[None]
    whole = model(seen, pos)
    torch.testing.assert_close(in_pieces(model, seen, pos, 6, 1, 9), whole, rtol=1e-10, atol=1e-10)
    later = torch.cat((seen[:, :15], (seen[:, 15:] + 1) % WORDS), 1)
    assert torch.equal(model(later, pos)[:, :15], whole[:, :15])
    assert len(model.encodings) == max(1, sum(m == "attention" for m in (pattern * 2)[:4]))


def test_layers_name_mixers_and_encodings_follow_the_attention(float64: None) -> None:
    """Layer 0 has no attention, layer 1 no encoding, layer 2 both: a rotation by layer 2 alone."""
    layers = {0: {"mixer": "kda"}, 1: {"encoded": False}}
    model = built("transformer", "rope", pattern=[], layers=layers, d_model=8)
    assert [type(block.attention).__name__ for block in model.blocks] == [
        "KimiDelta", "MultiHeadAttention", "MultiHeadAttention"
    ]  # fmt: skip
    assert [type(encoding).__name__ for encoding in model.encodings] == ["NoPE", "RoPE"]
    assert model.encodings[1] is model.blocks[2].attention.encoding


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"pattern": ["kda", "attention"], "n_layers": 1}, "set n_layers to 2 or more"),
        ({"pattern": ["kdaa"]}, "did you mean kda"),
        ({"pattern": ["mamba2"], "mixers": {"head_width": 5}}, "choose a divisor"),
        ({"mixers": {"head_with": 5}}, "head_with=5 is not a key"),
        ({"pattern": ["kda"], "layers": {1: {"encoded": False}}}, "layers.1 has the mixer kda"),
        ({"layers": {0: {"mixer": "lstm", "window": 4}}}, "layers.0 has the mixer lstm"),
    ],
)
def test_sizes_that_cannot_work_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        model_config(facts.section("transformer", "model"), **changes)


def test_linear_attention_refuses_a_rotation_where_no_layer_has_attention() -> None:
    cfg = model_config(facts.section("linear_attention", "model"), pattern=["kda"])
    (rope,) = build_encodings(facts.section("rope"), cfg.dims(WORDS, 9, 64))
    assert "does not have" in str(cfg.refuses(rope))


@pytest.mark.parametrize("mixer", ["gated_deltanet", "kda", "mamba2"])
def test_the_guard_of_memory_knows_the_width_of_mixers(mixer: str) -> None:
    changes = {
        **{"pattern": [mixer], "n_layers": 2, "d_model": 16, "n_heads": 2},
        "mixers": {"head_width": 128, "expansion": 8, "state_width": 500},
    }
    n = sum(p.numel() for p in built("transformer", **changes).parameters())
    assert 0.5 * n < model_config(facts.section("transformer", "model"), **changes).weights()


def test_a_mixer_in_a_model_of_ones_own() -> None:
    layer, x = nn.mixer("kda", 8, 2, expansion=2), torch.randn(2, 9, 8)
    cache = layer.cache()
    parts = torch.cat([layer.mix(part, cache) for part in x.split([4, 5], 1)], 1)
    torch.testing.assert_close(parts, layer.mix(x), rtol=1e-4, atol=1e-5)
    for name, keys in {"kdaa": {}, "attention": {}, "kda": {"expand": 2}}.items():
        with pytest.raises(UsageError):
            nn.mixer(name, 8, 2, **keys)
