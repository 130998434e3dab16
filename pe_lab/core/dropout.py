"""Dropout whose mask is a hash of a key, a row and a column.

A mask drawn from a generator depends on the order of the draws. This one depends only on the
position of an element: a fused kernel can compute any block, recompute it in the backward pass and
still equal the PyTorch code below, and a resumed run needs no generator state.

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
"""Elements hashed at once on a CPU: two such tensors fit into its cache."""


def mix(x: Tensor) -> Tensor:
    """A hash of 32-bit numbers, held in int64: products wrap there, and their low half is right."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _LOW
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _LOW
    return x ^ (x >> 16)


# As int32 tensors: Python numbers would be converted at every call.
_STEPS_INT32 = tuple(
    torch.tensor(step, dtype=torch.int32).unbind()
    for step in ((16, 0xFFFF, 0x7FEB352D), (15, 0x1FFFF, 0x846CA68B - 2**32))
)


def reaches_int32_(x: Tensor, shifted: Tensor, threshold: int) -> Tensor:
    """In place, mix(x) >> 8 >= threshold as 1 or 0, for x with the same bits in int32, whose right
    shifts copy the sign; ``shifted``, of x's shape, is overwritten."""
    if threshold >> 24:
        return x.zero_()
    for shift, low, factor in _STEPS_INT32:
        torch.bitwise_right_shift(x, shift, out=shifted)
        x.bitwise_xor_(shifted.bitwise_and_(low)).mul_(factor)
    # The last step of mix does not change the upper half, which decides the comparison: for an
    # upper half equal to the threshold's the result is the same. Flipping the sign bit makes int32
    # compare as unsigned.
    least = threshold << 8
    return x.bitwise_xor_((least >> 16) - 2**31).ge_(least - 2**31)


@dataclass(frozen=True)
class Drop:
    """The dropout of one place in the model at one step.

    Args:
        p: the share of elements set to zero; the others are multiplied by 1 / (1 - p).
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
        """The same share with the mask of another place in the model."""
        return replace(self, key=self.key ^ ((place * GOLDEN) & _LOW) << 31)

    def kept(self, rows: Tensor, columns: Tensor) -> Tensor:
        """True where an element is kept, (*rows, *columns), for indices of rows and columns.

        Rows of attention weights are (b H + h) S + i for the query at position i of S tokens; rows
        of hidden states are b T + t.
        """
        row = mix((mix((rows + self.low) & _LOW) + self.high) & _LOW)
        column = (columns * GOLDEN) & _LOW
        kept = torch.empty(row.numel(), len(column), dtype=torch.bool, device=row.device)
        row, column = row.flatten().int(), column.int()
        at_once = max(1, IN_CACHE // max(1, len(column))) if row.is_cpu else max(1, len(row))
        for start in range(0, len(row), at_once):
            some = slice(start, start + at_once)
            x = row[some, None] + column
            # Faster than a comparison into booleans.
            kept[some] = reaches_int32_(x, torch.empty_like(x), self.threshold)
        return kept.view(*rows.shape, len(columns))

    def kept_of(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """True where an element of x, (.., C), is kept; ``rows`` (..) are the indices of its rows,
        by default 0, 1, .."""
        if rows is None:
            rows = torch.arange(x[..., 0].numel(), device=x.device).view(x.shape[:-1])
        return self.kept(rows, torch.arange(x.shape[-1], device=x.device))

    def __call__(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """x with elements dropped; ``rows`` as in ``kept_of``."""
        return torch.where(self.kept_of(x, rows), x * self.scale, 0.0)

    def add(self, residual: Tensor, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """``residual + self(x, rows)``."""
        return residual + self(x, rows)


def attention_rows(weights_BHTS: Tensor) -> Tensor:
    """The indices of the rows of attention weights, (B, H, T); the queries are the last T."""
    b, h, t, s = weights_BHTS.shape
    heads = torch.arange(b * h, device=weights_BHTS.device).view(b, h, 1) * s
    return heads + torch.arange(s - t, s, device=weights_BHTS.device)
