"""Dropout whose mask is a function of a key, a row and a column, so that every path makes the same.

A mask that is drawn from a generator can be had only in the order of drawing. This one is hashed
from where an element stands: a fused kernel makes any block of it without storing it, makes it
again in the backward pass, and equals what plain PyTorch makes here; a resumed run needs no
generator's state, and a model trained among others drops what it would alone.

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
IN_CACHE = 2**15
"""Numbers that are hashed at once on a CPU: three such tensors fit into its cache."""


def mix(x: Tensor) -> Tensor:
    """A hash of 32-bit numbers, held in int64: products wrap there, and their low half is right."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _LOW
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _LOW
    return x ^ (x >> 16)


def mix_int32_(x: Tensor) -> Tensor:
    """``mix`` in place, of the same bits in int32: shifts fill up with the sign, hence masks."""
    x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF)).mul_(0x7FEB352D)
    x.bitwise_xor_((x >> 15).bitwise_and_(0x1FFFF)).mul_(0x846CA68B - 2**32)
    return x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF))


@dataclass(frozen=True)
class Drop:
    """What is dropped in one place of the model at one step.

    Args:
        p: the share of elements that becomes zero; the others are multiplied by 1 / (1 - p).
        key: 0 .. 2^63 - 1, a number or, where several models are trained at once, a tensor.
    """

    p: float
    key: int | Tensor

    @property
    def low(self) -> int | Tensor:
        return self.key & _LOW

    @property
    def high(self) -> int | Tensor:
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
        if isinstance(self.key, Tensor):
            # torch.func maps over it, and knows no tensors changed in place.
            return (mix((row[..., None] + column) & _LOW) >> 8) >= self.threshold
        kept = torch.empty(row.numel(), len(column), dtype=torch.bool, device=row.device)
        row, column = row.flatten().int(), column.int()
        at_once = max(1, IN_CACHE // max(1, len(column))) if row.is_cpu else max(1, len(row))
        for start in range(0, len(row), at_once):
            some = slice(start, start + at_once)
            bits = mix_int32_(row[some, None] + column)
            torch.ge((bits >> 8).bitwise_and_(0xFFFFFF), self.threshold, out=kept[some])
        return kept.view(*rows.shape, len(columns))

    def __call__(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """Drop elements of x, (.., C); ``rows`` (..) tells where its rows stand, if not in turn."""
        if rows is None:
            rows = torch.arange(x[..., 0].numel(), device=x.device).view(x.shape[:-1])
        kept = self.kept(rows, torch.arange(x.shape[-1], device=x.device))
        return torch.where(kept, x * self.scale, 0.0)


def attention_rows(weights_BHTS: Tensor) -> Tensor:
    """The numbers of the rows of attention weights, (B, H, T); the queries are the last T."""
    b, h, t, s = weights_BHTS.shape
    heads = torch.arange(b * h, device=weights_BHTS.device).view(b, h, 1) * s
    return heads + torch.arange(s - t, s, device=weights_BHTS.device)
