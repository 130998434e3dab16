"""The contract of an encoding, in a small transformer, and of a model: one function for each point.

Each takes what builds the network (``make(seed=1)``, ``make(fast=False)``, ``make(n_heads=1)``),
and is called in the context ``base.exact``.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import torch
from hydra.utils import get_object
from torch import Tensor, nn

from pe_lab.check.base import (
    EVERY_KEY,
    HEADS,
    MAX_LEN,
    PLACE,
    TRAIN_LEN,
    VOCAB,
    NotClaimedError,
    Outcome,
    Section,
    agree,
    build_model,
    build_transformer,
    cache_gap,
    change_after,
    choices,
    exact,
    gradients,
    largest,
    loss,
    model_config,
    other_values,
    outcome,
    reach,
    require,
    scattered,
    sequential,
    tokens,
    try_keys,
)
from pe_lab.core.errors import UsageError
from pe_lab.models.base import Model
from pe_lab.tasks.flipflop import FlipFlop

SHIFT = 7
LONG = 130
"""At this length sums are long and kernels need several blocks."""
STEPS = (1e-4, 1e-6)
"""Steps of finite differences: a large one for float32 code, then a small one near kinks."""
FLIPFLOP = FlipFlop(length=16, p_ignore=0.5, loss_on="scored", train_sequences=None, splits={})
Make = Callable[..., Model]


def same_keys(section: Section) -> str:
    """The yaml sets each key that the class takes, and no other."""
    arguments = list(inspect.signature(get_object(section["_target_"])).parameters)[1:]
    keys = [key for key in section if key != "_target_"]
    differ = ", ".join(sorted({*arguments} ^ {*keys}))
    require(not differ, f"only the yaml or only the class has {differ}, so no run records them")
    return f"both have {', '.join(keys)}" if keys else "it has no keys"


def compute_states(built: Model, n: int = TRAIN_LEN, seed: int = 5) -> Tensor:
    """The states of n tokens, with dropout by this seed."""
    torch.manual_seed(seed)
    return built(tokens(2, n), sequential(n))


def no_look_ahead(make: Make, first: int = 0, tolerance: float = 1e-12) -> str:
    """A token's state depends on no later token, and on each earlier one. ``LONG`` tokens pass the
    end of a kernel's block.

    Args:
        first: the first token that must not depend on later ones.
    """
    try:
        long = make(max_len=LONG)
    except UsageError:  # a window longer than the trained length
        long = make(train_len=LONG, max_len=LONG)
    worst = 0.0
    for built, length in ((make(), TRAIN_LEN), (long, LONG)):
        n = min(length, reach(built.encodings, LONG))
        sequence, pos = tokens(2, n), sequential(n)
        hidden = built(sequence, pos)
        logits = tuple(built.unembed(hidden).shape)
        require(logits == (2, n, VOCAB), f"logits are {logits}, not {(2, n, VOCAB)}")
        for t in range(first, n - 1) if length == TRAIN_LEN else (n // 2,):
            changes = (built(change_after(sequence, t), pos) - hidden).abs().amax(-1)
            worst = max(worst, largest(changes[:, : t + 1]))
            require(
                worst <= tolerance,
                f"states of tokens 0 to {t} change by {worst:.1e} where only tokens after {t} were "
                "changed: the mask comes after bias and logits, but gates, sums and convolutions "
                "must not read later keys",
            )
            require(
                changes[:, t + 1 :].min() > 1e-6,
                f"a token after {t} is changed, and its state is not",
            )
    return f"where later tokens of {n} are changed, states differ by {worst:.1g}"


def finite(make: Make) -> str:
    """States have the input's shape and type and are finite, for one token, odd lengths, one head,
    at four times the trained length and at scattered positions."""
    built = make()
    n = reach(built.encodings)
    places = [sequential(1), sequential(7), sequential(n), scattered(3, min(n, 12), n)]
    cases = [(built, pos) for pos in places]
    with suppress(UsageError):
        cases.append((make(n_heads=1), sequential()))
    for each, pos in cases:
        hidden = each(tokens(3, pos.shape[1]), pos)
        shape, dtype = (3, pos.shape[1], built.tokens.embedding_dim), torch.get_default_dtype()
        require(
            hidden.shape == shape and hidden.dtype == dtype,
            f"states are {tuple(hidden.shape)} {hidden.dtype}, not {shape} {dtype}",
        )
        require(
            hidden.isfinite().all(),
            f"states are not finite: {pos.shape[1]} tokens, positions up to {int(pos.max())}",
        )
    return f"trained for {TRAIN_LEN} tokens, finite at {n} positions" + (
        "" if n == MAX_LEN else ", as many as its max_len allows"
    )


def low_precision(make: Make) -> str:
    """float32 is near to float64; states and gradients are finite in bfloat16 autocast."""
    expected, single = compute_states(make()), make().float()
    hidden = compute_states(single)
    require(hidden.dtype == torch.float32, f"a float32 model computes in {hidden.dtype}")
    gap = agree(
        hidden.double(), expected, 1e-4, "compute in float64 what differs: float32 changes states"
    )
    with torch.autocast("cpu", torch.bfloat16):
        half = compute_states(single)
        torch.autograd.backward(loss(single.unembed(half)))
    require(half.isfinite().all(), "states are not finite in bfloat16 autocast")
    for name, parameter in single.named_parameters():
        require(
            parameter.grad is not None and parameter.grad.isfinite().all(),
            f"in bfloat16 the gradient of {name} is missing or not finite",
        )
    return (
        f"float32 differs from float64 by {gap:.0e}, bfloat16 autocast by "
        f"{largest(half.double() - expected):.0e}"
    )


def gradients_reach(make: Make, within: str = "", heads: int = 0) -> str:
    """Every parameter, and each head's part of it, has a gradient at four times the trained
    length.

    Args:
        within: part of the names of the parameters.
        heads: the size of an axis of heads.
    """
    built = make()
    n = reach(built.encodings)
    slopes = gradients(built, built.unembed(built(tokens(3, n), sequential(n))))
    by_name = zip(dict(built.named_parameters()), slopes, strict=True)
    named = {name: gradient for name, gradient in by_name if within in name}
    if not named:
        raise NotClaimedError("it has no parameters")
    for name, gradient in named.items():
        require(largest(gradient) > 1e-8, f"{name} has no gradient: it trains nothing")
        for axis in (axis for axis, size in enumerate(gradient.shape) if size == heads):
            by_head = gradient.abs().movedim(axis, 0).reshape(heads, -1).amax(1)
            require((by_head > 1e-8).all(), f"a head's part of {name} has no gradient")
    return f"all {len(named)} tensors of parameters have one"


def derivative(make: Make) -> str:
    """Gradients equal finite differences, for each parameter of the model by itself."""
    built, draw = make(fast=False).train(), torch.Generator().manual_seed(5)
    named = dict(built.named_parameters())

    # In place: after functional_call, parameters that layers share stay as they were changed.
    @torch.no_grad()
    def loss_with(parameter: Tensor, value: Tensor) -> float:
        parameter.copy_(value)
        return float(loss(built(tokens(), sequential())))

    whole = loss(built(tokens(), sequential()))
    slopes = torch.autograd.grad(whole, list(named.values()), materialize_grads=True)
    for (name, parameter), gradient in zip(named.items(), slopes, strict=True):
        direction = torch.randn(parameter.shape, generator=draw)
        slope, start = float((gradient * direction).sum()), parameter.detach().clone()
        # One after the other: the second is computed where the first is not near enough.
        numerics = (
            (loss_with(parameter, start + move) - loss_with(parameter, start - move)) / (2 * step)
            for step, move in ((step, step * direction) for step in STEPS)
        )
        require(
            any(abs(slope - one) <= 1e-3 * max(abs(slope), abs(one)) + 1e-5 for one in numerics),
            f"the derivative by {name} is {slope:.3g} by backward and another one by finite "
            "differences: detach(), no_grad or .data cuts it, or a backward is wrong",
        )
        parameter.data.copy_(start)
    return f"derivatives by {len(named)} tensors are those of finite differences"


def reads_positions(make: Make) -> str:
    """``reads_positions`` is set if and only if other positions change something."""
    built, sequence = make(), tokens()
    # Of one shape: other kernels, which round otherwise, may take other shapes.
    places = sequential().expand(2, -1), scattered(2, TRAIN_LEN, reach(built.encodings))
    gap = largest(built(sequence, places[1]) - built(sequence, places[0]))
    if any(encoding.reads_positions for encoding in built.encodings):
        require(
            gap > 1e-6,
            f"positions with gaps change states by {gap:.1g}: use the positions passed in, or set "
            "reads_positions = None",
        )
        return f"positions with gaps change states by {gap:.2g}"
    require(gap == 0, f"reads_positions = None, but other positions change states by {gap:.1e}")
    raise NotClaimedError("reads_positions = None: positions with gaps change nothing, as it says")


def shifted(make: Make) -> str:
    """``shift_invariant`` is true if and only if shifting all positions changes nothing."""
    built = make().eval()
    sequence, shift = tokens(), min(SHIFT, reach(built.encodings) - TRAIN_LEN)
    if shift < 1:
        raise NotClaimedError(f"its max_len has no room to shift {TRAIN_LEN} positions")
    there, here = built(sequence, sequential() + shift), built(sequence, sequential())
    what = f"{shift} added to every position changes states"
    if all(encoding.shift_invariant for encoding in built.encodings):
        gap = agree(there, here, 1e-10, f"shift_invariant is True, but {what}")
        return f"{what} by {gap:.0e}"
    gap = largest(there - here)
    require(gap > 1e-3, f"shift_invariant is False, but {what} by {gap:.1e} only: set it to True")
    raise NotClaimedError(f"absolute: {what} by {gap:.2g}")


def rows_alone(make: Make) -> str:
    """A sequence's states depend neither on the others of its batch, nor on whether shared
    positions are passed once or for each sequence."""
    built = make()
    sequence, pos = tokens(3), scattered(3, TRAIN_LEN, reach(built.encodings))
    alone = torch.cat([built(sequence[i : i + 1], pos[i : i + 1]) for i in range(3)])
    agree(built(sequence, pos), alone, 1e-12, "in a batch of three a sequence's states differ")
    agree(
        built(sequence, pos[:1]),
        built(sequence, pos[:1].expand(3, -1)),
        1e-12,
        "with (1, T) positions a sequence's states differ",
    )
    return "three sequences at other positions, together as alone"


def cached(make: Make) -> str:
    """Decoding with a key cache equals the whole pass, beyond the trained length.

    Tokens come one at a time and several at once, at positions 0, 1, .. and at scattered ones.
    """
    built = make().eval()
    limit = reach(built.encodings)
    n = min(2 * TRAIN_LEN, limit)
    if any(encoding.whole_sequence for encoding in built.encodings):
        raise NotClaimedError("it reads the whole sequence's length")
    pieces = (PLACE + 1, 3, 1, 1, 1, TRAIN_LEN - 4)
    places = sequential(n), scattered(3, n, limit)
    worst = max(cache_gap(built, tokens(3, n), pos, *pieces) for pos in places)
    return f"{n} tokens decoded one by one and in pieces differ by {worst:.0e}"


def fast_equals_plain(make: Make) -> str:
    """Kernels change neither values nor gradients, at any positions."""
    fast = make()
    places = [sequential(), scattered(2, TRAIN_LEN, reach(fast.encodings))]
    return compare_with_plain(fast, make(fast=False), tokens(), places)


def compare_with_plain(
    fast: nn.Module, plain: nn.Module, sequence: Tensor, places: list[Tensor], loose: float = 1
) -> str:
    """A model with kernels and the same one without them agree.

    Args:
        loose: by how much the tolerances are multiplied.
    """
    worst = 0.0
    for pos, training in product(places, (True, False)):
        outs = [built.train(training)(sequence, pos) for built in (fast, plain)]
        worst = max(worst, agree(outs[0], outs[1], 1e-12 * loose, "the kernels change states"))
        grads = [gradients(built, out) for out, built in zip(outs, (fast, plain), strict=True)]
        for (name, _), one, other in zip(fast.named_parameters(), *grads, strict=True):
            agree(one, other, 1e-10 * loose, f"the kernels change the gradient of {name}")
    return f"states with the kernels differ by {worst:.0e}, gradients within {1e-10 * loose:.0e}"


def round_trip(make: Make) -> str:
    """A model with another's ``state_dict`` computes the same."""
    built, other = make(), make(seed=1)
    other.load_state_dict(built.state_dict())
    gap = largest(compute_states(other) - compute_states(built))
    require(
        gap == 0,
        f"a model with this one's state_dict differs by {gap:.1e}: what is drawn when a model is "
        "built must be a parameter or a persistent buffer",
    )
    return f"{len(built.state_dict())} tensors saved and loaded, states equal bit for bit"


