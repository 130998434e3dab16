"""What every model of conf/model must keep; a new yaml is tested by existing."""

import re
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch
from fast import accelerated
from hydra.utils import get_object
from small_models import MODELS, SMALL, config, every_model, two_parts
from torch import Tensor

from docs import facts
from pe_lab.models.base import Model, ModelConfig, Vocabulary
from pe_lab.models.scored_positions import ScoredPositions
from pe_lab.training.encodings import build_encodings

ENCODINGS = facts.names()
LENGTH, MAX_LEN, VOCAB, SEPARATOR, PLACE = 12, 48, 11, 10, 4


def built(name: str, pe: str = "none", fast: bool = True, **changes: Any) -> Model | None:
    """The model with all parameters moved, as what starts at zero hides; None: it refuses."""
    cfg = config(name, **changes)
    torch.manual_seed(0)
    encodings = build_encodings(facts.section(pe), cfg.dims(VOCAB, LENGTH, MAX_LEN), cfg.without())
    if refused(cfg, encodings) is not None:
        return None
    torch.manual_seed(1)
    model = accelerated(cfg.build(Vocabulary(VOCAB, SEPARATOR), encodings), fast)
    with torch.no_grad():
        facts.move(encodings)
        torch.manual_seed(2)
        for key, parameter in model.named_parameters():
            if "encoding" not in key:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def refused(cfg: ModelConfig, encodings: list[Any]) -> str | None:
    return next((told for e in encodings if (told := cfg.refuses(e)) is not None), None)


def tokens(n: int = 2, seed: int = 0) -> Tensor:
    """Rows with the separator at one place."""
    drawn = torch.randint(0, SEPARATOR, (n, LENGTH), generator=torch.Generator().manual_seed(seed))
    drawn[:, PLACE] = SEPARATOR
    return drawn


def scattered(n: int = 2) -> Tensor:
    keys = torch.rand(n, MAX_LEN, generator=torch.Generator().manual_seed(3))
    return keys.argsort(-1)[:, :LENGTH].sort(-1).values


SEQUENTIAL = torch.arange(LENGTH)[None]


def loss(hidden: Tensor) -> Tensor:
    """A sum over features would not do: the last norm makes it constant."""
    return (hidden * torch.linspace(-1, 1, hidden.shape[-1]).to(hidden)).sin().sum()


def gradients(model: Model, out: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss(out), list(model.parameters()), materialize_grads=True))


@every_model
def test_shape_dtype_and_no_look_ahead(name: str, float64: None) -> None:
    model, seen = built(name), tokens()
    assert model is not None
    hidden = model(seen, SEQUENTIAL)
    assert (hidden.shape, hidden.dtype) == ((2, LENGTH, 16), torch.float64)
    assert model.unembed(hidden).shape == (2, LENGTH, VOCAB)
    for t in range(PLACE if two_parts(name) else 0, LENGTH - 1):
        changed = seen.clone()
        changed[:, t + 1 :] = (changed[:, t + 1 :] + 1) % SEPARATOR
        again = model(changed, SEQUENTIAL)
        # A product is rounded as its size has it.
        torch.testing.assert_close(again[:, : t + 1], hidden[:, : t + 1], rtol=0, atol=1e-14)
        assert (again[:, t + 1 :] - hidden[:, t + 1 :]).abs().amax(-1).min() > 1e-6


# With the transformer tests/pe asks for all this and more.
@pytest.mark.parametrize("pe", ENCODINGS)
@pytest.mark.parametrize("name", [name for name in MODELS if name != "transformer"])
def test_each_encoding_acts_or_is_refused_in_one_sentence(
    name: str, pe: str, float64: None
) -> None:
    model = built(name, pe)
    if model is None:
        cfg = config(name)
        encodings = build_encodings(facts.section(pe), cfg.dims(VOCAB, LENGTH, MAX_LEN))
        told = f"pe={pe} {refused(cfg, encodings)}"
        assert "\n" not in told
        assert re.search(r"(choose|set) .+$", told)
        assert pe != "none"
        return
    seen = tokens()
    for pos in (SEQUENTIAL, scattered()):
        hidden = model(seen, pos)
        assert all(g.isfinite().all() for g in gradients(model, hidden))
        if any(encoding.whole_sequence for encoding in model.encodings):
            with pytest.raises(ValueError, match="depends on the sequence's length"):
                model.empty_cache()
            continue
        cached, first = model.empty_cache(), PLACE + 1
        steps = [model(seen[:, :first], pos[:, :first], cached)]
        for t in range(first, LENGTH):
            steps.append(model(seen[:, t : t + 1], pos[:, : t + 1], cached))
        torch.testing.assert_close(torch.cat(steps, 1), hidden, rtol=1e-10, atol=1e-10)
    if pe != "none":
        plain = built(name)
        assert plain is not None
        assert (plain(seen, scattered()) - hidden).abs().max() > 1e-6


