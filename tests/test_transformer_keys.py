"""Keys of the transformer: logits times s_h log n or in steps, sinks, output gates, norms of q and
k, for every encoding."""

import math
from typing import Any

import pytest
import torch
from fast import accelerated, plain
from small_models import small
from torch import nn

from docs import facts
from pe_lab.check.base import cache_gap, loss
from pe_lab.check.networks import compare_with_plain, model_checks
from pe_lab.models.config import LayerConfig, Vocabulary
from pe_lab.models.transformer import Transformer, TransformerConfig
from pe_lab.pe.base import AttentionInputs
from pe_lab.pe.none import NoPE
from pe_lab.train.encodings import build_encodings

SMALL: dict[str, Any] = {
    "n_layers": 2, "d_model": 48, "n_heads": 2, "d_ff": None, "activation": "relu",
    "dropout": 0.0, "norm": "layernorm", "norm_position": "post", "tied_embeddings": False,
}  # fmt: skip


def built(**keys: Any) -> Transformer:
    cfg = TransformerConfig(**{**SMALL, **keys})
    torch.manual_seed(0)
    return cfg.build(Vocabulary(7), [NoPE(cfg.dims(7, 10, 10))] * 2)


@pytest.mark.parametrize("init", ["scaled", "pytorch"])
def test_initial_weights(init: str) -> None:
    """``pytorch`` is nn.Linear's: uniform in +-1/sqrt(fan in), biases too, nothing divided."""
    model = built(init=init)
    for name, linear in model.blocks.named_modules():
        if isinstance(linear, nn.Linear):
            divided = init == "scaled" and name.endswith("out")
            limit = linear.in_features**-0.5 / (2 if divided else 1)
            assert 0.9 * limit < linear.weight.abs().max() <= limit
            assert 0.8 * limit < linear.bias.abs().max() <= limit or init == "scaled"
            assert bool(linear.bias.any()) == (init == "pytorch")


pytestmark = pytest.mark.usefixtures("float64")
SCALED: dict[str, Any] = {
    "n_layers": 2, "d_model": 16, "n_heads": 2, "d_ff": 16, "activation": "gelu", "dropout": 0.0,
    "norm": "layernorm", "norm_position": "pre", "tied_embeddings": False, "logn": "learned",
}  # fmt: skip
SCALED_TOKENS, SCALED_POS = torch.arange(22).view(2, 11) % 7, torch.arange(11)[None]
NAMES = ["none", "rope", "pope", "alibi", "t5", "cope", "fox", "shaw", "learned"]