def scored_positions(make: Make) -> str:
    """With ``scored`` the states are the rows of a whole pass, in value and gradient."""
    built, sequence, pos = make(), tokens(3), sequential()
    chosen = torch.rand(3, TRAIN_LEN, generator=torch.Generator().manual_seed(0)) < 0.3
    chosen[:, :PLACE] = False
    scored = chosen.flatten().nonzero().flatten()
    some, rows = built(sequence, pos, scored=scored), built(sequence, pos)[chosen]
    agree(some, rows, 1e-12, "with scored, states change")
    for one, other in zip(gradients(built, some), gradients(built, rows), strict=True):
        agree(one, other, 1e-9, "with scored, gradients change")
    return f"{len(scored)} of {3 * TRAIN_LEN} states, as in the whole"


def dropout_by_generator(make: Make) -> str:
    """Dropout draws from torch's generator, and is off in evaluation."""
    try:
        built = make(dropout=0.3)
    except UsageError:
        raise NotClaimedError("it has no key dropout") from None
    one, again, other = (compute_states(built, seed=seed) for seed in (5, 5, 6))
    require(torch.equal(one, again), "one seed drops different units in two passes")
    require(not torch.equal(one, other), "another seed drops the same units")
    one, other = (compute_states(built.eval(), seed=seed) for seed in (5, 6))
    require(torch.equal(one, other), "it drops units in evaluation")
    return "the same mask for the same seed, none in evaluation"


