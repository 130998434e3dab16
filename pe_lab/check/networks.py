"""The contract of an encoding, in a small transformer, and of a model: one function for each point.

Each takes what builds the network (``make(seed=1)``, ``make(fast=False)``, ``make(n_heads=1)``),
and is called in the context ``base.exact``.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import product
from typing import Any

import torch
from hydra.utils import get_object
from torch import Tensor, nn

from pe_lab.check.base import (
    HEADS,
    MAX_LEN,
    PLACE,
    TRAIN_LEN,
    VOCAB,
    NotClaimedError,
    Section,
    agree,
    build_model,
    build_transformer,
    cache_gap,
    change_after,
    gradients,
    largest,
    loss,
    model_config,
    other_values,
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
"""Steps of finite differences: a large one for float32 code, a small one near kinks."""
FLIPFLOP = FlipFlop(length=16, p_ignore=0.5, loss_on="scored", train_sequences=None, splits={})
Make = Callable[..., Model]


def same_keys(section: Section) -> str:
    """The yaml sets each key that the class takes, and no other."""
    arguments = list(inspect.signature(get_object(section["_target_"])).parameters)[1:]
    keys = [key for key in section if key != "_target_"]
    unset = [key for key in arguments if key not in keys]
    require(not unset, f"the yaml does not set {', '.join(unset)}, so no run records them")
    unknown = [key for key in keys if key not in arguments]
    require(not unknown, f"the class takes no {', '.join(unknown)}")
    return f"both have {', '.join(keys)}" if keys else "it has no keys"


def two_parts(section: Section) -> bool:
    """Whether a model is for tasks with an input and an output part."""
    return model_config(section).refuses_task(FLIPFLOP) is not None


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
            reads = changes[:, t + 1 :].min() > 1e-6
            require(reads, f"a token after {t} is changed, and its state is not")
    return f"where later tokens of {n} are changed, states differ by {worst:.1g}"


def finite(make: Make) -> str:
    """States have the input's shape and type and are finite, for one token, odd lengths, one head,
    at four times the trained length and at scattered positions."""
    built = make()
    n = reach(built.encodings)
    cases = [(built, sequential(1)), (built, sequential(7)), (built, sequential(n))]
    cases.append((built, scattered(3, min(n, 12), n)))
    with suppress(UsageError):
        cases.append((make(n_heads=1), sequential()))
    for each, pos in cases:
        hidden = each(tokens(3, pos.shape[1]), pos)
        shape, dtype = (3, pos.shape[1], built.tokens.embedding_dim), torch.get_default_dtype()
        same = hidden.shape == shape and hidden.dtype == dtype
        require(same, f"states are {tuple(hidden.shape)} {hidden.dtype}, not {shape} {dtype}")
        at = f"{pos.shape[1]} tokens, positions up to {int(pos.max())}"
        require(hidden.isfinite().all(), f"states are not finite: {at}")
    limited = "" if n == MAX_LEN else ", as many as its max_len allows"
    return f"trained for {TRAIN_LEN} tokens, finite at {n} positions{limited}"


def low_precision(make: Make) -> str:
    """float32 is near to float64; states and gradients are finite in bfloat16 autocast."""
    sequence, pos = tokens(), sequential()
    expected, single = make()(sequence, pos), make().float()
    hidden = single(sequence, pos)
    require(hidden.dtype == torch.float32, f"a float32 model computes in {hidden.dtype}")
    what = "compute in float64 what differs: float32 changes states"
    gap = agree(hidden.double(), expected, 1e-4, what)
    with torch.autocast("cpu", torch.bfloat16):
        half = single(sequence, pos)
        torch.autograd.backward(loss(single.unembed(half)))
    require(half.isfinite().all(), "states are not finite in bfloat16 autocast")
    for name, parameter in single.named_parameters():
        good = parameter.grad is not None and bool(parameter.grad.isfinite().all())
        require(good, f"in bfloat16 the gradient of {name} is missing or not finite")
    half_gap = largest(half.double() - expected)
    return f"float32 differs from float64 by {gap:.0e}, bfloat16 autocast by {half_gap:.0e}"


def gradients_reach(make: Make, within: str = "", heads: int = 0) -> str:
    """Every parameter, and each head's part of it, has a gradient at four times the trained
    length.

    Args:
        within: part of the names of the parameters.
        heads: the size of an axis of heads.
    """
    built = make()
    named = {name: p for name, p in built.named_parameters() if within in name}
    if not named:
        raise NotClaimedError("it has no parameters")
    n = reach(built.encodings)
    torch.autograd.backward(loss(built.unembed(built(tokens(3, n), sequential(n)))))
    for name, parameter in named.items():
        gradient = torch.zeros(1) if parameter.grad is None else parameter.grad
        require(largest(gradient) > 1e-8, f"{name} has no gradient: it trains nothing")
        for axis in (axis for axis, size in enumerate(gradient.shape) if size == heads):
            by_head = gradient.abs().movedim(axis, 0).reshape(heads, -1).amax(1)
            require((by_head > 1e-8).all(), f"a head's part of {name} has no gradient")
    return f"all {len(named)} tensors of parameters have one"


def derivative(make: Make) -> str:
    """Gradients equal finite differences, for each parameter of the model by itself."""
    built, draw = make(fast=False).train(), torch.Generator().manual_seed(5)
    sequence, pos = tokens(), sequential()
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


def reads_positions(make: Make) -> str:
    """``reads_positions`` is true if and only if other positions change something."""
    built, sequence = make(), tokens()
    # Of one shape: other kernels, which round otherwise, may take other shapes.
    places = sequential().expand(2, -1), scattered(2, TRAIN_LEN, reach(built.encodings))
    gap = largest(built(sequence, places[1]) - built(sequence, places[0]))
    if any(encoding.reads_positions for encoding in built.encodings):
        remedy = "use the positions passed in, or set reads_positions = False"
        require(gap > 1e-6, f"positions with gaps change states by {gap:.1g}: {remedy}")
        return f"positions with gaps change states by {gap:.2g}"
    require(gap == 0, f"reads_positions is False, but others change states by {gap:.1e}")
    raise NotClaimedError("reads_positions is False, and positions with gaps change nothing")


def shifted(make: Make) -> str:
    """``shift_invariant`` is true if and only if shifting all positions changes nothing."""
    built = make().eval()
    sequence, shift = tokens(), min(SHIFT, reach(built.encodings) - TRAIN_LEN)
    if shift < 1:
        raise NotClaimedError(f"its max_len has no room to shift {TRAIN_LEN} positions")
    places = (sequential(TRAIN_LEN, offset=shift), sequential())
    there, here = (built(sequence, pos) for pos in places)
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
    once, each = built(sequence, pos[:1]), built(sequence, pos[:1].expand(3, -1))
    agree(once, each, 1e-12, "with (1, T) positions a sequence's states differ")
    return "three sequences at other positions, together as alone"


def cached(make: Make) -> str:
    """Decoding with a key cache equals the whole pass, beyond the trained length.

    Tokens come one at a time and several at once, at positions 0, 1, .. and at scattered ones.
    """
    built = make().eval()
    limit = reach(built.encodings)
    n = min(2 * TRAIN_LEN, limit)
    if any(encoding.whole_sequence for encoding in built.encodings):
        with suppress(ValueError):
            built.empty_cache()
            require(False, "whole_sequence is set, but a key cache is not refused")
        raise NotClaimedError("it reads the whole sequence's length")
    pieces = (PLACE + 1, 3, 1, 1, 1, TRAIN_LEN - 4)
    places = sequential(n), scattered(3, n, limit)
    worst = max(cache_gap(built, tokens(3, n), pos, *pieces) for pos in places)
    return f"{n} tokens decoded one by one and in pieces differ by {worst:.0e}"


def fast_equals_plain(make: Make) -> str:
    """Kernels change neither values nor gradients, at any positions."""
    fast, plain = make(), make(fast=False)
    places = [sequential(), scattered(2, TRAIN_LEN, reach(fast.encodings))]
    return compare_with_plain(fast, plain, tokens(), places)


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
        gap = agree(outs[0], outs[1], 1e-12 * loose, "the kernels change states")
        worst = max(worst, gap)
        grads = [gradients(built, out) for out, built in zip(outs, (fast, plain), strict=True)]
        for (name, _), one, other in zip(fast.named_parameters(), *grads, strict=True):
            agree(one, other, 1e-10 * loose, f"the kernels change the gradient of {name}")
    return f"states with the kernels differ by {worst:.0e}, gradients within {1e-10 * loose:.0e}"


def round_trip(make: Make) -> str:
    """A model with another's ``state_dict`` computes the same."""
    built, other = make(), make(seed=1)
    other.load_state_dict(built.state_dict())
    gap = largest(other(tokens(), sequential()) - built(tokens(), sequential()))
    what = "what is drawn when a model is built must be a parameter or a persistent buffer"
    require(gap == 0, f"a model with this one's state_dict differs by {gap:.1e}: {what}")
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

    def out(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return built(tokens(), sequential())

    require(torch.equal(out(5), out(5)), "one seed drops different units in two passes")
    require(not torch.equal(out(5), out(6)), "another seed drops the same units")
    built.eval()
    require(torch.equal(out(5), out(6)), "it drops units in evaluation")
    return "the same mask for the same seed, none in evaluation"


def every_key(
    section: Section,
    build: Callable[[Section], Model],
    values: Callable[[Section, str], list[Any]] = other_values,
) -> str:
    """Every other value of a key that is accepted changes what is computed, or the number of
    parameters: by itself, or beside another value of one other key.

    Args:
        values: the other values of a key to try.
    """

    def changes(key: str, value: Any) -> bool | None:
        changed = None
        for start in neighbours(section, key, values):
            with suppress(UsageError):
                changed = not computes_the_same(build(start), build({**start, key: value}))
            if changed:
                break
        return changed

    return try_keys(section, changes, values)


def neighbours(
    section: Section, key: str, values: Callable[[Section, str], list[Any]]
) -> Iterator[Section]:
    """The section as it is, then with one key other than this one changed."""
    yield section
    for other in sorted(section.keys() - {key, "_target_"}):
        for value in values(section, other):
            yield {**section, other: value}


def computes_the_same(*pair: Model) -> bool:
    """Whether two models have as many parameters and equal states, in training and evaluation."""
    if len({sum(p.numel() for p in built.parameters()) for built in pair}) > 1:
        return False
    # Two lengths: at max_len alone, a share of it is a share of the sequence's length.
    longest = min(reach(built.encodings) for built in pair)
    for n, training in product((longest, min(TRAIN_LEN, longest)), (True, False)):
        states = []
        for built in pair:
            torch.manual_seed(5)  # of dropout
            states.append(built.train(training)(tokens(2, n), sequential(n)))
        if largest(states[0] - states[1]) > 1e-9:
            return False
    return True


def values_of_model(section: Section, key: str) -> list[Any]:
    """Other values of a key of a model."""
    if key == "layers":
        return [{0: {"d_ff": 8}}, {0: {"n_heads": 1}}, {0: {"activation": "gelu"}}]
    if isinstance(section[key], float):
        return [0.3]
    values = other_values(section, key)
    # Null means no window or no convolution, and a number must be below the length.
    return [3] if section[key] is None and all(isinstance(v, int) for v in values) else values


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
    first = PLACE if two_parts(section) else 0
    return {
        "no look at the future": partial(no_look_ahead, make, first=first),
        "gradient to every parameter": partial(gradients_reach, make),
        "scored positions": partial(scored_positions, make),
        "dropout by torch's generator": partial(dropout_by_generator, make),
        "cached equals uncached": partial(cached, make),
        "state_dict round trip": partial(round_trip, make),
        "every key changes something": partial(every_key, section, build_model, values_of_model),
    }
