"""What every model of conf/model must keep; a new yaml is tested by existing."""

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, get_type_hints

import pytest
import torch
from hydra.utils import get_object
from small_models import MODELS, config, every_model, small

from docs import facts
from pe_lab.evaluation.contract import models
from pe_lab.evaluation.contract.base import NotClaimedError, gradients, loss, scattered, sequential
from pe_lab.evaluation.contract.models import LENGTH, MAX_LEN, PLACE, VOCAB, tokens
from pe_lab.evaluation.contract.suite import OF_A_MODEL
from pe_lab.models.base import Model, ModelConfig
from pe_lab.training.plan import build_encodings

ENCODINGS = facts.names()


def built(name: str, pe: str = "none", **changes: Any) -> Model | None:
    """The model with all parameters moved; None: it refuses the encoding."""
    return models.built(small(name), facts.section(pe), **changes)


def refused(cfg: ModelConfig, encodings: list[Any]) -> str | None:
    return next((told for e in encodings if (told := cfg.refuses(e)) is not None), None)


SEQUENTIAL = sequential(LENGTH)


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
    for pos in (SEQUENTIAL, scattered(2, LENGTH, MAX_LEN)):
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
        assert (plain(seen, scattered(2, LENGTH, MAX_LEN)) - hidden).abs().max() > 1e-6


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


@every_model
@pytest.mark.parametrize("check", list(OF_A_MODEL.values())[:-1], ids=list(OF_A_MODEL)[:-1])
def test_what_pe_lab_check_holds(name: str, check: Callable[..., str], float64: None) -> None:
    """All but what encodings do, which is tested with each of them."""
    with suppress(NotClaimedError):
        assert "no other value" not in check(small(name))


@every_model
def test_yaml_and_class_hold_the_same_keys(name: str) -> None:
    """But for keys that a class takes over and that mean nothing in it: those take null alone."""
    section = facts.section(name, "model")
    hints = get_type_hints(get_object(section["_target_"]).__init__)
    taken = {key for key, hint in hints.items() if hint is not type(None)} - {"return"}
    assert taken == section.keys() - {"_target_"}
