"""Linear attention, LSTM and GRU: the formulas in loops, states that do not grow, refusals."""

import math
from typing import Any

import pytest
import torch
from formulas import gru, rotated, sigmoid
from torch import Tensor

from docs import facts
from pe_lab.check.base import scattered
from pe_lab.models.config import Vocabulary
from pe_lab.models.linear_attention import LinearAttention, LinearAttentionConfig, phi
from pe_lab.models.recurrent import GRUConfig, LSTMConfig, Recurrent
from pe_lab.pe.base import PositionalEncoding
from pe_lab.train.encodings import build_encodings

HEADS, WIDTH, VOCAB, MAX_LEN = 2, 4, 7, 64


pytestmark = pytest.mark.usefixtures("float64")


def config(**changes: Any) -> LinearAttentionConfig:
    keys = {k: v for k, v in facts.section("linear_attention", "model").items() if k[0] != "_"}
    sizes = {"n_layers": 1, "n_heads": HEADS, "d_model": HEADS * WIDTH}
    return LinearAttentionConfig(**{**keys, **sizes, **changes})


def encoding(pe: str, **keys: Any) -> PositionalEncoding:
    return build_encodings({**facts.section(pe), **keys}, config().dims(VOCAB, 8, MAX_LEN))[0]


def attention(pe: str = "none", **keys: Any) -> LinearAttention:
    torch.manual_seed(0)
    made = LinearAttention(config(), encoding(pe, **keys))
    # Otherwise queries and keys are all near 0, and phi near 1.
    made.qkv.weight.data.mul_(3)
    return made


def naive(made: LinearAttention, x_BTE: Tensor, pos_BT: Tensor, slowed: float) -> Tensor:
    """One pair of tokens at a time, rotated by position / ``slowed`` (0: not rotated)."""

    def feature(v: Tensor) -> Tensor:
        return torch.stack([1 + a if a > 0 else a.exp() for a in v])

    def turned(v: Tensor, position: Tensor) -> Tensor:
        return rotated(v, float(position) / slowed) if slowed else v

    rows = []
    for x, pos in zip(x_BTE, pos_BT, strict=True):
        q, k, v = made.qkv(x).chunk(3, -1)
        for i in range(len(x)):
            mixed = []
            for h in range(HEADS):
                head = slice(h * WIDTH, (h + 1) * WIDTH)
                query = feature(q[i, head])
                above, below = torch.zeros(WIDTH), torch.zeros(())
                for j in range(i + 1):
                    key = feature(k[j, head])
                    above = above + turned(query, pos[i]) @ turned(key, pos[j]) * v[j, head]
                    below = below + query @ key
                mixed.append(above / below)
            rows.append(made.out(torch.cat(mixed)))
    return torch.stack(rows).view_as(x_BTE)