def every_key(section: Section, build: Callable[[Section], Model]) -> str:
    """Every other value of a key that is accepted changes what is computed, or the number of
    parameters: by itself, or beside another value of one other key."""

    def changes(key: str, value: Any) -> bool | None:
        changed = None
        for start in neighbours(section, key):
            with suppress(UsageError):
                changed = not computes_the_same(build(start), build({**start, key: value}))
            if changed:
                break
        return changed

    return try_keys(section, changes)


def neighbours(section: Section, key: str) -> Iterator[Section]:
    """The section as it is, then with one key other than this one changed."""
    yield section
    for other in sorted(section.keys() - {key, "_target_"}):
        for value in other_values(section, other):
            yield {**section, other: value}


def computes_the_same(*pair: Model) -> bool:
    """Whether two models have as many parameters and equal states, in training and evaluation."""
    if len({sum(p.numel() for p in built.parameters()) for built in pair}) > 1:
        return False
    # Two lengths: at max_len alone, a share of it is a share of the sequence's length.
    longest = min(reach(built.encodings) for built in pair)
    for n, training in product((longest, min(TRAIN_LEN, longest)), (True, False)):
        one, other = (compute_states(built.train(training), n) for built in pair)
        if largest(one - other) > 1e-9:
            return False
    return True


