"""The contract of an encoding: one function for each point. A key cache and the kernels equal the
plain pass.

Each takes the encoding's section and the sizes of the tiny model that differ (``d_model``,
``n_heads``, ..), and is called in the context ``base.exact``.
"""

import inspect
from typing import Any

import torch
from hydra.utils import get_object
from torch import Tensor, nn

from pe_lab.check import base
from pe_lab.check.base import (
    MAX_LEN,
    NONE,
    TRAIN_LEN,
    ContractError,
    NotClaimedError,
    Section,
    accepted,
    agree,
    beside,
    change_after,
    differ,
    dims,
    hold,
    in_pieces,
    largest,
    loss,
    model,
    other_values,
    parameters,
    reach,
    restored,
    scattered,
    sequential,
    shown,
    tokens,
    tried,
)
from pe_lab.check.hooks import LONG, half_precision
from pe_lab.models.transformer import Transformer
from pe_lab.train.encodings import build_encodings

SHIFT = 7


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
        hold(
            hidden.shape == expected and hidden.dtype == kind,
            f"hidden states are {tuple(hidden.shape)} {hidden.dtype}, not {expected} {kind}: keep "
            "the shape and the type of the input",
        )
        for t in (0, 1, length // 2, length - 2) if length == TRAIN_LEN else (length // 2,):
            again = built(change_after(seen, t), pos)
            worst = max(worst, largest(again[:, : t + 1] - hidden[:, : t + 1]))
            hold(
                worst <= atol,
                f"in a sequence of {length} tokens the states of tokens 0 to {t} change by "
                f"{worst:.1e} where only tokens after {t} were changed: the mask comes after bias "
                "and logits, but gates, sums and convolutions must not read later keys",
            )
            hold(
                not torch.equal(again[:, t + 1 :], hidden[:, t + 1 :]),
                f"no state after token {t} changes where the tokens after {t} do",
            )
    return f"where later tokens of {length} are changed, states differ by {worst:.1g}"


def finite_far_out(section: Section, **sizes: Any) -> str:
    """States are finite at four times the trained length, and at scattered positions."""
    built = model(section, **sizes)
    n = reach(built.encodings)
    for what, pos in (("0, 1, ..", sequential(n)), ("scattered", scattered(3, min(n, 12), n))):
        hidden = built(tokens(3, pos.shape[1]), pos)
        if not hidden.isfinite().all():
            at = int((~hidden.isfinite()).any(-1).any(0).nonzero()[0])
            raise ContractError(f"not finite at token {at} of {pos.shape[1]}, positions {what}")
    limited = "" if n == MAX_LEN else ", as many as its max_len allows"
    return f"trained for {TRAIN_LEN} tokens, finite at {n} positions{limited}"


def low_precision(section: Section, **sizes: Any) -> str:
    """float32 and bfloat16 autocast are near to float64, and gradients are finite."""
    built, seen, pos = model(section, **sizes), tokens(2, TRAIN_LEN), sequential(TRAIN_LEN)
    exact = built(seen, pos).detach()
    single = model(section, **sizes).float()
    hidden = single(seen, pos)
    hold(
        hidden.dtype == torch.float32,
        f"a float32 model computes in {hidden.dtype}: follow the input's type",
    )
    what = "compute in float64 what differs: float32 is off"
    gap = agree(hidden.double(), exact.double(), 1e-4, 1e-4, what)
    with torch.autocast("cpu", torch.bfloat16):
        half = single(seen, pos)
        torch.autograd.backward(loss(half))
    hold(half.isfinite().all(), "not finite in bfloat16 autocast")
    for name, parameter in encoding_parameters(single).items():
        if parameter.grad is None or not parameter.grad.isfinite().all():
            raise ContractError(f"in bfloat16 the gradient of {name} is missing or not finite")
    return f"float32 differs from float64 by {gap:.0e}, {half_precision(section, **sizes)}"


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
        hold(gradient > 1e-8, f"{name} has no gradient ({gradient:.1g}): it trains nothing")
        _check_heads(name, parameter, dims(**sizes).n_heads)
        least = min(least, gradient)
    return f"all {len(named)} tensors of parameters, the smallest gradient {least:.1g}"


def _check_heads(name: str, parameter: nn.Parameter, heads: int) -> None:
    """ContractError if a head's part of a parameter has no gradient."""
    assert parameter.grad is not None
    for axis in range(parameter.dim()):
        if parameter.shape[axis] != heads:
            continue
        of_each = parameter.grad.abs().movedim(axis, 0).reshape(heads, -1).amax(1)
        for head in (~(of_each > 1e-8)).nonzero().flatten().tolist():
            raise ContractError(
                f"{name} has no gradient at {head} of axis {axis}, which has one entry a head: "
                "each head must read its own"
            )


def differs_from_none(section: Section, **sizes: Any) -> str:
    """The states differ from those without an encoding."""
    if not any(e.hooks() for e in build_encodings(section, dims(**sizes))):
        raise NotClaimedError("it overrides no hook")
    seen, pos = tokens(2, TRAIN_LEN), sequential(TRAIN_LEN)
    gap = largest(model(section, **sizes)(seen, pos) - model(NONE, **sizes)(seen, pos))
    hold(gap > 1e-3, f"it differs from pe=none by {gap:.1g} only")
    return f"it differs from pe=none by {gap:.2g}"


def shifted(section: Section, **sizes: Any) -> str:
    """``shift_invariant`` is true if and only if shifting all positions changes nothing."""
    built = model(section, **sizes).eval()
    seen = tokens(2, TRAIN_LEN)
    here = built(seen, sequential(TRAIN_LEN))
    shift = min(SHIFT, reach(built.encodings) - TRAIN_LEN)
    if shift < 1:
        raise NotClaimedError(f"its max_len has no room to shift {TRAIN_LEN} positions")
    there = built(seen, sequential(TRAIN_LEN, offset=shift))
    gap = largest(there - here)
    if all(encoding.shift_invariant for encoding in built.encodings):
        agree(
            there,
            here,
            1e-10,
            1e-10,
            f"shift_invariant is True (correct the formula, or set it to False), but {shift} added "
            "to every position changes states",
        )
        return f"{shift} added to every position changes states by {gap:.0e}"
    hold(
        gap > 1e-3,
        f"shift_invariant is False, but {shift} added to every position changes states by "
        f"{gap:.1e} only: set it to True",
    )
    raise NotClaimedError(f"absolute: {shift} added to every position changes states by {gap:.2g}")


def reads_positions(section: Section, **sizes: Any) -> str:
    """``reads_positions`` is true if and only if other positions change something."""
    built, seen = model(section, **sizes), tokens(2, TRAIN_LEN)
    # Of one shape: other kernels, which round otherwise, may take other shapes.
    places = sequential(TRAIN_LEN).expand(2, -1), scattered(2, TRAIN_LEN, reach(built.encodings))
    here, there = (built(seen, pos) for pos in places)
    gap = largest(there - here)
    if any(encoding.reads_positions for encoding in built.encodings):
        hold(
            gap > 1e-6,
            f"positions with gaps change states by {gap:.1g}: use the positions passed in, or "
            "set reads_positions = False",
        )
        return f"positions with gaps change states by {gap:.2g}"
    hold(gap == 0, f"reads_positions is False, but others change states by {gap:.1e}")
    raise NotClaimedError("reads_positions is False, and positions with gaps change nothing")


def rows_alone(section: Section, **sizes: Any) -> str:
    """A sequence's states depend neither on the others of its batch, nor on whether shared
    positions are passed once or for each sequence."""
    built = model(section, **sizes)
    seen, pos = tokens(3, TRAIN_LEN), scattered(3, TRAIN_LEN, reach(built.encodings))
    alone = torch.cat([built(seen[i : i + 1], pos[i : i + 1]) for i in range(3)])
    pairs = (
        ("in a batch of three", built(seen, pos), alone),
        ("with (1, T) positions", built(seen, pos[:1]), built(seen, pos[:1].expand(3, -1))),
    )
    for what, one, other in pairs:
        agree(one, other, 1e-12, 1e-12, f"{what} a sequence's states differ")
    return "three sequences at other positions, together as alone"


def small_sizes(section: Section, **sizes: Any) -> str:
    """It works with one token, odd lengths and one head."""
    width = dims(**sizes).d_model
    for batch, length, heads in ((1, 1, None), (1, 7, None), (3, 13, 1)):
        size = sizes if heads is None else {**sizes, "n_heads": heads}
        if heads is not None and not accepted(section, dims(**size)):
            continue  # A key that names more heads is refused.
        hidden = model(section, **size)(tokens(batch, length), sequential(length))
        hold(
            hidden.shape == (batch, length, width) and bool(hidden.isfinite().all()),
            f"{batch} sequences of {length} tokens with {dims(**size).n_heads} heads give "
            f"{tuple(hidden.shape)}, finite: {bool(hidden.isfinite().all())}",
        )
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
    return tried(section, lambda key: key_changes(section, key, **sizes))


def key_changes(section: Section, key: str, **sizes: Any) -> list[str]:
    """The other values of a key that are accepted; each changes something.

    Raises:
        ContractError: one changes nothing.
    """
    for base_section in beside(section, key, **sizes):
        # Beside another choice only where it is refused without one.
        values = {shown(v): {**base_section, key: v} for v in other_values(base_section, key)}
        allowed = {k: v for k, v in values.items() if accepted(v, dims(**sizes))}
        if allowed:
            break
    else:
        return []
    base = model(base_section, **sizes)
    for value, changed in allowed.items():
        other = model(changed, **sizes)
        # Two lengths: at max_len alone, a share of it is a share of the sequence's length.
        longest = min(reach(built.encodings) for built in (base, other))
        read = [(tokens(2, n), sequential(n)) for n in (longest, min(TRAIN_LEN, longest))]
        # There is no dropout: what differs in training or in evaluation is the key's doing.
        hold(
            parameters(other) != parameters(base)
            or any(
                largest(other.train(training)(*r) - base.train(training)(*r)) > 1e-9
                for training in (True, False)
                for r in read
            ),
            f"{key}={value} computes the same as {key}={shown(section[key])}",
        )
    return list(allowed)


def cached(section: Section, **sizes: Any) -> str:
    """Decoding with a key cache equals the whole pass, beyond the trained length.

    Tokens come one at a time and several at once, at positions 0, 1, .. and at scattered ones.
    """
    built = model(section, **sizes).eval()
    limit = reach(built.encodings)
    n = min(2 * TRAIN_LEN, limit)
    worst = 0.0
    for encoding in built.encodings:
        if encoding.whole_sequence:
            check_refused(built)
            raise NotClaimedError("it reads the whole sequence's length")
    pieces = (TRAIN_LEN - 1, 1, 1, 1, max(1, n - TRAIN_LEN - 4)) if n > TRAIN_LEN + 4 else (1, 1)
    for what, pos in (("0, 1, ..", sequential(n)), ("with gaps", scattered(3, n, limit))):
        worst = max(worst, cache_gap(built, tokens(3, n), pos, *pieces, what=f"positions {what}"))
    return f"{n} tokens decoded one by one and in pieces differ by {worst:.0e}"


def cache_gap(built: Any, seen: Tensor, pos: Tensor, *pieces: int, what: str = "") -> float:
    """The largest difference between decoding in these pieces and the whole pass.

    Raises:
        ContractError: it is more than rounding.
    """
    with torch.inference_mode():
        steps, whole = in_pieces(built, seen, pos, *pieces), built(seen, pos)
    if (gap := differ(steps, whole, rtol=1e-10, atol=1e-10)) is not None:
        wrong = ~torch.isclose(steps, whole, rtol=1e-10, atol=1e-10)
        at = int(wrong.any(-1).any(0).nonzero()[0])
        raise ContractError(
            f"decoding with a key cache differs by {gap:.1e} from token {at} on, {what}: read "
            "pos_q and pos_k as passed (queries are the last of the keys), count no rows"
        )
    return largest(steps - whole)


def any_order(section: Section, **sizes: Any) -> str:
    """Without distances, positions may fall and repeat: states are finite, do not depend on later
    positions, and are the same with a key cache."""
    built = model(section, **sizes).eval()
    reading = [encoding for encoding in built.encodings if encoding.reads_positions]
    if not reading or not all(encoding.any_order for encoding in reading):
        raise NotClaimedError("it reads distances: positions of later tokens are not smaller")
    seen, limit = tokens(3, TRAIN_LEN), reach(built.encodings)
    drawn = torch.randint(0, limit, (3, TRAIN_LEN), generator=torch.Generator().manual_seed(5))
    hidden = built(seen, drawn)
    hold(hidden.isfinite().all(), "positions that fall make states not finite")
    # The positions of later tokens are other ones, too.
    later = drawn.clone()
    later[:, TRAIN_LEN // 2 :] = limit - 1 - later[:, TRAIN_LEN // 2 :]
    gap = largest((built(seen, later) - hidden)[:, : TRAIN_LEN // 2])
    hold(gap <= 1e-12, f"positions of later tokens change earlier states by {gap:.1e}")
    worst = cache_gap(built, seen, drawn, 3, what="positions that fall and repeat")
    return f"positions that fall and repeat: decoded one by one, states differ by {worst:.0e}"


def between_whole(section: Section, **sizes: Any) -> str:
    """With ``reads_positions = float``, positions may lie between whole numbers: states are finite,
    differ from those at the whole numbers below, and are the same with a key cache and with the
    kernels."""
    built = model(section, **sizes).eval()
    reading = [encoding for encoding in built.encodings if encoding.reads_positions]
    if not reading or any(e.reads_positions is int for e in reading):
        raise NotClaimedError("reads_positions is int: positions are whole numbers")
    seen, stream = tokens(3, TRAIN_LEN), torch.Generator().manual_seed(5)
    drawn = torch.rand(3, TRAIN_LEN, generator=stream, dtype=torch.float32).sort(-1).values
    drawn = drawn * (reach(built.encodings) - 1)
    hidden = built(seen, drawn)
    hold(hidden.isfinite().all(), "fractions make states not finite")
    gap = largest(built(seen, drawn.floor().long()) - hidden)
    hold(gap > 1e-6, f"rounding positions down changes states by {gap:.1g}")
    if not any(encoding.whole_sequence for encoding in built.encodings):
        cache_gap(built, seen, drawn, 3, what="positions between whole numbers")
    fast = model(section, fast=True, **sizes).eval()(seen, drawn)
    agree(fast, hidden, 1e-12, 1e-12, "the kernels change states between whole positions")
    return f"rounding positions down changes states by {gap:.2g}"


def check_refused(built: Transformer) -> None:
    """ContractError if a key cache is not refused."""
    try:
        built.empty_cache()
    except ValueError:
        return
    raise ContractError("whole_sequence is set, but a key cache is not refused")


def fast_equals_plain(section: Section, **sizes: Any) -> str:
    """With the kernels as without, in value and gradient, at any positions."""
    fast, plain = (model(section, fast=f, **sizes) for f in (True, False))
    places = [sequential(TRAIN_LEN), scattered(2, TRAIN_LEN, reach(fast.encodings))]
    return base.fast_equals_plain(fast, plain, tokens(2, TRAIN_LEN), places)
