"""What a model must keep, one function a point. Each takes the model's section, in the context
``tiny.exact``; the encoding is none, but for the last."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pe_lab.common.errors import UsageError
from pe_lab.evaluation.contract.choices import other_values, shown
from pe_lab.evaluation.contract.encodings import NONE
from pe_lab.evaluation.contract.outcome import ContractError, NotClaimedError
from pe_lab.evaluation.contract.tiny import (
    Section,
    differ,
    gradients,
    in_pieces,
    largest,
    loss,
    scattered,
    sequential,
)
from pe_lab.evaluation.contract.tiny_models import (
    LENGTH,
    MAX_LEN,
    PLACE,
    SEPARATOR,
    VOCAB,
    built,
    config,
    model_of,
    tokens,
    two_parts,
    with_dropout,
)
from pe_lab.models.base import ScoredPositions
from pe_lab.training.encodings import build_encodings
from pe_lab.training.kernels import has_kernels

LEARNED = {"_target_": "pe_lab.pe.learned.Learned", "max_len": None}


def no_look_ahead(section: Section) -> str:
    """A token's state depends on no later token (of the output part, where there are two), and on
    each earlier one."""
    model, seen, pos = model_of(section), tokens(), sequential(LENGTH)
    hidden, worst = model(seen, pos), 0.0
    width = config(section).d_model
    if hidden.shape != (2, LENGTH, width) or hidden.dtype != torch.float64:
        raise ContractError(
            f"hidden states are {tuple(hidden.shape)} {hidden.dtype}, not {(2, LENGTH, width)} "
            "torch.float64"
        )
    if (found := model.unembed(hidden).shape) != (2, LENGTH, VOCAB):
        raise ContractError(f"logits are {tuple(found)}, not {(2, LENGTH, VOCAB)}")
    for t in range(PLACE if two_parts(section) else 0, LENGTH - 1):
        changed = seen.clone()
        changed[:, t + 1 :] = (changed[:, t + 1 :] + 1) % SEPARATOR
        again = model(changed, pos)
        # A product is rounded as its size has it.
        worst = max(worst, largest(again[:, : t + 1] - hidden[:, : t + 1]))
        if not worst <= 1e-14:
            raise ContractError(
                f"states of tokens 0 to {t} change by {worst:.1e} where later tokens are changed"
            )
        if not (again[:, t + 1 :] - hidden[:, t + 1 :]).abs().amax(-1).min() > 1e-6:
            raise ContractError(f"a token after {t} is changed, and its state is not")
    return f"where later tokens are changed, states differ by {worst:.1g}"


def gradients_reach(section: Section) -> str:
    """Every parameter has a gradient."""
    model = model_of(section)
    torch.autograd.backward(loss(model.unembed(model(tokens(), sequential(LENGTH)))))
    for name, parameter in model.named_parameters():
        gradient = 0.0 if parameter.grad is None else largest(parameter.grad)
        if not gradient > 0:
            raise ContractError(f"{name} has no gradient: it trains nothing")
    return f"{sum(p.numel() for p in model.parameters())} parameters"


def scored_positions(section: Section) -> str:
    """With ``scored`` the states are rows of the whole, in value and gradient, in training too."""
    model, seen, pos = model_of(section, **with_dropout(section)), tokens(3), sequential(LENGTH)
    chosen = np.random.default_rng(0).random((3, LENGTH)) < 0.3
    chosen[:, :PLACE] = False
    scored = ScoredPositions.of(chosen, torch.device("cpu"))
    for training in (True, False):
        model.train(training)
        some = model(seen, pos, scored=scored, key=5)
        rows = model(seen, pos, key=5)[torch.from_numpy(chosen)]
        if some.shape != rows.shape:
            raise ContractError(f"scored gives {tuple(some.shape)}, not {tuple(rows.shape)}")
        if (gap := differ(some, rows, rtol=1e-12, atol=1e-12)) is not None:
            raise ContractError(f"with scored, states differ by {gap:.1e} (training: {training})")
        for one, other in zip(gradients(model, some), gradients(model, rows), strict=True):
            if (gap := differ(one, other, rtol=1e-9, atol=1e-11)) is not None:
                raise ContractError(f"with scored, gradients differ by {gap:.1e}")
    return f"{len(scored.at_N)} of {3 * LENGTH} states, as in the whole"


def dropout_by_key(section: Section) -> str:
    """Dropout is a function of its key, and none in evaluation."""
    if not with_dropout(section):
        raise NotClaimedError("it has no key dropout")
    model = model_of(section, dropout=0.3)

    def out(key: int) -> Tensor:
        torch.rand(1)
        hidden: Tensor = model(tokens(), sequential(LENGTH), key=key)
        return hidden

    if not torch.equal(out(5), out(5)):
        raise ContractError("one key drops different units in two passes: a resumed run would too")
    if torch.equal(out(5), out(6)):
        raise ContractError("another key drops the same units: pass it to drop")
    model.eval()
    if not torch.equal(out(5), out(6)):
        raise ContractError("it drops units in evaluation")
    return "the same mask for the same key, none in evaluation"


def half_precision(section: Section) -> str:
    """bfloat16 autocast is near to float32, its gradients are finite."""
    model, pos = model_of(section).float(), sequential(LENGTH)
    single = model(tokens(), pos)
    with torch.autocast("cpu", torch.bfloat16):
        half = model(tokens(), pos)
        torch.autograd.backward(loss(half))
    if (gap := differ(half.float(), single, rtol=0.3, atol=0.3)) is not None:
        raise ContractError(f"states in bfloat16 differ from float32 by {gap:.1e}")
    for name, p in model.named_parameters():
        if p.grad is not None and not p.grad.isfinite().all():
            raise ContractError(f"in bfloat16 the gradient of {name} is not finite")
    return f"bfloat16 differs from float32 by {largest(half.float() - single):.1g}"


def cached(section: Section) -> str:
    """Decoding with a cache equals the whole pass, from the separator on."""
    model, seen = model_of(section).eval(), tokens()
    worst = 0.0
    for pos in (sequential(LENGTH), scattered(2, LENGTH, MAX_LEN)):
        for pieces in ((PLACE + 1,), (PLACE + 1, 1, 3)):
            with torch.inference_mode():
                steps, whole = in_pieces(model, seen, pos, *pieces), model(seen, pos)
            if (gap := differ(steps, whole, rtol=1e-10, atol=1e-10)) is not None:
                raise ContractError(f"decoding with a cache differs by {gap:.1e}")
            worst = max(worst, largest(steps - whole))
    return f"{LENGTH} tokens decoded one by one and in pieces differ by {worst:.0e}"


def fast_equals_plain(section: Section) -> str:
    """With the kernels as without, in value and gradient."""
    if not has_kernels():
        raise NotClaimedError("pe_lab/kernels is missing")
    changes, pos = with_dropout(section), scattered(2, LENGTH, MAX_LEN)
    pe = NONE if built(section, LEARNED) is None else LEARNED
    pair = [built(section, pe, fast, **changes) for fast in (True, False)]
    models = [model for model in pair if model is not None]
    worst = 0.0
    for training in (True, False):
        outs = [model.train(training)(tokens(), pos, key=5) for model in models]
        if (gap := differ(outs[0], outs[1], rtol=1e-11, atol=1e-11)) is not None:
            raise ContractError(f"the kernels change states by {gap:.1e}")
        worst = max(worst, largest(outs[0] - outs[1]))
        grads = [gradients(model, out) for model, out in zip(models, outs, strict=True)]
        for one, other in zip(*grads, strict=True):
            if (gap := differ(one, other, rtol=1e-9, atol=1e-10)) is not None:
                raise ContractError(f"the kernels change a gradient by {gap:.1e}")
    return f"states with the kernels differ by {worst:.0e}"


def round_trip(section: Section) -> str:
    """A model with another's ``state_dict`` computes the same."""
    model, other = model_of(section), model_of(section, seed=5)
    other.load_state_dict(model.state_dict())
    gap = largest(other(tokens(), sequential(LENGTH)).sub(model(tokens(), sequential(LENGTH))))
    if gap:
        raise ContractError(f"a model with this one's state_dict differs by {gap:.1e}")
    return f"{len(model.state_dict())} tensors saved and loaded, states equal bit for bit"