def encoding_checks(section: Section) -> dict[str, Callable[[], str]]:
    """The checks that run with the keys as they are and with each other choice."""
    make = partial(build_transformer, section)
    return {
        "no look at the future": partial(no_look_ahead, make),
        "finite": partial(finite, make),
        "float32 and bfloat16": partial(low_precision, make),
        "gradient to every parameter": partial(gradients_reach, make, ".encoding.", HEADS),
        "gradient by differences": partial(derivative, make),
        "reads positions": partial(reads_positions, make),
        "shift invariance": partial(shifted, make),
        "each sequence by itself": partial(rows_alone, make),
        "cached equals uncached": partial(cached, make),
        "fast equals plain": partial(fast_equals_plain, make),
        "state_dict round trip": partial(round_trip, make),
    }


def model_checks(section: Section) -> dict[str, Callable[[], str]]:
    """The checks of a model."""
    make = partial(build_model, section)
    # A model of two parts reads the whole input.
    first = PLACE if model_config(section).refuses_task(FLIPFLOP) else 0
    return {
        "no look at the future": partial(no_look_ahead, make, first=first),
        "gradient to every parameter": partial(gradients_reach, make),
        "scored positions": partial(scored_positions, make),
        "dropout by torch's generator": partial(dropout_by_generator, make),
        "cached equals uncached": partial(cached, make),
        "state_dict round trip": partial(round_trip, make),
        EVERY_KEY: partial(every_key, section, build_model),
    }


def check_encoding(section: Section) -> Iterator[Outcome]:
    """The outcomes of all checks of an encoding: with the keys as they are, unless another choice
    of one key fails."""
    with exact():
        yield outcome("keys of yaml and class", partial(same_keys, section))
        checks = {words: encoding_checks(one) for words, one in choices(section).items()}
        for name in checks[""]:
            outcomes = {words: outcome(name, of[name]) for words, of in checks.items()}
            shown = next((words for words, one in outcomes.items() if one.state == "fail"), "")
            one = outcomes[shown]
            yield replace(one, sentence=f"with {shown}: {one.sentence}") if shown else one
        yield outcome(EVERY_KEY, partial(every_key, section, build_transformer))


def check_model(section: Section) -> Iterator[Outcome]:
    """The outcomes of all checks of a model."""
    with exact():
        yield from (outcome(name, check) for name, check in model_checks(section).items())