@every_model
def test_the_trunk_starts_alike_with_every_encoding(name: str) -> None:
    trunks = []
    for pe in ("none", "learned", "rope"):
        model = built(name, pe)
        if model is not None:
            trunks.append({k: p for k, p in model.named_parameters() if "encoding" not in k})
    assert len(trunks) > 1
    for trunk in trunks[1:]:
        assert trunk.keys() == trunks[0].keys()
        assert all(torch.equal(trunk[key], trunks[0][key]) for key in trunk)


@every_model
def test_scored_positions_are_rows_of_the_whole(name: str, float64: None) -> None:
    model, seen = built(name, dropout=0.3), tokens(3)
    assert model is not None
    chosen = np.random.default_rng(0).random((3, LENGTH)) < 0.3
    chosen[:, :PLACE] = False
    scored = ScoredPositions.of(chosen, torch.device("cpu"))
    for dropping in (True, False):
        model.train(dropping)
        outs = [
            model(seen, SEQUENTIAL, scored=scored, key=5),
            model(seen, SEQUENTIAL, key=5)[torch.from_numpy(chosen)],
        ]
        torch.testing.assert_close(*outs, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(*(gradients(model, o) for o in outs), rtol=1e-9, atol=1e-11)


@every_model
def test_fast_is_the_formulas_as_written(name: str, float64: None) -> None:
    fast, plain = (built(name, "learned", way, dropout=0.3) for way in (True, False))
    assert fast is not None
    assert plain is not None
    for dropping in (True, False):
        outs = [m.train(dropping)(tokens(), scattered(), key=5) for m in (fast, plain)]
        torch.testing.assert_close(*outs, rtol=1e-11, atol=1e-11)
        grads = [gradients(m, o) for m, o in zip((fast, plain), outs, strict=True)]
        torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-10)


@every_model
def test_dropout_is_a_function_of_its_key(name: str) -> None:
    model = built(name, dropout=0.3)
    assert model is not None

    def out(key: int) -> Tensor:
        torch.rand(1)
        hidden: Tensor = model.unembed(model(tokens(), SEQUENTIAL, key=key))
        return hidden

    assert torch.equal(out(5), out(5))
    assert not torch.equal(out(5), out(6))
    model.eval()
    assert torch.equal(out(5), out(6))


@every_model
def test_half_precision_is_finite(name: str) -> None:
    model = built(name)
    assert model is not None
    exact = model(tokens(), SEQUENTIAL)
    with torch.autocast("cpu", torch.bfloat16):
        half = model(tokens(), SEQUENTIAL)
        loss(half).backward()
        model.eval()
        cached = model.empty_cache()
        for part in (slice(0, PLACE + 1), slice(PLACE + 1, LENGTH)):
            last = model(tokens()[:, part], SEQUENTIAL[:, : part.stop], cached)
    for found, expected in ((half, exact), (last, exact[:, PLACE + 1 :])):
        torch.testing.assert_close(found.float(), expected, rtol=0.3, atol=0.3)
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def other_values(name: str, key: str, value: Any) -> list[Any]:
    """Other values of a key: the other choices, or another number."""
    hint = get_type_hints(get_object(facts.section(name, "model")["_target_"]).__init__)[key]
    if get_origin(hint) is Literal:
        return [choice for choice in get_args(hint) if choice != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, dict):
        return [{0: {"d_ff": 8}}, {1: {"n_heads": 4}}, {0: {"activation": "gelu"}}]
    if value is None:
        assert get_origin(hint) in (Union, UnionType), f"{key}: null, but {hint}"
        literals = [arg for arg in get_args(hint) if get_origin(arg) is Literal]
        return list(get_args(literals[0])) if literals else [3]
    return [0.3] if isinstance(value, float) else [2 * value]


KEYS = [
    (name, key, value)
    for name in MODELS
    for key, value in {**facts.section(name, "model"), **SMALL}.items()
    if key != "_target_" and key in facts.section(name, "model")
]


@pytest.mark.parametrize(("name", "key", "value"), KEYS, ids=lambda v: str(v))
def test_every_key_changes_something(name: str, key: str, value: Any, float64: None) -> None:
    also = {"dropout": 0.3} if key == "hidden_dropout" else {}
    base = built(name, **also)
    assert base is not None
    for other in other_values(name, key, value):
        changed = built(name, **also, **{key: other})
        assert changed is not None
        sizes = [sum(p.numel() for p in m.parameters()) for m in (base, changed)]
        outs = [m(tokens(), SEQUENTIAL, key=5) for m in (base, changed)]
        assert sizes[0] != sizes[1] or (outs[0] - outs[1]).abs().max() > 1e-9, other


@every_model
def test_yaml_and_class_hold_the_same_keys(name: str) -> None:
    """But for keys that a class takes over and that mean nothing in it: those take null alone."""
    section = facts.section(name, "model")
    hints = get_type_hints(get_object(section["_target_"]).__init__)
    taken = {key for key, hint in hints.items() if hint is not type(None)} - {"return"}
    assert taken == section.keys() - {"_target_"}