@pytest.mark.parametrize(
    ("pe", "keys", "slowed"), [("none", {}, 0), ("rope", {}, 1), ("pi", {"k": 2.5}, 2.5)]
)
@pytest.mark.parametrize("chunk", [4, 64])
@pytest.mark.parametrize("length", [1, 3, 4, 9])
def test_equals_the_formula_in_value_and_gradient(
    pe: str, keys: dict[str, Any], slowed: float, chunk: int, length: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(LinearAttention, "chunk", chunk)
    made = attention(pe, **keys)
    x = torch.randn(2, length, HEADS * WIDTH, requires_grad=True)
    pos = scattered(2, length, MAX_LEN)
    outs = [made(x, pos)[0], naive(made, x, pos, slowed)]
    torch.testing.assert_close(*outs, rtol=1e-10, atol=1e-10)
    leaves, direction = [x, *made.parameters()], torch.randn_like(x)
    torch.testing.assert_close(
        *(torch.autograd.grad(out, leaves, direction) for out in outs), rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("pe", ["none", "rope"])
def test_a_cache_continues_from_any_position(pe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, pos = torch.randn(2, 21, HEADS * WIDTH), scattered(2, 21, MAX_LEN)
    for chunk in (4, 64):
        monkeypatch.setattr(LinearAttention, "chunk", chunk)
        made = attention(pe)
        whole, _ = made(x, pos)
        cache, sizes, parts = made.cache(), set(), []
        for a, b in ((0, 6), (6, 7), (7, 16), (16, 20), (20, 21)):
            parts.append(made(x[:, a:b], pos[:, :b], None, cache)[0])
            assert (cache.keys.length, cache.values.length, cache.inputs.length) == (0, 0, 0)
            sizes.add((cache.kv_BHDD.shape, cache.k_BHD.shape))
        torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-10, atol=1e-10)
        assert sizes == {((2, HEADS, WIDTH, WIDTH), (2, HEADS, WIDTH))}


def test_phi_is_exact_and_positive_far_below_zero() -> None:
    x = torch.tensor([-80.0, -30.0, -1.0, 0.0, 2.0], dtype=torch.float32, requires_grad=True)
    out = phi(x)
    expected = torch.tensor([math.exp(-80), math.exp(-30), math.exp(-1), 1.0, 3.0])
    torch.testing.assert_close(out, expected.float(), rtol=1e-6, atol=0)
    (slope,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(slope, expected.clamp(max=1).float(), rtol=1e-6, atol=0)


SIZE, WORDS, LENGTH = 3, 5, 6
CONFIGS = {"lstm": LSTMConfig, "gru": GRUConfig}


every_kind = pytest.mark.parametrize("kind", CONFIGS)


def built(kind: str, pe: str = "none", **changes: Any) -> Recurrent:
    sizes = {"n_layers": 2, "d_model": SIZE, "dropout": 0.0, "tied_embeddings": False}
    cfg = CONFIGS[kind](**{**sizes, **changes})
    encodings = build_encodings(facts.section(pe), cfg.dims(WORDS, LENGTH, 64))
    torch.manual_seed(0)
    return cfg.build(Vocabulary(WORDS), encodings)


def tokens(length: int = LENGTH) -> Tensor:
    return torch.randint(0, WORDS, (2, length), generator=torch.Generator().manual_seed(1))


def naive_layer(kind: str, cells: Any, x: list[Tensor]) -> list[Tensor]:
    """The outputs (E,) of one layer for the inputs (E,) of one sequence."""
    w, u, b, b_h = (getattr(cells, f"{name}_l0") for name in
                    ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))  # fmt: skip
    h, c, out = torch.zeros(SIZE), torch.zeros(SIZE), []
    for x_t in x:
        given, kept = w @ x_t + b, u @ h + b_h
        if kind == "lstm":
            i, f, g, o = (given + kept).chunk(4)
            c = sigmoid(f) * c + sigmoid(i) * g.tanh()
            h = sigmoid(o) * c.tanh()
        else:
            h = gru(given, kept, h)
        out.append(h)
    return out


@pytest.mark.parametrize("tied", [False, True])
@every_kind
def test_equals_the_formula(kind: str, tied: bool) -> None:
    model = built(kind, tied_embeddings=tied)
    seen, slow = tokens(), list[Tensor]()
    for row in seen:
        x = [model.tokens.weight[token] * (math.sqrt(SIZE) if tied else 1) for token in row]
        for layer in model.layers:
            x = naive_layer(kind, layer.cells, x)
        slow.append(torch.stack(x))
    outs = [model(seen, torch.arange(LENGTH)[None]), torch.stack(slow)]
    torch.testing.assert_close(*outs, rtol=1e-10, atol=1e-10)
    trunk = [p for name, p in model.named_parameters() if name != "head.weight"]
    direction = torch.randn(2, LENGTH, SIZE)
    torch.testing.assert_close(
        *(torch.autograd.grad(out, trunk, direction) for out in outs), rtol=1e-10, atol=1e-10
    )
    assert model.unembed(outs[0]).shape == (2, LENGTH, WORDS)
    assert (model.head.weight is model.tokens.weight) == tied
