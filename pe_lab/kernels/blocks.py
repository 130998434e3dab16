"""How chunked attention walks over (B, H, T, S): a block of query rows at a time, of one head of
many sequences or of many heads of one, whatever there are more of.

The keys that no row of a block sees are left out: a block of R rows ends with its last row's own
key, and what some rows do not see is a triangle in its last R columns.

Shape letters besides the encodings': O those of heads and sequences that are taken one at a time,
I the others; G of these, R rows and C columns make a block.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pe_lab.dropout import GOLDEN, Drop, mix

ROWS = 64
# A dozen buffers of so many elements stay near a core; a GPU's launches want longer ones.
ELEMENTS_CPU, ELEMENTS_ELSEWHERE = 1 << 17, 1 << 24
LOW = 0xFFFFFFFF


class Scratch:
    """Memory that every block uses anew, by name: fresh pages would cost more than the sums."""

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.held: dict[str, Tensor] = {}
        self.views: dict[tuple[str, tuple[int, ...]], Tensor] = {}

    def __call__(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor of this shape with anything in it; the last one of this name is lost."""
        view = self.views.get((name, shape))
        if view is None:
            size = torch.Size(shape).numel()
            flat = self.held.get(name)
            if flat is None or len(flat) < size:
                flat = self.like.new_empty(size, dtype=dtype or self.like.dtype)
                self.held[name] = flat
                self.views = {at: view for at, view in self.views.items() if at[0] != name}
            view = self.views[name, shape] = flat[:size].view(shape)
        return view

    def product(
        self, name: str, left_GRX: Tensor, right_GXC: Tensor, factor: float = 1.0
    ) -> Tensor:
        """factor left @ right in the memory of this name."""
        out = self(name, left_GRX.shape[0], left_GRX.shape[1], right_GXC.shape[2])
        return out.baddbmm_(left_GRX, right_GXC, beta=0, alpha=factor)


@dataclass(frozen=True)
class Block:
    """Number ``outer`` of O, some of I, some rows, and the columns before ``columns``."""

    outer: int
    inner: slice
    rows: slice
    columns: int

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """(G, R, C)."""
        return self.inner.stop - self.inner.start, self.rows.stop - self.rows.start, self.columns

    def of_rows(self, x_OIT: Tensor) -> Tensor:
        """(G, R, ..) of all queries."""
        return x_OIT[self.outer, self.inner, self.rows]

    def of_columns(self, x_OIS: Tensor) -> Tensor:
        """(G, C, ..) of all keys."""
        return x_OIS[self.outer, self.inner, : self.columns]

    def corner(self, x_GRC: Tensor) -> Tensor:
        """The columns that not every row sees, (G, R, R)."""
        return x_GRC[..., self.columns - self.shape[1] :]


class Walk:
    """The blocks of one attention, and what is masked and dropped in them.

    Args:
        q_BHTD, k_BHSD: what is compared; only their shape, type and device are looked at.
    """

    def __init__(self, q_BHTD: Tensor, k_BHSD: Tensor, drop: Drop | None) -> None:
        self.batch, self.heads, self.queries, _ = q_BHTD.shape
        self.keys = k_BHSD.shape[2]
        self.by_head = self.batch >= self.heads
        self.drop = drop
        self.new = Scratch(q_BHTD)
        self.rows = min(ROWS, self.queries)
        device = q_BHTD.device
        self.elements = ELEMENTS_CPU if device.type == "cpu" else ELEMENTS_ELSEWHERE
        self.seen = torch.ones(self.rows, self.rows, dtype=q_BHTD.dtype, device=device).tril()
        self.unseen = torch.zeros_like(self.seen).masked_fill_(self.seen == 0, -torch.inf)
        if drop is not None:
            heads = torch.arange(self.batch * self.heads, device=device) * self.keys
            places = torch.arange(self.keys - self.queries, self.keys, device=device)
            row = mix((mix((heads[:, None] + places + drop.low) & LOW) + drop.high) & LOW)
            self.row_hash = self.view(row.int().view(self.batch, self.heads, self.queries, 1))
            self.column_hash = (torch.arange(self.keys, device=device) * GOLDEN).int()

    def view(self, x_BHLD: Tensor) -> Tensor:
        """(O, I, ..)"""
        return x_BHLD.transpose(0, 1) if self.by_head else x_BHLD

    def zeros(self, like_BHLD: Tensor) -> Tensor:
        """(B, H, L, D) as ``Attention`` wants it, the heads of a token side by side."""
        b, h, length, d = like_BHLD.shape
        return like_BHLD.new_zeros(b, length, h, d).transpose(1, 2)

    def __iter__(self) -> Iterator[Block]:
        """The last rows come first: what they need is enough for all others."""
        inner, outer = sorted((self.batch, self.heads), reverse=True)
        for last in range(self.queries, 0, -self.rows):
            rows = slice(max(0, last - self.rows), last)
            columns = self.keys - self.queries + last
            step = max(1, self.elements // ((rows.stop - rows.start) * columns))
            for o in range(outer):
                for i in range(0, inner, step):
                    yield Block(o, slice(i, min(inner, i + step)), rows, columns)

    def mask(self, block: Block, logits_GRC: Tensor) -> Tensor:
        """The logits, -inf where a row does not see the column; they are written over."""
        r = block.shape[1]
        block.corner(logits_GRC).add_(self.unseen[:r, :r])
        return logits_GRC

    def close(self, block: Block, gates_GRC: Tensor) -> Tensor:
        """The gates, 0 where a row does not see the column; they are written over."""
        r = block.shape[1]
        block.corner(gates_GRC).mul_(self.seen[:r, :r])
        return gates_GRC

    def kept(self, block: Block) -> Tensor:
        """1 where a weight is kept, 0 where it is dropped: ``Drop.kept`` in 32-bit arithmetic,
        where products wrap around as they should and shifts have to lose their sign."""
        assert self.drop is not None
        x = self.new("hash", *block.shape, dtype=torch.int32)
        shifted = self.new("shifted", *block.shape, dtype=torch.int32)
        torch.add(block.of_rows(self.row_hash), self.column_hash[: block.columns], out=x)
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B - (1 << 32)), (16, 1)):
            torch.bitwise_right_shift(x, shift, out=shifted).bitwise_and_((1 << 32 - shift) - 1)
            x.bitwise_xor_(shifted)
            if factor != 1:
                x.mul_(factor)
        torch.bitwise_right_shift(x, 8, out=shifted).bitwise_and_((1 << 24) - 1)
        return torch.ge(shifted, self.drop.threshold, out=self.new("kept", *block.shape))
