"""The contract of a model: one function for each point.

Each takes the model's section and is called in the context ``base.exact``. No model here has an
encoding.
"""

from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pe_lab.check.base import (
    NONE,
    NotClaimedError,
    Section,
    agree,
    cache_gap,
    change_after,
    changing_values,
    count_parameters,
    gradients,
    largest,
    loss,
    move_parameters,
    other_values,
    require,
    restored,
    scattered,
    sequential,
    try_keys,
)
from pe_lab.core.errors import UsageError
from pe_lab.core.instantiate import instantiate
from pe_lab.models.base import Model
from pe_lab.models.config import ModelConfig, Vocabulary
from pe_lab.tasks.flipflop import FlipFlop
from pe_lab.train.encodings import build_encodings, use_kernels

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
    encodings = build_encodings(pe, cfg.dims(VOCAB, LENGTH, MAX_LEN), cfg.layers_without_encoding())
    if any(cfg.refuses(encoding) is not None for encoding in encodings):
        return None
    torch.manual_seed(seed + 1)
    model = cfg.build(Vocabulary(VOCAB, SEPARATOR), encodings)
    if fast:
        use_kernels(model)
    for encoding in dict.fromkeys(encodings):
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
    assert model is not None
    return model


def two_parts(section: Section) -> bool:
    """Whether the model is for tasks with an input and an output part."""
    return config(section).refuses_task(FLIPFLOP) is not None


def tokens(n: int = 2, seed: int = 0) -> Tensor:
    """Rows with the separator at one place."""
    drawn = torch.randint(0, SEPARATOR, (n, LENGTH), generator=torch.Generator().manual_seed(seed))
    drawn[:, PLACE] = SEPARATOR
    return drawn


def no_look_ahead(section: Section) -> str:
    """A token's state depends on no later token (of the output part, if there are two parts), and
    on each earlier one."""
    model, sequence, pos = model_of(section), tokens(), sequential(LENGTH)
    hidden, worst = model(sequence, pos), 0.0
    logits = tuple(model.unembed(hidden).shape)
    require(logits == (2, LENGTH, VOCAB), f"logits are {logits}, not {(2, LENGTH, VOCAB)}")
    for t in range(PLACE if two_parts(section) else 0, LENGTH - 1):
        changes = (model(change_after(sequence, t, SEPARATOR), pos) - hidden).abs().amax(-1)
        # A product is rounded as its size has it.
        worst = max(worst, largest(changes[:, : t + 1]))
        what = f"states of tokens 0 to {t} change by {worst:.1e} where later tokens are changed"
        require(worst <= 1e-14, what)
        reads = changes[:, t + 1 :].min() > 1e-6
        require(reads, f"a token after {t} is changed, and its state is not")
    return f"where later tokens are changed, states differ by {worst:.1g}"


def gradients_reach(section: Section) -> str:
    """Every parameter has a gradient."""
    model = model_of(section)
    torch.autograd.backward(loss(model.unembed(model(tokens(), sequential(LENGTH)))))
    for name, parameter in model.named_parameters():
        trains = parameter.grad is not None and largest(parameter.grad) > 0
        require(trains, f"{name} has no gradient: it trains nothing")
    return f"{count_parameters(model)} parameters"


def scored_positions(section: Section) -> str:
    """With ``scored`` the states are the rows of a whole pass, in value and gradient."""
    model, sequence, pos = model_of(section), tokens(3), sequential(LENGTH)
    chosen = np.random.default_rng(0).random((3, LENGTH)) < 0.3
    chosen[:, :PLACE] = False
    scored = torch.from_numpy(np.flatnonzero(chosen))
    some, rows = model(sequence, pos, scored=scored), model(sequence, pos)[torch.from_numpy(chosen)]
    agree(some, rows, 1e-12, "with scored, states change")
    for one, other in zip(gradients(model, some), gradients(model, rows), strict=True):
        agree(one, other, 1e-9, "with scored, gradients change")
    return f"{len(scored)} of {3 * LENGTH} states, as in the whole"


def dropout_by_generator(section: Section) -> str:
    """Dropout draws from torch's generator, and is off in evaluation."""
    if "dropout" not in section:
        raise NotClaimedError("it has no key dropout")
    model = model_of(section, dropout=0.3)

    def out(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return model(tokens(), sequential(LENGTH))

    require(torch.equal(out(5), out(5)), "one seed drops different units in two passes")
    require(not torch.equal(out(5), out(6)), "another seed drops the same units")
    model.eval()
    require(torch.equal(out(5), out(6)), "it drops units in evaluation")
    return "the same mask for the same seed, none in evaluation"


def cached(section: Section) -> str:
    """Decoding with a cache equals the whole pass, from the separator on."""
    model, pieces = model_of(section).eval(), ((PLACE + 1,), (PLACE + 1, 1, 3))
    places = (sequential(LENGTH), scattered(2, LENGTH, MAX_LEN))
    worst = max(cache_gap(model, tokens(), pos, *sizes) for pos, sizes in product(places, pieces))
    return f"{LENGTH} tokens decoded one by one and in pieces differ by {worst:.0e}"


def round_trip(section: Section) -> str:
    """A model with another's ``state_dict`` computes the same."""
    return restored(model_of(section), model_of(section, seed=5), tokens(), sequential(LENGTH))


def every_key(section: Section) -> str:
    """Every key changes what is computed, or the number of parameters."""
    return try_keys(
        section, lambda key: changing_values(section, key, computes_the_same, values_of)
    )


def computes_the_same(one: Section, other: Section) -> bool | None:
    """Whether two models have as many parameters and equal states. None: one of them is refused."""
    try:
        pair = [model_of(section) for section in (one, other)]
    except UsageError:
        return None
    if count_parameters(pair[0]) != count_parameters(pair[1]):
        return False
    states = []
    for model in pair:
        torch.manual_seed(5)
        states.append(model(tokens(), sequential(LENGTH)))
    return largest(states[0] - states[1]) <= 1e-9


def values_of(section: Section, key: str) -> list[Any]:
    """Other values of a key of a model."""
    if key == "layers":
        return [{0: {"d_ff": 8}}, {0: {"n_heads": 1}}, {0: {"activation": "gelu"}}]
    if isinstance(section[key], float):
        return [0.3]
    values = other_values(section, key)
    # Null means no window or no convolution, and a number must be below the length.
    return [3] if section[key] is None and all(isinstance(v, int) for v in values) else values


CHECKS = {
    "no look at the future": no_look_ahead,
    "gradient to every parameter": gradients_reach,
    "scored positions": scored_positions,
    "dropout by torch's generator": dropout_by_generator,
    "cached equals uncached": cached,
    "state_dict round trip": round_trip,
    "every key changes something": every_key,
}
