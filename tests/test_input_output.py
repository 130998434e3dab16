"""Models with an input and an output part: a formula in loops, masks, and what is refused."""

from collections.abc import Callable
from functools import partial
from typing import Any

import naive_encoder_decoder
import naive_seq2seq
import pytest
import torch
from input_output import MAX_LEN, SEPARATOR, VOCAB, sequences
from naive_encoder_decoder import LAYERS, config
from torch import Tensor

from pe_lab.models.config import Vocabulary
from pe_lab.models.input_output import InputOutput
from pe_lab.pe.none import NoPE

pytestmark = pytest.mark.usefixtures("float64")
Build = Callable[..., InputOutput]
encoder_decoder, seq2seq = naive_encoder_decoder.built, naive_seq2seq.built
each_model = pytest.mark.parametrize("build", [encoder_decoder, seq2seq], ids=["ed", "s2s"])


FORMS: list[tuple[Build, str, dict[str, Any]]] = [
    (encoder_decoder, "none", {"tied_embeddings": True, "activation": "gelu"}),
    (encoder_decoder, "none", {"norm_position": "post", "n_layers": 1}),
    (encoder_decoder, "learned", {"norm": "rmsnorm", "activation": "swiglu", "n_layers": 1}),
    (encoder_decoder, "rope", {"norm": "rmsnorm", "norm_position": "post", "n_layers": 1}),
    (encoder_decoder, "alibi", {}),
    (seq2seq, "none", {}),
    (seq2seq, "learned", {"n_layers": 2}),
]


def naive(
    build: Build, model: Any, pe: str, changes: dict[str, Any]
) -> Callable[[list[int], list[int]], Tensor]:
    """The states of the output part of one row, (U, E), from its tokens and positions."""
    if build is seq2seq:
        return partial(naive_seq2seq.naive, model)
    return naive_encoder_decoder.Naive(model, naive_encoder_decoder.config(**changes), pe)


@pytest.mark.parametrize(("build", "pe", "changes"), FORMS)
@pytest.mark.parametrize("places", [[3, 1, 3], [2, 2], [0, 1]], ids=["apart", "in line", "empty"])
def test_equals_the_formula_in_value_and_gradient(
    build: Build, pe: str, changes: dict[str, Any], places: list[int]
) -> None:
    tokens, pos = sequences(places, 6)
    model = build(pe, **changes)
    width = model.tokens.weight.shape[1]
    direction = torch.randn(len(places), 6, width + VOCAB)

    def gradients(model: InputOutput, hidden: Tensor) -> tuple[Tensor, ...]:
        outputs = torch.cat([hidden, model.unembed(hidden)], -1)
        leaves = list(model.parameters())
        return torch.autograd.grad((outputs * direction).sum(), leaves, materialize_grads=True)

    states = naive(build, model, pe, changes)
    slow = torch.stack([
        torch.cat([torch.zeros(place, width), states(row.tolist(), at.tolist())])
        for place, row, at in zip(places, tokens, pos, strict=True)
    ])  # fmt: skip
    slow_gradients = gradients(model, slow)
    for fast in (True, False):
        model = build(pe, fast, **changes)
        hidden = model(tokens, pos)
        torch.testing.assert_close(hidden, slow, rtol=1e-10, atol=1e-10)
        found = gradients(model, hidden)
        torch.testing.assert_close(found, slow_gradients, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("build", "pe"),
    [
        *((encoder_decoder, pe) for pe in ("none", "learned", "conv", "rope", "t5", "fire")),
        *((seq2seq, pe) for pe in ("none", "learned", "conv", "recurrent", "complex_order")),
    ],
)
def test_causality(build: Build, pe: str) -> None:
    """The input part does not depend on the output, an output position not on those after it, and
    a row not on the others; every output depends on the input."""
    model = build(pe)
    tokens, pos = sequences([4, 2, 4], 9)
    before = model(tokens, pos)
    changed = tokens.clone()
    changed[:, 6:] = (changed[:, 6:] + 1) % SEPARATOR
    after = model(changed, pos)
    torch.testing.assert_close(after[:, :6], before[:, :6], rtol=1e-10, atol=1e-10)
    assert not torch.allclose(after[:, 6], before[:, 6])
    assert not before[0, :4].any()
    for row in range(3):
        alone = model(tokens[row : row + 1], pos[row : row + 1])
        torch.testing.assert_close(alone[0], before[row], rtol=1e-10, atol=1e-10)
    for place in range(4):
        other = changed[:1].clone()
        other[:, place] = (other[:, place] + 1) % SEPARATOR
        assert not torch.isclose(model(other, pos[:1])[0, 4], after[0, 4]).any()


@each_model
def test_unreadable_sequences_are_refused(build: Build) -> None:
    model = build()
    tokens, pos = sequences([4, 2], 6)
    with pytest.raises(ValueError, match="different positions in these rows"):
        model(tokens, pos, model.empty_cache())
    tokens[0, 4] = 0
    for cache in (None, model.empty_cache()):
        with pytest.raises(ValueError, match="holds no separator"):
            model(tokens, pos, cache)


@pytest.mark.parametrize("tied", [False, True])
def test_initial_weights(tied: bool) -> None:
    cfg = config(d_model=48, d_ff=64, tied_embeddings=tied)
    torch.manual_seed(0)
    encodings = [NoPE(cfg.dims(VOCAB, 12, MAX_LEN)) for _ in range(2 * LAYERS)]
    model = cfg.build(Vocabulary(VOCAB, SEPARATOR), encodings)

    def starts(linear: Any, branches: int) -> None:
        bound = (linear.in_features * branches) ** -0.5
        assert 0.95 * bound < linear.weight.abs().max() <= bound
        assert not linear.bias.any()

    for layers, branches in ((model.encoder, 2), (model.decoder, 3)):
        for name, linear in torch.nn.ModuleList(layers).named_modules():
            if isinstance(linear, torch.nn.Linear):
                starts(linear, branches * LAYERS if name.endswith("out") else 1)
    assert model.tokens.weight.std().item() == pytest.approx(48**-0.5 if tied else 1, rel=0.1)
    assert (model.head.weight is model.tokens.weight) == tied
    assert tied or model.head.weight.abs().max() <= 48**-0.5
