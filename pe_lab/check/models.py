"""The contract of a model: one function for each point.

Each takes the model's section and is called in the context ``base.exact``. The encoding is none,
except in the last.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pe_lab.check import base
from pe_lab.check.base import (
    NONE,
    ROPE,
    ContractError,
    NotClaimedError,
    Section,
    agree,
    change_after,
    gradients,
    largest,
    loss,
    move_parameters,
    other_values,
    parameters,
    require,
    restored,
    scattered,
    sequential,
    shown,
    tried_values,
)
from pe_lab.check.encodings import cache_gap
from pe_lab.core.errors import UsageError
from pe_lab.core.instantiate import instantiate
from pe_lab.models.base import Model
from pe_lab.models.config import ModelConfig, Vocabulary
from pe_lab.tasks.flipflop import FlipFlop
from pe_lab.train.encodings import build_encodings
from pe_lab.train.kernels import use_kernels

LENGTH, MAX_LEN, VOCAB, SEPARATOR, PLACE = 12, 48, 11, 10, 4
"""Tokens, positions, words, the separator and its place."""
FLIPFLOP = FlipFlop(length=16, p_ignore=0.5, loss_on="scored", train_sequences=None, splits={})


def config(section: Section, **changes: Any) -> ModelConfig:
    return instantiate({**section, **changes}, "model", ModelConfig)


def built(
    section: Section, pe: Section = NONE, fast: bool = True, seed: int = 0, **changes: Any
) -> Model | None:
    """The model with all parameters moved, because one that is zero hides its effect; None if it
    refuses the encoding."""
    cfg = config(section, **changes)
    torch.manual_seed(seed)
    made = build_encodings(pe, cfg.dims(VOCAB, LENGTH, MAX_LEN), cfg.without())
    if any(cfg.refuses(encoding) is not None for encoding in made):
        return None
    torch.manual_seed(seed + 1)
    model = cfg.build(Vocabulary(VOCAB, SEPARATOR), made)
    if fast:
        use_kernels(model)
    for encoding in dict.fromkeys(made):
        move_parameters(encoding)
    torch.manual_seed(seed + 2)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "encoding" not in key:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def model_of(section: Section, **changes: Any) -> Model:
    """``built`` with no encoding, which no model refuses."""
    model = built(section, **changes)
    if model is None:
        raise ContractError("it refuses pe=none")
    return model


def two_parts(section: Section) -> bool:
    """Whether the model is for tasks with an input and an output part."""
    return config(section).refuses_task(FLIPFLOP) is not None


def tokens(n: int = 2, seed: int = 0) -> Tensor:
    """Rows with the separator at one place."""
    drawn = torch.randint(0, SEPARATOR, (n, LENGTH), generator=torch.Generator().manual_seed(seed))
    drawn[:, PLACE] = SEPARATOR
    return drawn


def with_dropout(section: Section) -> dict[str, Any]:
    return {"dropout": 0.3} if "dropout" in section else {}


LEARNED = {"_target_": "pe_lab.pe.learned.Learned", "max_len": None}


def no_look_ahead(section: Section) -> str:
    """A token's state depends on no later token (of the output part, if there are two parts), and
    on each earlier one."""
    model, seen, pos = model_of(section), tokens(), sequential(LENGTH)
    hidden, worst = model(seen, pos), 0.0
    expected = 2, LENGTH, config(section).d_model
    require(
        hidden.shape == expected and hidden.dtype == torch.float64,
        f"hidden states are {tuple(hidden.shape)} {hidden.dtype}, not {expected} torch.float64",
    )
    found = tuple(model.unembed(hidden).shape)
    require(found == (2, LENGTH, VOCAB), f"logits are {found}, not {(2, LENGTH, VOCAB)}")
    for t in range(PLACE if two_parts(section) else 0, LENGTH - 1):
        again = model(change_after(seen, t, SEPARATOR), pos)
        # A product is rounded as its size has it.
        worst = max(worst, largest(again[:, : t + 1] - hidden[:, : t + 1]))
        later = (again[:, t + 1 :] - hidden[:, t + 1 :]).abs().amax(-1)
        what = f"states of tokens 0 to {t} change by {worst:.1e} where later tokens are changed"
        require(worst <= 1e-14, what)
        require(later.min() > 1e-6, f"a token after {t} is changed, and its state is not")
    return f"where later tokens are changed, states differ by {worst:.1g}"


def gradients_reach(section: Section) -> str:
    """Every parameter has a gradient."""
    model = model_of(section)
    torch.autograd.backward(loss(model.unembed(model(tokens(), sequential(LENGTH)))))
    for name, parameter in model.named_parameters():
        gradient = 0.0 if parameter.grad is None else largest(parameter.grad)
        require(gradient > 0, f"{name} has no gradient: it trains nothing")
    return f"{sum(p.numel() for p in model.parameters())} parameters"


def scored_positions(section: Section) -> str:
    """With ``scored`` the states are the rows of a whole pass, in value and gradient."""
    model, seen, pos = model_of(section), tokens(3), sequential(LENGTH)
    chosen = np.random.default_rng(0).random((3, LENGTH)) < 0.3
    chosen[:, :PLACE] = False
    scored = torch.from_numpy(np.flatnonzero(chosen))
    some, rows = model(seen, pos, scored=scored), model(seen, pos)[torch.from_numpy(chosen)]
    require(some.shape == rows.shape, f"scored gives {tuple(some.shape)}, not {tuple(rows.shape)}")
    agree(some, rows, 1e-12, "with scored, states differ")
    for one, other in zip(gradients(model, some), gradients(model, rows), strict=True):
        agree(one, other, 1e-9, "with scored, gradients differ")
    return f"{len(scored)} of {3 * LENGTH} states, as in the whole"


def dropout_by_key(section: Section) -> str:
    """Dropout draws from torch's generator, and is off in evaluation."""
    if not with_dropout(section):
        raise NotClaimedError("it has no key dropout")
    model = model_of(section, dropout=0.3)

    def out(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return model(tokens(), sequential(LENGTH))

    require(
        torch.equal(out(5), out(5)),
        "one seed drops different units in two passes: a resumed run would too",
    )
    require(not torch.equal(out(5), out(6)), "another seed drops the same units")
    model.eval()
    require(torch.equal(out(5), out(6)), "it drops units in evaluation")
    return "the same mask for the same seed, none in evaluation"


def cached(section: Section) -> str:
    """Decoding with a cache equals the whole pass, from the separator on."""
    model, pieces = model_of(section).eval(), ((PLACE + 1,), (PLACE + 1, 1, 3))
    places = (sequential(LENGTH), scattered(2, LENGTH, MAX_LEN))
    worst = max(cache_gap(model, tokens(), pos, *made) for pos, made in product(places, pieces))
    return f"{LENGTH} tokens decoded one by one and in pieces differ by {worst:.0e}"


def fast_equals_plain(section: Section) -> str:
    """With the kernels as without, in value and gradient."""
    pe = NONE if built(section, LEARNED) is None else LEARNED
    made = (built(section, pe, fast) for fast in (True, False))
    fast, plain = (model for model in made if model is not None)
    places = [scattered(2, LENGTH, MAX_LEN)]
    return base.fast_equals_plain(fast, plain, tokens(), places, loose=10)


def round_trip(section: Section) -> str:
    """A model with another's ``state_dict`` computes the same."""
    return restored(model_of(section), model_of(section, seed=5), tokens(), sequential(LENGTH))


def every_key(section: Section) -> str:
    """Every key changes what is computed, or the number of parameters."""
    return tried_values(section, lambda key: list(_changes(section, key)))


def _changes(section: Section, key: str) -> Iterator[str]:
    also = {"hidden_dropout": with_dropout(section), "conv_at": {"conv": 3}}.get(key, {})
    base = model_of(section, **also)
    for value in _values(section, key):
        try:
            other = model_of(section, **also, **{key: value})
        except UsageError:
            continue
        torch.manual_seed(5)
        outs = [m(tokens(), sequential(LENGTH)) for m in (base, other)]
        require(
            parameters(base) != parameters(other) or largest(outs[0] - outs[1]) > 1e-9,
            f"{key}={shown(value)} computes the same as {section[key]}",
        )
        yield shown(value)


def _values(section: Section, key: str) -> list[Any]:
    if key == "layers":
        return [{0: {"d_ff": 8}}, {0: {"n_heads": 1}}, {0: {"activation": "gelu"}}]
    if section[key] is None:
        found = other_values(section, key)
        return [3] if all(isinstance(value, int) for value in found) else found
    return [0.3] if isinstance(section[key], float) else other_values(section, key)


def encodings(section: Section) -> str:
    """An encoding is used, or refused in one sentence."""
    fits = []
    for name, pe in (("learned", LEARNED), ("rope", {**ROPE, "base": 10})):
        cfg = config(section)
        made = build_encodings(pe, cfg.dims(VOCAB, LENGTH, MAX_LEN), cfg.without())
        refusals = [text for encoding in made if (text := cfg.refuses(encoding)) is not None]
        if refusals:
            require("\n" not in refusals[0], f"it refuses pe={name} in several lines")
            continue
        model, pos = built(section, pe), scattered(2, LENGTH, MAX_LEN)
        assert model is not None
        gap = largest(model(tokens(), pos) - model_of(section)(tokens(), pos))
        require(gap > 1e-6, f"pe={name} is not refused and changes states by {gap:.1g}")
        fits.append(f"pe={name} changes states by {gap:.2g}")
    if not fits:
        raise NotClaimedError("it refuses learned and rope")
    return ", ".join(fits)