def every_key(section: Section) -> str:
    """Every key changes what is computed, or the number of parameters."""
    done: list[str] = []
    untried: list[str] = []
    for key in section:
        if key == "_target_":
            continue
        also = with_dropout(section) if key == "hidden_dropout" else {}
        base, tried = model_of(section, **also), []
        for value in _values(section, key):
            try:
                other = model_of(section, **also, **{key: value})
            except UsageError:
                continue
            tried.append(shown(value))
            counts = [sum(p.numel() for p in m.parameters()) for m in (base, other)]
            if counts[0] == counts[1]:
                outs = [m(tokens(), sequential(LENGTH), key=5) for m in (base, other)]
                if not largest(outs[0] - outs[1]) > 1e-9:
                    raise ContractError(f"{key}={tried[-1]} computes the same as {section[key]}")
        (done if tried else untried).append(f"{key}={'|'.join(tried)}" if tried else key)
    left = f"no other value to try of {', '.join(untried)}"
    return "; ".join([f"tried {', '.join(done)}", *([left] if untried else [])])


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
    rope = {"_target_": "pe_lab.pe.rope.RoPE", "base": 10, "pairing": "half"}
    for name, pe in (("learned", LEARNED), ("rope", rope)):
        cfg = config(section)
        made = build_encodings(pe, cfg.dims(VOCAB, LENGTH, MAX_LEN), cfg.without())
        refusals = [text for encoding in made if (text := cfg.refuses(encoding)) is not None]
        if refusals:
            if "\n" in refusals[0]:
                raise ContractError(f"it refuses pe={name} in several lines")
            continue
        model, pos = built(section, pe), scattered(2, LENGTH, MAX_LEN)
        assert model is not None
        gap = largest(model(tokens(), pos) - model_of(section)(tokens(), pos))
        if not gap > 1e-6:
            raise ContractError(f"pe={name} is not refused and changes states by {gap:.1g}")
        fits.append(f"pe={name} changes states by {gap:.2g}")
    if not fits:
        raise NotClaimedError("it refuses learned and rope")
    return ", ".join(fits)
