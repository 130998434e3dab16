"""The contract of an encoding's hooks, called without a model.

The hooks get exact queries, keys, values and states, because the rounding of a model's trunk would
hide that of an encoding. Shape letters as in pe/base.py.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pe_lab.check.base import (
    TRAIN_LEN,
    ContractError,
    NotClaimedError,
    Section,
    agree,
    differ,
    dims,
    hold,
    largest,
    loss,
    model,
    reach,
    scattered,
    sequential,
    tokens,
)
from pe_lab.pe.base import AttentionInputs, PositionalEncoding
from pe_lab.pe.functional import masked_softmax

LONG = 130
"""A length at which sums are long and kernels need several blocks."""
ROUNDING = 4
"""The largest allowed ratio of the error in bfloat16 to the error of rounding the operands. Shipped
encodings have at most 3; running sums in bfloat16 have 6 and more."""
STEPS = (1e-4, 1e-6)
"""Steps of finite differences: a large one for float32 code, a small one near kinks."""


@dataclass(frozen=True)
class Operands:
    """What attention passes to the hooks: x (B, T, E), q, k and v (B, H, T, D), positions."""

    x: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    pos: Tensor

    def inputs(self) -> AttentionInputs:
        return AttentionInputs(self.x, self.q, self.k, self.v, self.pos, self.pos)

    def to(self, x: torch.dtype, heads: torch.dtype) -> "Operands":
        return Operands(
            self.x.to(x), self.q.to(heads), self.k.to(heads), self.v.to(heads), self.pos
        )


def operands(encodings: list[PositionalEncoding], length: int, **sizes: Any) -> Operands:
    """Normal numbers that bfloat16 holds exactly."""
    size, draw = dims(**sizes), torch.Generator().manual_seed(3)
    length = min([length, *(e.max_len for e in encodings if e.max_len is not None)])
    x = torch.randn(2, length, size.d_model, generator=draw)
    shape = (3, 2, size.n_heads, length, size.head_dim)
    q, k, v = torch.randn(*shape, generator=draw).bfloat16().to(x.dtype)
    return Operands(x.bfloat16().to(x.dtype), q, k, v, sequential(length))


def attention(
    encodings: list[PositionalEncoding], given: Operands, rounded: bool = False
) -> tuple[Tensor, Tensor]:
    """Weights and averaged values of all layers, with the same q, k and v in each.

    Args:
        rounded: what the hooks return is rounded to bfloat16.
    """

    def kept(x: Tensor) -> Tensor:
        return x.bfloat16().to(x.dtype) if rounded else x

    x = encodings[0].embed(given.x, tokens(2, given.x.shape[1]), given.pos)
    carried, weights, averages = None, [], []
    for encoding in encodings:
        x = encoding.block_input(x, given.pos)
        inputs = replace(given.inputs(), x_BSE=x, carried=carried, window=encoding.window)
        q, k = map(kept, encoding.rotate(given.q, given.k, inputs))
        content = kept((q * q.shape[-1] ** -0.5) @ k.mT)
        logits = kept(encoding.logits(content, q, k, inputs))
        bias = encoding.bias(given.pos, given.pos)
        if bias is not None:
            logits = kept(logits + bias)
        own = encoding.normalize(logits, inputs.mask_TS)
        weights.append(masked_softmax(logits, inputs.mask_TS) if own is None else own)
        average = weights[-1].to(given.v.dtype) @ given.v
        added = encoding.values(weights[-1], inputs)
        averages.append(average if added is None else average + added)
        carried = encoding.update_state(encoding.layer_state(weights[-1], inputs), x)
    return torch.stack(weights), torch.stack(averages)


def same_twice(section: Section, **sizes: Any) -> str:
    """Two passes with one input are equal in training: an encoding draws no random numbers."""
    built, seen, pos = model(section, **sizes).train(), tokens(2, TRAIN_LEN), sequential(TRAIN_LEN)
    gap = largest(built(seen, pos) - built(seen, pos))
    hold(
        gap == 0,
        f"two passes with one input differ by {gap:.1e}: an encoding draws nothing itself "
        "(nn.Dropout, torch.rand); use model.dropout, which drops attention weights",
    )
    return "two passes in training are equal"


def marks(section: Section, **sizes: Any) -> str:
    """``bias`` has the right shape and is finite; the marks ``by_distance`` and ``by_position`` are
    true."""
    held = []
    for encoding in dict.fromkeys(model(section, **sizes).encodings):
        if "bias" in encoding.hooks():
            _check_bias(encoding, **sizes)
            held.append("bias finite" + ", by distance" * encoding.bias_by_distance)
        if "rotate" in encoding.hooks() and encoding.rotates_by_position:
            _check_rotation(encoding, **sizes)
            held.append("rotate by position")
    if not held:
        raise NotClaimedError("it has no bias and no rotation by position")
    return ", ".join(dict.fromkeys(held))


def _check_bias(encoding: PositionalEncoding, **sizes: Any) -> None:
    limit, heads = reach([encoding]), dims(**sizes).n_heads
    t = min(TRAIN_LEN, limit)
    for pos in (sequential(limit), scattered(2, t, limit)):
        bias = encoding.bias(pos[:, -t:], pos)
        assert bias is not None
        expected = len(pos), heads, t, pos.shape[1]
        hold(
            bias.dim() == 4
            and all(n in (1, whole) for n, whole in zip(bias.shape, expected, strict=True)),
            f"bias has the shape {tuple(bias.shape)}, not (1 or B, H, T, S) = {expected}: its "
            "first axis is the batch of the positions",
        )
        bias = bias.expand(expected)
        if not bias.isfinite().all():
            _, head, i, j = (~bias.isfinite()).nonzero()[0].tolist()
            raise ContractError(
                f"bias is {float(bias[~bias.isfinite()][0])} at head {head}, query {i}, key {j}: "
                "it must be finite, as masks are added to it; use a large negative number"
            )
        if encoding.bias_by_distance:
            _check_distances(bias, (pos[:, -t:, None] - pos[:, None, :]))


def _check_distances(bias: Tensor, distance_BTS: Tensor) -> None:
    """ContractError if two keys at the same distance, none of them later, have different biases."""
    every = bias.movedim(1, -1)
    for distance in sorted(set(distance_BTS[distance_BTS >= 0].tolist())):
        values = every[distance_BTS == distance]
        if differ(values, values[:1].expand_as(values), rtol=1e-6, atol=1e-6) is not None:
            low, high = values.aminmax(dim=0)
            head = int((high - low).argmax())
            raise ContractError(
                f"bias is marked @by_distance, but at head {head} keys at the distance {distance} "
                f"get {float(low[head]):.3g} to {float(high[head]):.3g}: remove the mark, or "
                "compute it from pos_q - pos_k alone"
            )


def _check_rotation(encoding: PositionalEncoding, **sizes: Any) -> None:
    given = operands([encoding], TRAIN_LEN, **sizes)
    whole = encoding.rotate(given.q, given.k, given.inputs())
    for t in (1, given.x.shape[1] - 1):
        q, k, v = (part[:, :, t : t + 1] for part in (given.q, given.k, given.v))
        one = Operands(given.x[:, t : t + 1], q, k, v, given.pos[:, t : t + 1])
        alone = encoding.rotate(one.q, one.k, one.inputs())
        for what, some, many in zip(("query", "key"), alone, whole, strict=True):
            agree(
                some,
                many[:, :, t : t + 1],
                1e-9,
                1e-9,
                f"rotate is marked @by_position (read positions as passed, or remove the mark), "
                f"but {what} {t} rotated by itself differs from the same one among others",
            )


def half_precision(section: Section, **sizes: Any) -> str:
    """The error of bfloat16 autocast is about that of rounding operands and results to bfloat16."""
    sizes = {**sizes, "train_len": LONG, "max_len": LONG}
    exact, rounded, half = (model(section, fast=False, **sizes).eval() for _ in range(3))
    given = operands(exact.encodings, LONG, **sizes)
    with torch.no_grad():
        expected, _ = attention(exact.encodings, given)
        for parameter in rounded.parameters():
            parameter.copy_(parameter.bfloat16())
        allowed = _distance(attention(rounded.encodings, given, rounded=True)[0], expected)
        half.float()
        with torch.autocast("cpu", torch.bfloat16):
            found, _ = attention(half.encodings, given.to(torch.float32, torch.bfloat16))
    gap = _distance(found.double(), expected)
    hold(
        gap <= ROUNDING * allowed,
        f"in bfloat16 autocast attention weights of {given.x.shape[1]} keys differ from "
        f"float64 by {gap:.1g}, and by {allowed:.1g} where operands alone are rounded: "
        "accumulate in float32 (x.to(torch.promote_types(x.dtype, torch.float32)).cumsum(..))",
    )
    return f"bfloat16 autocast by {gap:.0e}"


def _distance(weights: Tensor, expected: Tensor) -> float:
    """The mean total variation distance between rows of attention weights."""
    return float((weights - expected).abs().sum(-1).mean()) / 2


def derivative(section: Section, **sizes: Any) -> str:
    """Gradients of the hooks equal finite differences, for each operand by itself."""
    encodings = model(section, fast=False, **sizes).train().encodings
    given, draw = operands(encodings, TRAIN_LEN, **sizes), torch.Generator().manual_seed(5)
    parameters = {
        f"{name} of layer {n}": p
        for n, encoding in enumerate(encodings)
        for name, p in encoding.named_parameters()
    }
    read = {"x": given.x, "q": given.q, "k": given.k, "v": given.v, **parameters}
    for operand in read.values():
        operand.requires_grad_()

    def value() -> Tensor:
        return loss(attention(encodings, given)[1])

    found = torch.autograd.grad(value(), list(read.values()), materialize_grads=True)
    for (name, operand), gradient in zip(read.items(), found, strict=True):
        direction = torch.randn(operand.shape, generator=draw)
        slope = float((gradient * direction).sum())
        gaps = {}
        for step in STEPS:
            ends = []
            with torch.no_grad():
                for end in (step, -2 * step):
                    operand.add_(end * direction)
                    ends.append(float(value()))
                operand.add_(step * direction)
            numeric = (ends[0] - ends[1]) / (2 * step)
            gaps[abs(numeric - slope)] = numeric
        gap, numeric = min(gaps.items())
        hold(
            gap <= 1e-3 * max(abs(slope), abs(numeric)) + 1e-6,
            f"the derivative by {name} is {slope:.3g} by backward and {numeric:.3g} by finite "
            "differences: detach(), no_grad or .data cuts it, or a backward is wrong",
        )
    return f"derivatives by {len(read)} tensors are those of finite differences"