def scaled(pe: str, **changes: Any) -> Transformer:
    cfg = TransformerConfig(**{**SCALED, **changes})
    torch.manual_seed(0)
    encodings = build_encodings(facts.section(pe), cfg.dims(7, 11, 11))
    model = accelerated(cfg.build(Vocabulary(7), encodings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("pe", ["none", "rope", "alibi", "cope"])
def test_weights_in_loops(pe: str, window: int | None) -> None:
    """The logits without the factor, scaled number by number, in a softmax by hand."""
    attention: Any = plain(scaled(pe, window=window)).blocks[0].attention
    x = torch.randn(2, 11, 16)
    inputs: AttentionInputs = attention.inputs(x, SCALED_POS, None)
    q, k = attention.encoding.rotate(inputs.q_BHTD, inputs.k_BHSD, inputs)
    logits, weights = attention.weights(q, k, inputs)
    s = attention.normalizer.scale.detach()
    for b, h, i in [(0, 0, 0), (1, 1, 3), (0, 1, 10), (1, 0, 7)]:
        first = 0 if window is None else max(0, i + 1 - window)
        n = i + 1 - first
        exps = [
            math.exp(float(s[h]) * math.log(n) * float(logits[b, h, i, j].detach()))
            for j in range(first, i + 1)
        ]
        expected = torch.tensor([e / sum(exps) for e in exps])
        torch.testing.assert_close(weights[b, h, i, first : i + 1], expected)
        assert not weights[b, h, i, :first].any()


@pytest.mark.parametrize(("window", "encoded"), [(None, True), (4, True), (None, False)])
def test_steps_of_logn_in_loops(window: int | None, encoded: bool) -> None:
    """Only in layers without the encoding, where there are any."""
    layers = {} if encoded else {1: LayerConfig(encoded=False)}
    model = plain(scaled("rope", window=window, logn=3, layers=layers))
    for number, layer in enumerate(model.blocks):
        attention: Any = layer.attention
        inputs = attention.inputs(torch.randn(2, 11, 16), SCALED_POS, None)
        q, k = attention.encoding.rotate(inputs.q_BHTD, inputs.k_BHSD, inputs)
        _, weights = attention.weights(q, k, inputs)
        for i, j in [(0, 0), (1, 0), (2, 1), (8, 7), (10, 9)]:
            factor = 1 + 0.1 * math.log(1 + (i + 1) // 3) if encoded or number == 1 else 1
            expected = factor * (q[:, :, i] * (k[:, :, j] - k[:, :, i])).sum(-1) / math.sqrt(8)
            ratio = weights[:, :, i, j] / weights[:, :, i, i]
            torch.testing.assert_close(ratio.log(), expected)


EXTRAS = {"sink": True, "output_gate": True, "qk_norm": True, "logn": None}


ENTMAX = {"normalizer": "asentmax", "logn": None}


def entmax_in_loops(z: list[float]) -> list[float]:
    """The weights with the threshold that makes them sum to 1, found by halving."""
    low, high = max(z) / 2 - 1, max(z) / 2
    for _ in range(100):
        tau = (low + high) / 2
        total = sum(max(x / 2 - tau, 0) ** 2 for x in z)
        low, high = (tau, high) if total > 1 else (low, tau)
    return [max(x / 2 - low, 0) ** 2 for x in z]


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("name", ["entmax", "asentmax"])
@torch.no_grad()
def test_entmax_in_loops(name: str, window: int | None) -> None:
    model = plain(scaled("rope", normalizer=name, logn=None, window=window))
    attention: Any = model.blocks[0].attention
    x = torch.randn(2, 11, 16)
    inputs = attention.inputs(x, SCALED_POS, None)
    q, k = attention.encoding.rotate(3 * inputs.q_BHTD, 3 * inputs.k_BHSD, inputs)
    _, weights = attention.weights(q, k, inputs)
    zeros = 0
    for b, h, i in [(0, 0, 0), (1, 1, 3), (0, 1, 10), (1, 0, 7)]:
        first = 0 if window is None else max(0, i + 1 - window)
        z = [float(q[b, h, i] @ k[b, h, j]) / math.sqrt(8) for j in range(first, i + 1)]
        if name == "asentmax":
            beta, gamma = (
                float(linear.weight[h] @ x[b, i])
                for linear in (attention.normalizer.beta, attention.normalizer.gamma)
            )
            power = 2 * math.tanh(gamma)
            factor = 1 + math.log(1 + math.exp(beta)) * math.log(len(z) + 1) ** power
            z = [factor * one for one in z]
        expected = torch.tensor(entmax_in_loops(z))
        zeros += int((expected == 0).sum())
        torch.testing.assert_close(weights[b, h, i, first : i + 1], expected, rtol=1e-7, atol=1e-9)
        assert not weights[b, h, i, :first].any()
        assert not weights[b, h, i, i + 1 :].any()
    assert zeros


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("pe", ["none", "rope", "alibi"])
def test_sink_gate_and_norms_in_loops(pe: str, window: int | None) -> None:
    layer: Any = plain(scaled(pe, window=window, **EXTRAS)).blocks[0]
    attention, x = layer.attention, torch.randn(2, 11, 16)
    got, _ = attention(x, SCALED_POS)
    q, k, v = (y.view(2, 11, 2, 8).transpose(1, 2) for y in attention.qkv(x).chunk(3, -1))
    q, k = (
        y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight
        for y, norm in zip((q, k), attention.norms, strict=True)
    )
    inputs = AttentionInputs(x, q, k, v, SCALED_POS, SCALED_POS)
    q, k = attention.encoding.rotate(q, k, inputs)
    bias = attention.encoding.bias(SCALED_POS, SCALED_POS)
    for b, i in [(0, 0), (1, 3), (0, 10)]:
        mixed = []
        for h in range(2):
            total, value = attention.normalizer.sink[h].exp(), torch.zeros(8)
            for j in range(0 if window is None else max(0, i + 1 - window), i + 1):
                logit = q[b, h, i] @ k[b, h, j] / math.sqrt(8)
                e = (logit if bias is None else logit + bias[0, h, i, j]).exp()
                total, value = total + e, value + e * v[b, h, j]
            mixed.append(value / total)
        gates = 1 / (1 + (-(attention.gate.weight @ x[b, i])).exp())
        torch.testing.assert_close(got[b, i], attention.out(torch.cat(mixed) * gates))


@pytest.mark.parametrize(
    "changes", [EXTRAS, {"logn": 3}, ENTMAX], ids=["extras", "steps", "asentmax"]
)
@pytest.mark.parametrize(
    "check",
    [
        "no look at the future", "gradient to every parameter", "scored positions",
        "cached equals uncached", "state_dict round trip",
    ],
)  # fmt: skip
def test_contract(check: str, changes: dict[str, Any]) -> None:
    model_checks(small("transformer") | changes)[check]()


@pytest.mark.parametrize("pe", NAMES)
def test_fast_equals_plain_and_cached_equals_whole(pe: str) -> None:
    model = scaled(pe)
    compare_with_plain(model, plain(model), SCALED_TOKENS, [SCALED_POS], loose=10)
    for layer in model.blocks:
        (gradient,) = torch.autograd.grad(
            loss(model(SCALED_TOKENS, SCALED_POS)), [layer.attention.normalizer.scale]
        )
        assert gradient.abs().min() > 1e-8
    cache_gap(model, SCALED_TOKENS, SCALED_POS, 5, 1, 5)
