"""The contract of an encoding: one function for each point.

Each takes the encoding's section and the sizes of the tiny model that differ (``d_model``,
``n_heads``, ..), and is called in the context ``base.exact``.
"""

import inspect
from functools import partial
from itertools import product
from typing import Any

import torch
from hydra.utils import get_object
from torch import nn

from pe_lab.check import base
from pe_lab.check.base import (
    MAX_LEN,
    TRAIN_LEN,
    ContractError,
    NotClaimedError,
    Section,
    accepted,
    agree,
    as_word,
    cache_gap,
    change_after,
    changing_values,
    count_parameters,
    dims,
    largest,
    loss,
    model,
    other_values,
    reach,
    require,
    restored,
    scattered,
    sequential,
    tokens,
    try_keys,
)
from pe_lab.models.transformer import Transformer

SHIFT = 7
LONG = 130
"""At this length sums are long and kernels need several blocks."""
STEPS = (1e-4, 1e-6)
"""Steps of finite differences: a large one for float32 code, a small one near kinks."""


def encoding_parameters(built: Transformer) -> dict[str, nn.Parameter]:
    return {name: p for name, p in built.named_parameters() if ".encoding." in name}


def same_keys(section: Section) -> str:
    """The yaml sets each key that the class takes, and no other."""
    arguments = list(inspect.signature(get_object(section["_target_"])).parameters)[1:]
    keys = [key for key in section if key != "_target_"]
    if unset := [key for key in arguments if key not in keys]:
        raise ContractError(f"the yaml does not set {', '.join(unset)}, so no run records them")
    if unknown := [key for key in keys if key not in arguments]:
        raise ContractError(f"the class takes no {', '.join(unknown)}")
    return f"both have {', '.join(keys)}" if keys else "it has no keys"


