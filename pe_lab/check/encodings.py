"""The contract of an encoding: one function for each point. A key cache and the kernels equal the
plain pass.

Each takes the encoding's section and the sizes of the tiny model that differ (``d_model``,
``n_heads``, ..), and is called in the context ``base.exact``.
"""

import inspect
from itertools import product
from typing import Any

import torch
from hydra.utils import get_object
from torch import Tensor, nn

from pe_lab.check import base
from pe_lab.check.base import (
    NONE,
    TRAIN_LEN,
    ContractError,
    NotClaimedError,
    Section,
    accepted,
    agree,
    beside,
    change_after,
    dims,
    in_pieces,
    largest,
    loss,
    model,
    other_values,
    parameters,
    reach,
    require,
    restored,
    scattered,
    sequential,
    shown,
    tokens,
    tried_values,
)
from pe_lab.models.transformer import Transformer
from pe_lab.train.encodings import build_encodings

SHIFT, LONG, STEP = 7, 130, 1e-6
"""What is added to positions, a length at which kernels need several blocks, and the step of finite
differences."""


def encoding_parameters(built: Transformer) -> dict[str, nn.Parameter]:
    return {name: p for name, p in built.named_parameters() if ".encoding." in name}


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
        seen, pos = tokens(2, length), sequential(length)
        hidden = built(seen, pos)
        expected, kind = (2, length, dims(**sizes).d_model), torch.get_default_dtype()
        require(
            hidden.shape == expected and hidden.dtype == kind,
            f"hidden states are {tuple(hidden.shape)} {hidden.dtype}, not {expected} {kind}: keep "
            "the shape and the type of the input",
        )
        for t in (0, 1, length // 2, length - 2) if length == TRAIN_LEN else (length // 2,):
            again = built(change_after(seen, t), pos)
            worst = max(worst, largest(again[:, : t + 1] - hidden[:, : t + 1]))
            require(
                worst <= atol,
                f"in a sequence of {length} tokens the states of tokens 0 to {t} change by "
                f"{worst:.1e} where only tokens after {t} were changed: the mask comes after bias "
                "and logits, but gates, sums and convolutions must not read later keys",
            )
            require(
                not torch.equal(again[:, t + 1 :], hidden[:, t + 1 :]),
                f"no state after token {t} changes where the tokens after {t} do",
            )
    return f"where later tokens of {length} are changed, states differ by {worst:.1g}"


def same_twice(section: Section, **sizes: Any) -> str:
    """Two passes with one input are equal in training: an encoding draws no random numbers."""
    built, seen, pos = model(section, **sizes).train(), tokens(2, TRAIN_LEN), sequential(TRAIN_LEN)
    gap = largest(built(seen, pos) - built(seen, pos))
    require(gap == 0, f"two passes with one input differ by {gap:.1e}: an encoding draws nothing "
            "itself, model.dropout drops attention weights")  # fmt: skip
    return "two passes in training are equal"


def bias_fits(section: Section, **sizes: Any) -> str:
    """``bias`` expands to (B, H, T, S) and is finite; one marked ``by_distance`` is."""
    built = model(section, **sizes)
    biased = [e for e in dict.fromkeys(built.encodings) if "bias" in e.hooks()]
    if not biased:
        raise NotClaimedError("it has no bias")
    for encoding in biased:
        limit, heads = reach([encoding]), dims(**sizes).n_heads
        for pos in (sequential(limit), scattered(2, min(TRAIN_LEN, limit), limit)):
            bias, n = encoding.bias(pos, pos), pos.shape[1]
            assert bias is not None
            bias = bias.expand(len(pos), heads, n, n)
            require(bias.isfinite().all(), "bias is not finite: use a large negative number")
            distance = pos[:, :, None] - pos[:, None]
            for at in distance.unique() if encoding.bias_by_distance else ():
                values = bias.movedim(1, -1)[distance == at]
                what = "bias is marked by_distance, but at one distance differs"
                agree(values, values[:1].expand_as(values), 1e-6, what)
    return "bias finite, of the right shape"


def finite_far_out(section: Section, **sizes: Any) -> str:
    """States are finite at four times the trained length, and at scattered positions."""
    built = model(section, **sizes)
    n = reach(built.encodings)
    for what, pos in (("0, 1, ..", sequential(n)), ("scattered", scattered(3, min(n, 12), n))):
        hidden = built(tokens(3, pos.shape[1]), pos)
        require(hidden.isfinite().all(), f"not finite at positions {what}, {n} of them")
    return f"trained for {TRAIN_LEN} tokens, finite at {n} positions"


def low_precision(section: Section, **sizes: Any) -> str:
    """float32 and bfloat16 autocast are near to float64, and gradients are finite."""
    built, seen, pos = model(section, **sizes), tokens(2, TRAIN_LEN), sequential(TRAIN_LEN)
    exact, single = built(seen, pos).detach(), model(section, **sizes).float()
    hidden = single(seen, pos)
    require(hidden.dtype == torch.float32, f"a float32 model computes in {hidden.dtype}")
    what = "compute in float64 what differs: float32 is off"
    gap = agree(hidden.double(), exact.double(), 1e-4, what)
    with torch.autocast("cpu", torch.bfloat16):
        half = single(seen, pos)
        torch.autograd.backward(loss(half))
    require(half.isfinite().all(), "not finite in bfloat16 autocast")
    for name, parameter in encoding_parameters(single).items():
        finite = parameter.grad is not None and bool(parameter.grad.isfinite().all())
        require(finite, f"in bfloat16 the gradient of {name} is missing or not finite")
    return f"float32 differs from float64 by {gap:.0e}; bfloat16 and its gradients are finite"


def derivative(section: Section, **sizes: Any) -> str:
    """The gradient by each parameter equals finite differences along one direction."""
    built, draw = model(section, fast=False, **sizes).train(), torch.Generator().manual_seed(5)
    named = encoding_parameters(built) | {"the tokens": built.tokens.weight}
    named |= {"queries and keys": built.blocks[0].attention.qkv.weight}

    def value() -> Tensor:
        return loss(built(tokens(2, TRAIN_LEN), sequential(TRAIN_LEN)))

    slopes = torch.autograd.grad(value(), list(named.values()), materialize_grads=True)
    for (name, parameter), gradient in zip(named.items(), slopes, strict=True):
        direction = STEP * torch.randn(parameter.shape, generator=draw)
        slope = float((gradient * direction).sum())
        with torch.no_grad():
            parameter.add_(direction)
            ahead = float(value())
            parameter.sub_(2 * direction)
            rise = (ahead - float(value())) / 2
            parameter.add_(direction)
        close = abs(rise - slope) <= 1e-2 * max(abs(slope), abs(rise)) + 1e-9
        what = f"the derivative by {name} is {slope:.3g} by backward, {rise:.3g} by differences"
        require(close, f"{what}: detach() or .data cuts it, or a backward is wrong")
    return f"derivatives by {len(named)} tensors are those of finite differences"


def gradients_reach(section: Section, **sizes: Any) -> str:
    """Every parameter has a gradient at four times the trained length."""
    built = model(section, **sizes)
    named = encoding_parameters(built)
    if not named:
        raise NotClaimedError("it has no parameters")
    n = reach(built.encodings)
    torch.autograd.backward(loss(built(tokens(3, n), sequential(n))))
    least = float("inf")
    for name, parameter in named.items():
        gradient = 0.0 if parameter.grad is None else largest(parameter.grad)
        require(gradient > 1e-8, f"{name} has no gradient ({gradient:.1g}): it trains nothing")
        heads = dims(**sizes).n_heads
        for axis in (a for a, n in enumerate(parameter.shape) if n == heads):
            of_each = (
                parameter.grad.abs().movedim(axis, 0).reshape(parameter.shape[axis], -1).amax(1)
            )
            require(of_each.min() > 1e-8, f"{name} has no gradient at one of its heads")
        least = min(least, gradient)
    return f"all {len(named)} tensors of parameters, the smallest gradient {least:.1g}"


def differs_from_none(section: Section, **sizes: Any) -> str:
    """The states differ from those without an encoding."""
    if not any(e.hooks() for e in build_encodings(section, dims(**sizes))):
        raise NotClaimedError("it overrides no hook")
    seen, pos = tokens(2, TRAIN_LEN), sequential(TRAIN_LEN)
    gap = largest(model(section, **sizes)(seen, pos) - model(NONE, **sizes)(seen, pos))
    require(gap > 1e-3, f"it differs from pe=none by {gap:.1g} only")
    return f"it differs from pe=none by {gap:.2g}"


def shifted(section: Section, **sizes: Any) -> str:
    """``shift_invariant`` is true if and only if shifting all positions changes nothing."""
    built, seen = model(section, **sizes).eval(), tokens(2, TRAIN_LEN)
    shift = min(SHIFT, reach(built.encodings) - TRAIN_LEN)
    if shift < 1:
        raise NotClaimedError(f"its max_len has no room to shift {TRAIN_LEN} positions")
    here, there = (built(seen, sequential(TRAIN_LEN, offset=by)) for by in (0, shift))
    if all(encoding.shift_invariant for encoding in built.encodings):
        gap = agree(there, here, 1e-10, f"shift_invariant is True, but {shift} added to every "
                    "position changes states")  # fmt: skip
        return f"{shift} added to every position changes states by {gap:.0e}"
    gap = largest(there - here)
    what = f"{shift} added to every position changes states by {gap:.1e}"
    require(gap > 1e-3, f"shift_invariant is False, but {what} only: set it to True")
    raise NotClaimedError(f"absolute: {what}")


def reads_positions(section: Section, **sizes: Any) -> str:
    """``reads_positions`` is true if and only if other positions change something."""
    built, seen = model(section, **sizes), tokens(2, TRAIN_LEN)
    # Of one shape: other kernels, which round otherwise, may take other shapes.
    places = sequential(TRAIN_LEN).expand(2, -1), scattered(2, TRAIN_LEN, reach(built.encodings))
    here, there = (built(seen, pos) for pos in places)
    what = f"positions with gaps change states by {largest(there - here):.1g}"
    if any(encoding.reads_positions for encoding in built.encodings):
        require(largest(there - here) > 1e-6, f"{what}: use them, or set reads_positions = False")
        return what
    require(torch.equal(there, here), f"reads_positions is False, but {what}")
    raise NotClaimedError("reads_positions is False, and positions with gaps change nothing")


def rows_alone(section: Section, **sizes: Any) -> str:
    """A sequence's states depend neither on the others of its batch, nor on whether shared
    positions are passed once or for each sequence."""
    built = model(section, **sizes)
    seen, pos = tokens(3, TRAIN_LEN), scattered(3, TRAIN_LEN, reach(built.encodings))
    alone = torch.cat([built(seen[i : i + 1], pos[i : i + 1]) for i in range(3)])
    agree(built(seen, pos), alone, 1e-12, "in a batch of three a sequence's states differ")
    once, each = built(seen, pos[:1]), built(seen, pos[:1].expand(3, -1))
    agree(once, each, 1e-12, "with (1, T) positions a sequence's states differ")
    return "three sequences at other positions, together as alone"


def small_sizes(section: Section, **sizes: Any) -> str:
    """It works with one token, odd lengths and one head."""
    width = dims(**sizes).d_model
    for batch, length, heads in ((1, 1, {}), (1, 7, {}), (3, 13, {"n_heads": 1})):
        size = {**sizes, **heads}
        if heads and not accepted(section, dims(**size)):
            continue  # A key that names more heads is refused.
        hidden = model(section, **size)(tokens(batch, length), sequential(length))
        fits = hidden.shape == (batch, length, width) and bool(hidden.isfinite().all())
        require(fits, f"{batch} sequences of {length} tokens give {tuple(hidden.shape)}, or "
                "states that are not finite")  # fmt: skip
    return "1, 7 and 13 tokens, 1 and more heads"


def round_trip(section: Section, **sizes: Any) -> str:
    """A model with another's ``state_dict`` computes the same."""
    built, other = model(section, seed=0, **sizes), model(section, seed=1, **sizes)
    return restored(built, other, tokens(2, TRAIN_LEN), sequential(TRAIN_LEN))


def same_keys(section: Section) -> str:
    """The yaml sets each key that the class takes, and no other."""
    arguments = list(inspect.signature(get_object(section["_target_"])).parameters)[1:]
    keys = [key for key in section if key != "_target_"]
    if unset := [key for key in arguments if key not in keys]:
        raise ContractError(f"the yaml does not set {', '.join(unset)}, so no run records them")
    if unknown := [key for key in keys if key not in arguments]:
        raise ContractError(f"the class takes no {', '.join(unknown)}")
    return f"both have {', '.join(keys)}" if keys else "it has no keys"


def every_key(section: Section, **sizes: Any) -> str:
    """Every key changes what is computed, or the number of parameters."""
    return tried_values(section, lambda key: key_changes(section, key, **sizes))


def key_changes(section: Section, key: str, **sizes: Any) -> list[str]:
    """The other values of a key that are accepted; each changes something, perhaps beside another
    choice of one other key.

    Raises:
        ContractError: one changes nothing.
    """
    idle = ""
    for base_section in beside(section, key, **sizes):
        values = {shown(v): {**base_section, key: v} for v in other_values(base_section, key)}
        allowed = {k: v for k, v in values.items() if accepted(v, dims(**sizes))}
        same = [k for k, v in allowed.items() if not _differs(base_section, v, **sizes)]
        if allowed and not same:
            return list(allowed)
        idle = idle or ", ".join(same)
    require(not idle, f"{key}={idle} computes the same as {key}={shown(section[key])}")
    return []


def _differs(one: Section, other: Section, **sizes: Any) -> bool:
    """Whether two choices compute different states, or have other numbers of parameters."""
    models = [model(section, **sizes) for section in (one, other)]
    # Two lengths: at max_len alone, a share of it is a share of the sequence's length.
    longest = min(reach(built.encodings) for built in models)
    for n, training in product((longest, min(TRAIN_LEN, longest)), (True, False)):
        states = [built.train(training)(tokens(2, n), sequential(n)) for built in models]
        if largest(states[0] - states[1]) > 1e-9:
            return True
    return parameters(models[0]) != parameters(models[1])


def cached(section: Section, **sizes: Any) -> str:
    """Decoding with a key cache equals the whole pass, beyond the trained length.

    Tokens come one at a time and several at once, at positions 0, 1, .. and at scattered ones.
    """
    built = model(section, **sizes).eval()
    limit = reach(built.encodings)
    n = min(2 * TRAIN_LEN, limit)
    if any(encoding.whole_sequence for encoding in built.encodings):
        raise NotClaimedError("it reads the whole sequence's length")
    pieces = (TRAIN_LEN - 1, 1, 1, 1, max(1, n - TRAIN_LEN - 4)) if n > TRAIN_LEN + 4 else (1, 1)
    gaps = [cache_gap(built, tokens(3, n), pos, *pieces)
            for pos in (sequential(n), scattered(3, n, limit))]  # fmt: skip
    return f"{n} tokens decoded one by one and in pieces differ by {max(gaps):.0e}"


def cache_gap(built: Any, seen: Tensor, pos: Tensor, *pieces: int) -> float:
    """The largest difference between decoding in these pieces and the whole pass.

    Raises:
        ContractError: it is more than rounding.
    """
    with torch.inference_mode():
        steps, whole = in_pieces(built, seen, pos, *pieces), built(seen, pos)
    return agree(steps, whole, 1e-10, "decoding with a key cache differs (read pos_q and pos_k as "
                 "passed: queries are the last of the keys)")  # fmt: skip


def any_order(section: Section, **sizes: Any) -> str:
    """Without distances, positions may fall and repeat: states are finite, do not depend on later
    positions, and are the same with a key cache."""
    built = model(section, **sizes).eval()
    reading = [encoding for encoding in built.encodings if encoding.reads_positions]
    if not reading or not all(encoding.any_order for encoding in reading):
        raise NotClaimedError("it reads distances: positions of later tokens are not smaller")
    seen, limit, half = tokens(3, TRAIN_LEN), reach(built.encodings), TRAIN_LEN // 2
    pos = torch.randint(0, limit, (3, TRAIN_LEN), generator=torch.Generator().manual_seed(5))
    later = torch.cat((pos[:, :half], limit - 1 - pos[:, half:]), 1)
    hidden = built(seen, pos)
    require(hidden.isfinite().all(), "positions that fall make states not finite")
    what = "positions of later tokens change earlier states"
    agree(built(seen, later)[:, :half], hidden[:, :half], 1e-12, what)
    gap = cache_gap(built, seen, pos, 3)
    return f"positions that fall and repeat: decoded one by one, states differ by {gap:.0e}"


def between_whole(section: Section, **sizes: Any) -> str:
    """With ``reads_positions = float``, positions may lie between whole numbers: states are finite,
    differ from those at the whole numbers below, and are the same with the kernels."""
    built = model(section, fast=False, **sizes).eval()
    reading = [encoding for encoding in built.encodings if encoding.reads_positions]
    if not reading or any(e.reads_positions is int for e in reading):
        raise NotClaimedError("reads_positions is int: positions are whole numbers")
    seen, stream = tokens(3, TRAIN_LEN), torch.Generator().manual_seed(5)
    pos = torch.rand(3, TRAIN_LEN, generator=stream, dtype=torch.float32).sort(-1).values
    pos = pos * (reach(built.encodings) - 1)
    hidden = built(seen, pos)
    require(hidden.isfinite().all(), "fractions make states not finite")
    gap = largest(built(seen, pos.floor().long()) - hidden)
    require(gap > 1e-6, f"rounding positions down changes states by {gap:.1g}")
    fast = model(section, **sizes).eval()(seen, pos)
    agree(fast, hidden, 1e-12, "the kernels change states between whole positions")
    return f"rounding positions down changes states by {gap:.2g}"


def fast_equals_plain(section: Section, **sizes: Any) -> str:
    """With the kernels as without, in value and gradient, at any positions."""
    fast, plain = (model(section, fast=f, **sizes) for f in (True, False))
    places = [sequential(TRAIN_LEN), scattered(2, TRAIN_LEN, reach(fast.encodings))]
    return base.fast_equals_plain(fast, plain, tokens(2, TRAIN_LEN), places)
