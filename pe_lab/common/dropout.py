"""Dropout whose mask is a hash of a key, a row and a column.

A mask drawn from a generator depends on the order of the draws. This one depends only on the
position of an element: a fused kernel computes any block of it without storing it, recomputes it in
the backward pass, and equals the PyTorch code below; a resumed run needs no generator state.

    mix(x):   x ^= x >> 16;  x *= 0x7feb352d;  x ^= x >> 15;  x *= 0x846ca68b;  x ^= x >> 16
    row_r   = mix(mix(r + low) + high)        low, high: the halves of the key
    bits_rc = mix(row_r + c * 0x9e3779b9)
    kept_rc = bits_rc >> 8 >= round(p * 2^24)

all in unsigned 32-bit arithmetic that wraps around. ``mix`` is Wellons' "lowbias32" finalizer.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

GOLDEN = 0x9E3779B9
_LOW = 0xFFFFFFFF
IN_CACHE = 2**16
"""Numbers that are hashed at once on a CPU: two such tensors fit into its cache."""


def mix(x: Tensor) -> Tensor:
    """A hash of 32-bit numbers, held in int64: products wrap there, and their low half is right."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _LOW
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _LOW
    return x ^ (x >> 16)


# Numbers of another type than a tensor's would be converted at every call.
_STEPS_INT32 = tuple(
    torch.tensor(step, dtype=torch.int32).unbind()
    for step in ((16, 0xFFFF, 0x7FEB352D), (15, 0x1FFFF, 0x846CA68B - 2**32))
)


def reaches_int32_(x: Tensor, shifted: Tensor, threshold: int) -> Tensor:
    """x becomes mix(x) >> 8 >= threshold, 1 or 0, of the same bits in int32, whose shifts fill up
    with the sign; ``shifted``, like x, is written over."""
    if threshold >> 24:
        return x.zero_()
    for shift, low, factor in _STEPS_INT32:
        torch.bitwise_right_shift(x, shift, out=shifted)
        x.bitwise_xor_(shifted.bitwise_and_(low)).mul_(factor)
    # The last step leaves the upper half as it is, and the lower half counts only where the upper
    # is the least one's, which may stand for it. With the sign turned, int32 compares as unsigned.
    least = threshold << 8
    return x.bitwise_xor_((least >> 16) - 2**31).ge_(least - 2**31)


@dataclass(frozen=True)
class Drop:
    """What is dropped in one place of the model at one step.

    Args:
        p: the share of elements that becomes zero; the others are multiplied by 1 / (1 - p).
        key: 0 .. 2^63 - 1.
    """

    p: float
    key: int

    @property
    def low(self) -> int:
        return self.key & _LOW

    @property
    def high(self) -> int:
        return self.key >> 32

    @property
    def threshold(self) -> int:
        return round(self.p * 2**24)

    @property
    def scale(self) -> float:
        return 1 / (1 - self.p)

    def at(self, place: int) -> "Drop":
        """The same share in another place of the model: a mask of its own."""
        return replace(self, key=self.key ^ ((place * GOLDEN) & _LOW) << 31)

    def kept(self, rows: Tensor, columns: Tensor) -> Tensor:
        """True where an element stays, (*rows, *columns), of integer numbers of rows and columns.

        Rows of attention weights are (b H + h) S + i for the query at place i of S tokens; rows of
        hidden states are b T + t.
        """
        row = mix((mix((rows + self.low) & _LOW) + self.high) & _LOW)
        column = (columns * GOLDEN) & _LOW
        kept = torch.empty(row.numel(), len(column), dtype=torch.bool, device=row.device)
        row, column = row.flatten().int(), column.int()
        at_once = max(1, IN_CACHE // max(1, len(column))) if row.is_cpu else max(1, len(row))
        for start in range(0, len(row), at_once):
            some = slice(start, start + at_once)
            x = row[some, None] + column
            # Faster than a comparison that makes booleans.
            kept[some] = reaches_int32_(x, torch.empty_like(x), self.threshold)
        return kept.view(*rows.shape, len(columns))

    def kept_of(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """True where an element of x, (.., C), stays; ``rows`` (..) tells where its rows stand, if
        not in turn."""
        if rows is None:
            rows = torch.arange(x[..., 0].numel(), device=x.device).view(x.shape[:-1])
        return self.kept(rows, torch.arange(x.shape[-1], device=x.device))

    def __call__(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """x with elements dropped; ``rows`` as in ``kept_of``."""
        return torch.where(self.kept_of(x, rows), x * self.scale, 0.0)


def dropout(x: Tensor, drop: Drop | None) -> Tensor:
    """Dropout of what is added to the residual stream, at least in float32; None: x itself."""
    return x if drop is None else drop(x.to(torch.promote_types(x.dtype, torch.float32)))


def attention_rows(weights_BHTS: Tensor) -> Tensor:
    """The numbers of the rows of attention weights, (B, H, T); the queries are the last T."""
    b, h, t, s = weights_BHTS.shape
    heads = torch.arange(b * h, device=weights_BHTS.device).view(b, h, 1) * s
    return heads + torch.arange(s - t, s, device=weights_BHTS.device)
