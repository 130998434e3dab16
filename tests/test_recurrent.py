"""LSTM and GRU: the formulas step by step, and a state that does not grow."""

import math
from typing import Any

import pytest
import torch
from formulas import gru, sigmoid
from torch import Tensor

from docs import facts
from pe_lab.models.base import Vocabulary
from pe_lab.models.recurrent import GRUConfig, LSTMConfig, Recurrent
from pe_lab.training.plan import build_encodings

WIDTH, VOCAB, LENGTH = 3, 5, 6
CONFIGS = {"lstm": LSTMConfig, "gru": GRUConfig}

pytestmark = pytest.mark.usefixtures("float64")
every_kind = pytest.mark.parametrize("kind", CONFIGS)


def built(kind: str, pe: str = "none", **changes: Any) -> Recurrent:
    sizes = {"n_layers": 2, "d_model": WIDTH, "dropout": 0.0, "tied_embeddings": False}
    cfg = CONFIGS[kind](**{**sizes, **changes})
    encodings = build_encodings(facts.section(pe), cfg.dims(VOCAB, LENGTH, 64))
    torch.manual_seed(0)
    return cfg.build(Vocabulary(VOCAB), encodings)


def tokens(length: int = LENGTH) -> Tensor:
    return torch.randint(0, VOCAB, (2, length), generator=torch.Generator().manual_seed(1))


def tanh(x: Tensor) -> Tensor:
    return (x.exp() - (-x).exp()) / (x.exp() + (-x).exp())


def naive_layer(kind: str, cells: Any, x: list[Tensor]) -> list[Tensor]:
    """The outputs (E,) of one layer for the inputs (E,) of one sequence."""
    w, u, b, b_h = (getattr(cells, f"{name}_l0") for name in
                    ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))  # fmt: skip
    h, c, out = torch.zeros(WIDTH), torch.zeros(WIDTH), []
    for x_t in x:
        given, kept = w @ x_t + b, u @ h + b_h
        if kind == "lstm":
            i, f, g, o = (given + kept).chunk(4)
            c = sigmoid(f) * c + sigmoid(i) * tanh(g)
            h = sigmoid(o) * tanh(c)
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
        x = [model.tokens.weight[token] * (math.sqrt(WIDTH) if tied else 1) for token in row]
        for layer in model.layers:
            x = naive_layer(kind, layer.cells, x)
        slow.append(torch.stack(x))
    outs = [model(seen, torch.arange(LENGTH)[None]), torch.stack(slow)]
    torch.testing.assert_close(*outs, rtol=1e-10, atol=1e-10)
    trunk = [p for name, p in model.named_parameters() if name != "head.weight"]
    direction = torch.randn(2, LENGTH, WIDTH)
    torch.testing.assert_close(
        *(torch.autograd.grad(out, trunk, direction) for out in outs), rtol=1e-10, atol=1e-10
    )
    assert model.unembed(outs[0]).shape == (2, LENGTH, VOCAB)
    assert (model.head.weight is model.tokens.weight) == tied


@every_kind
def test_the_cache_does_not_grow_with_what_was_read(kind: str) -> None:
    model = built(kind)
    cache = model.empty_cache()
    sizes = []
    for t in range(20):
        model(tokens(1), torch.arange(t + 1)[None], cache)
        assert cache.tokens_BS.length == 0
        sizes.append(sum(part.numel() for state in cache.states for part in state))
    assert set(sizes) == {2 * 2 * WIDTH * (2 if kind == "lstm" else 1)}
    # An encoding of the input may look back.
    cached = built(kind, "conv")
    cache = cached.empty_cache()
    cached(tokens(3), torch.arange(3)[None], cache)
    cached(tokens(1), torch.arange(4)[None], cache)
    assert cache.tokens_BS.length == 4


@every_kind
def test_dropout_is_on_the_input_of_layers_and_on_the_output(kind: str) -> None:
    """As Zaremba 2014 has it: never from one token to the next, so a share of the output is 0."""
    model = built(kind, dropout=0.25, d_model=64, n_layers=1)
    hidden = model(tokens(50), torch.arange(50)[None], key=3)
    assert 0.2 < float((hidden == 0).double().mean()) < 0.3
    plain = model.eval()(tokens(50), torch.arange(50)[None])
    assert not (plain == 0).any()
    # What is left of the output is larger by 1 / (1 - p), and of a changed input besides.
    kept = hidden != 0
    assert not torch.allclose(hidden[kept] * 0.75, plain[kept])


@every_kind
def test_weights_are_about_as_many_as_estimated(kind: str) -> None:
    cfg = CONFIGS[kind](n_layers=3, d_model=64, dropout=0.0, tied_embeddings=False)
    model = built(kind, n_layers=3, d_model=64)
    held = sum(p.numel() for p in model.layers.parameters())
    assert cfg.weights() == pytest.approx(held, rel=0.02)