def no_look_ahead(section: Section, atol: float = 1e-12, **sizes: Any) -> str:
    """A token's state depends on no later token, and on each earlier one. ``LONG`` tokens pass the
    end of a kernel's block."""
    long = {**sizes, "max_len": LONG}
    if not accepted(section, dims(**long)):
        long["train_len"] = LONG  # A window longer than the trained length is refused.
    worst = 0.0
    for length, size in ((TRAIN_LEN, sizes), (LONG, long)):
        built = model(section, **size)
        length = min([length, *(e.max_len for e in built.encodings if e.max_len is not None)])
        sequence, pos = tokens(2, length), sequential(length)
        hidden = built(sequence, pos)
        for t in (0, 1, length // 2, length - 2) if length == TRAIN_LEN else (length // 2,):
            again = built(change_after(sequence, t), pos)
            worst = max(worst, largest(again[:, : t + 1] - hidden[:, : t + 1]))
            require(
                worst <= atol,
                f"states of tokens 0 to {t} change by {worst:.1e} where only tokens after {t} were "
                "changed: the mask comes after bias and logits, but gates, sums and convolutions "
                "must not read later keys",
            )
            reads = not torch.equal(again[:, t + 1 :], hidden[:, t + 1 :])
            require(reads, f"no state after token {t} changes where the tokens after {t} do")
    return f"where later tokens of {length} are changed, states differ by {worst:.1g}"


def finite(section: Section, **sizes: Any) -> str:
    """States have the input's shape and type and are finite, for one token, odd lengths, one head,
    at four times the trained length and at scattered positions."""
    built = model(section, **sizes)
    n = reach(built.encodings)
    cases = [(built, sequential(1)), (built, sequential(7)), (built, sequential(n))]
    cases.append((built, scattered(3, min(n, 12), n)))
    if accepted(section, dims(**{**sizes, "n_heads": 1})):
        cases.append((model(section, **{**sizes, "n_heads": 1}), sequential(TRAIN_LEN)))
    for each, pos in cases:
        hidden = each(tokens(3, pos.shape[1]), pos)
        shape, dtype = (3, pos.shape[1], dims(**sizes).d_model), torch.get_default_dtype()
        same = hidden.shape == shape and hidden.dtype == dtype
        require(same, f"states are {tuple(hidden.shape)} {hidden.dtype}, not {shape} {dtype}")
        at = f"{pos.shape[1]} tokens, positions up to {int(pos.max())}"
        require(hidden.isfinite().all(), f"states are not finite: {at}")
    limited = "" if n == MAX_LEN else ", as many as its max_len allows"
    return f"trained for {TRAIN_LEN} tokens, finite at {n} positions{limited}"


def low_precision(section: Section, **sizes: Any) -> str:
    """float32 is near to float64; states and gradients are finite in bfloat16 autocast."""
    sequence, pos = tokens(2, TRAIN_LEN), sequential(TRAIN_LEN)
    expected, single = model(section, **sizes)(sequence, pos), model(section, **sizes).float()
    hidden = single(sequence, pos)
    require(hidden.dtype == torch.float32, f"a float32 model computes in {hidden.dtype}")
    what = "compute in float64 what differs: float32 changes states"
    gap = agree(hidden.double(), expected, 1e-4, what)
    with torch.autocast("cpu", torch.bfloat16):
        half = single(sequence, pos)
        torch.autograd.backward(loss(half))
    require(half.isfinite().all(), "states are not finite in bfloat16 autocast")
    for name, parameter in encoding_parameters(single).items():
        good = parameter.grad is not None and bool(parameter.grad.isfinite().all())
        require(good, f"in bfloat16 the gradient of {name} is missing or not finite")
    half_gap = largest(half.double() - expected)
    return f"float32 differs from float64 by {gap:.0e}, bfloat16 autocast by {half_gap:.0e}"


def gradients_reach(section: Section, **sizes: Any) -> str:
    """Every parameter, and each head's part of it, has a gradient at four times the trained
    length."""
    built = model(section, **sizes)
    named, heads = encoding_parameters(built), dims(**sizes).n_heads
    if not named:
        raise NotClaimedError("it has no parameters")
    n = reach(built.encodings)
    torch.autograd.backward(loss(built(tokens(3, n), sequential(n))))
    for name, parameter in named.items():
        gradient = torch.zeros(1) if parameter.grad is None else parameter.grad
        require(largest(gradient) > 1e-8, f"{name} has no gradient: it trains nothing")
        for axis in (axis for axis, size in enumerate(gradient.shape) if size == heads):
            by_head = gradient.abs().movedim(axis, 0).reshape(heads, -1).amax(1)
            require((by_head > 1e-8).all(), f"a head's part of {name} has no gradient")
    return f"all {len(named)} tensors of parameters have one"


def derivative(section: Section, **sizes: Any) -> str:
    """Gradients equal finite differences, for each parameter of the model by itself."""
    built, draw = model(section, fast=False, **sizes).train(), torch.Generator().manual_seed(5)
    sequence, pos = tokens(2, TRAIN_LEN), sequential(TRAIN_LEN)
    named = dict(built.named_parameters())
    backward = torch.autograd.grad(
        loss(built(sequence, pos)), list(named.values()), materialize_grads=True
    )
    for (name, parameter), gradient in zip(named.items(), backward, strict=True):
        direction, start = torch.randn(parameter.shape, generator=draw), parameter.detach().clone()
        slope, gaps = float((gradient * direction).sum()), {}
        for step in STEPS:
            ends = []
            for end in (step, -step):
                with torch.no_grad():
                    parameter.copy_(start + end * direction)
                    ends.append(float(loss(built(sequence, pos))))
            numeric = (ends[0] - ends[1]) / (2 * step)
            gaps[abs(numeric - slope)] = numeric
        with torch.no_grad():
            parameter.copy_(start)
        gap, numeric = min(gaps.items())
        require(
            gap <= 1e-3 * max(abs(slope), abs(numeric)) + 1e-5,
            f"the derivative by {name} is {slope:.3g} by backward and {numeric:.3g} by finite "
            "differences: detach(), no_grad or .data cuts it, or a backward is wrong",
        )
    return f"derivatives by {len(named)} tensors are those of finite differences"


def reads_positions(section: Section, **sizes: Any) -> str:
    """``reads_positions`` is true if and only if other positions change something."""
    built, sequence = model(section, **sizes), tokens(2, TRAIN_LEN)
    # Of one shape: other kernels, which round otherwise, may take other shapes.
    places = sequential(TRAIN_LEN).expand(2, -1), scattered(2, TRAIN_LEN, reach(built.encodings))
    gap = largest(built(sequence, places[1]) - built(sequence, places[0]))
    if any(encoding.reads_positions for encoding in built.encodings):
        remedy = "use the positions passed in, or set reads_positions = False"
        require(gap > 1e-6, f"positions with gaps change states by {gap:.1g}: {remedy}")
        return f"positions with gaps change states by {gap:.2g}"
    require(gap == 0, f"reads_positions is False, but others change states by {gap:.1e}")
    raise NotClaimedError("reads_positions is False, and positions with gaps change nothing")


def shifted(section: Section, **sizes: Any) -> str:
    """``shift_invariant`` is true if and only if shifting all positions changes nothing."""
    built = model(section, **sizes).eval()
    sequence, shift = tokens(2, TRAIN_LEN), min(SHIFT, reach(built.encodings) - TRAIN_LEN)
    if shift < 1:
        raise NotClaimedError(f"its max_len has no room to shift {TRAIN_LEN} positions")
    places = (sequential(TRAIN_LEN, offset=shift), sequential(TRAIN_LEN))
    there, here = (built(sequence, pos) for pos in places)
    what = f"{shift} added to every position changes states"
    if all(encoding.shift_invariant for encoding in built.encodings):
        gap = agree(there, here, 1e-10, f"shift_invariant is True, but {what}")
        return f"{what} by {gap:.0e}"
    gap = largest(there - here)
    require(gap > 1e-3, f"shift_invariant is False, but {what} by {gap:.1e} only: set it to True")
    raise NotClaimedError(f"absolute: {what} by {gap:.2g}")


def rows_alone(section: Section, **sizes: Any) -> str:
    """A sequence's states depend neither on the others of its batch, nor on whether shared
    positions are passed once or for each sequence."""
    built = model(section, **sizes)
    sequence, pos = tokens(3, TRAIN_LEN), scattered(3, TRAIN_LEN, reach(built.encodings))
    alone = torch.cat([built(sequence[i : i + 1], pos[i : i + 1]) for i in range(3)])
    agree(built(sequence, pos), alone, 1e-12, "in a batch of three a sequence's states differ")
    once, each = built(sequence, pos[:1]), built(sequence, pos[:1].expand(3, -1))
    agree(once, each, 1e-12, "with (1, T) positions a sequence's states differ")
    return "three sequences at other positions, together as alone"


def cached(section: Section, **sizes: Any) -> str:
    """Decoding with a key cache equals the whole pass, beyond the trained length.

    Tokens come one at a time and several at once, at positions 0, 1, .. and at scattered ones.
    """
    built = model(section, **sizes).eval()
    limit = reach(built.encodings)
    n = min(2 * TRAIN_LEN, limit)
    if any(encoding.whole_sequence for encoding in built.encodings):
        try:
            built.empty_cache()
        except ValueError:
            raise NotClaimedError("it reads the whole sequence's length") from None
        raise ContractError("whole_sequence is set, but a key cache is not refused")
    pieces = (TRAIN_LEN - 1, 1, 1, 1, max(1, n - TRAIN_LEN - 4)) if n > TRAIN_LEN + 4 else (1, 1)
    places = sequential(n), scattered(3, n, limit)
    worst = max(cache_gap(built, tokens(3, n), pos, *pieces) for pos in places)
    return f"{n} tokens decoded one by one and in pieces differ by {worst:.0e}"


def fast_equals_plain(section: Section, **sizes: Any) -> str:
    """Kernels change neither values nor gradients, at any positions."""
    fast, plain = (model(section, fast=f, **sizes) for f in (True, False))
    places = [sequential(TRAIN_LEN), scattered(2, TRAIN_LEN, reach(fast.encodings))]
    return base.fast_equals_plain(fast, plain, tokens(2, TRAIN_LEN), places)


def round_trip(section: Section, **sizes: Any) -> str:
    """A model with another's ``state_dict`` computes the same."""
    built, other = model(section, seed=0, **sizes), model(section, seed=1, **sizes)
    return restored(built, other, tokens(2, TRAIN_LEN), sequential(TRAIN_LEN))


def choices(section: Section, **sizes: Any) -> dict[str, Section]:
    """The section as it is, and with each other choice of one key that is not a number.

    The names are those of the command line: ``""``, ``pairing=half``, ..
    """
    sections = {"": section}
    for key, value in section.items():
        if key == "_target_" or (isinstance(value, (int, float)) and not isinstance(value, bool)):
            continue
        for other in other_values(section, key):
            if accepted(changed := {**section, key: other}, dims(**sizes)):
                sections[f"{key}={as_word(other)}"] = changed
    return sections


def every_key(section: Section, **sizes: Any) -> str:
    """Every key changes what is computed, or the number of parameters."""
    same = partial(computes_the_same, **sizes)
    return try_keys(section, lambda key: changing_values(section, key, same))


def computes_the_same(one: Section, other: Section, **sizes: Any) -> bool | None:
    """Whether two sections have as many parameters and equal states, in training and evaluation.
    None: one of them is refused."""
    if not all(accepted(section, dims(**sizes)) for section in (one, other)):
        return None
    pair = [model(section, **sizes) for section in (one, other)]
    if count_parameters(pair[0]) != count_parameters(pair[1]):
        return False
    # Two lengths: at max_len alone, a share of it is a share of the sequence's length.
    longest = min(reach(built.encodings) for built in pair)
    for n, training in product((longest, min(TRAIN_LEN, longest)), (True, False)):
        states = [built.train(training)(tokens(2, n), sequential(n)) for built in pair]
        if largest(states[0] - states[1]) > 1e-9:
            return False
    return True


OF_EACH_CHOICE = {
    "no look at the future": no_look_ahead,
    "finite": finite,
    "float32 and bfloat16": low_precision,
    "gradient to every parameter": gradients_reach,
    "gradient by differences": derivative,
    "reads positions": reads_positions,
    "shift invariance": shifted,
    "each sequence by itself": rows_alone,
    "cached equals uncached": cached,
    "fast equals plain": fast_equals_plain,
    "state_dict round trip": round_trip,
}
"""Checks that run with the keys as they are and with each other choice."""
