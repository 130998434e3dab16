"""How chunked attention walks over (B, H, T, S): a block of query rows at a time, of one head of
many sequences or of many heads of one, whatever there are more of.

The keys that no row of a block sees are left out: a block of R rows ends with its last row's own
key, and what some rows do not see is a triangle in its last R columns.

Shape letters besides the encodings': O those of heads and sequences that are taken one at a time,
I the others; G of these, R rows and C columns make a block.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from pe_lab.common.dropout import GOLDEN, Drop, mix, reaches_int32_

ROWS = 64
# Of a block, whose operations are so many that a small one is all calls.
ELEMENTS_CPU, ELEMENTS_ELSEWHERE = 1 << 17, 1 << 24
LOW = 0xFFFFFFFF


class Scratch:
    """Memory that every block uses anew, by name: fresh pages would cost more than the sums."""

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.held: dict[str, Tensor] = {}
        self.views: dict[Hashable, Tensor] = {}

    def __call__(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor of this shape with anything in it, in the same place as all others of this name:
        what they held is lost, or seen in another shape."""
        view = self.views.get((name, shape))
        if view is None:
            size = torch.Size(shape).numel()
            flat = self.held.get(name)
            if flat is None or len(flat) < size:
                flat = self.like.new_empty(size, dtype=dtype or self.like.dtype)
                self.held[name] = flat
                self.views.clear()
            view = self.views[name, shape] = flat[:size].view(shape)
        return view

    def once(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """What ``make`` returned for this key; it may be a view of what ``self`` did."""
        found = self.views.get(key)
        if found is None:
            found = self.views[key] = make()
        return found

    def product(
        self, name: str, left_GRX: Tensor, right_GXC: Tensor, factor: float = 1.0
    ) -> Tensor:
        """factor left @ right in the memory of this name."""
        out = self(name, left_GRX.shape[0], left_GRX.shape[1], right_GXC.shape[2])
        return out.baddbmm_(left_GRX, right_GXC, beta=0, alpha=factor)


@dataclass(frozen=True)
class Block:
    """One of a walk's blocks: which, its (G, R, C), and whether no one before had these keys."""

    number: int
    shape: tuple[int, int, int]
    first: bool

    def give(self, to: Tensor, part: Tensor) -> None:
        """Add to what all blocks of these keys give to; the first finds anything there."""
        if self.first:
            to.copy_(part)
        else:
            to.add_(part)


class Walk:
    """The blocks of one attention, and what is masked and dropped in them.

    The last rows come first: what they need is enough for all others.

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
        elements = ELEMENTS_CPU if device.type == "cpu" else ELEMENTS_ELSEWHERE
        inner, outer = sorted((self.batch, self.heads), reverse=True)
        # Some rows, the number of columns that they see, and how many of I go together.
        self.spans: list[tuple[slice, int, int]] = []
        self.blocks: list[Block] = []
        for last in range(self.queries, 0, -self.rows):
            rows, columns = slice(max(0, last - self.rows), last), self.keys - self.queries + last
            r = rows.stop - rows.start
            step = min(inner, max(1, elements // (r * columns)))
            # Of one size, or nearly.
            step = -(-inner // -(-inner // step))
            self.spans.append((rows, columns, step))
            for i in (i for _ in range(outer) for i in range(0, inner, step)):
                shape = min(step, inner - i), r, columns
                self.blocks.append(Block(len(self.blocks), shape, last == self.queries))
        hidden = torch.full((self.rows, self.rows), -torch.inf, dtype=q_BHTD.dtype, device=device)
        self.unseen = hidden.triu(1)
        if drop is not None:
            heads = torch.arange(self.batch * self.heads, device=device) * self.keys
            places = torch.arange(self.keys - self.queries, self.keys, device=device)
            row = mix((mix((heads[:, None] + places + drop.low) & LOW) + drop.high) & LOW)
            self.row_hash = self.of_rows(row.int().view(self.batch, self.heads, self.queries, 1))
            self.column_hash = (torch.arange(self.keys, device=device) * GOLDEN).int()

    def of_rows(self, x_BHTD: Tensor) -> list[Tensor]:
        """What each block has of all queries, (G, R, ..)."""
        return [
            x_GRD
            for rows, _, step in self.spans
            for x_IRD in self._in_turn(x_BHTD)[:, :, rows].unbind(0)
            for x_GRD in torch.split(x_IRD, step)
        ]

    def of_columns(self, x_BHSD: Tensor) -> list[Tensor]:
        """What each block has of all keys, (G, C, ..)."""
        return [
            x_GCD
            for _, columns, step in self.spans
            for x_ICD in self._in_turn(x_BHSD)[:, :, :columns].unbind(0)
            for x_GCD in torch.split(x_ICD, step)
        ]

    def of_heads(self, x_HRS: Tensor) -> list[Tensor]:
        """What each block has of something that all sequences share, (1 or G, R, C), if it stands
        in the last rows and columns."""
        parts = []
        for rows, columns, step in self.spans:
            part = x_HRS[:, self.rows - rows.stop + rows.start :, self.keys - columns :]
            if self.by_head:
                parts += [x for x in torch.split(part, 1) for _ in range(0, self.batch, step)]
            else:
                parts += torch.split(part, step) * self.batch
        return parts

    def _in_turn(self, x_BHLD: Tensor) -> Tensor:
        """(O, I, ..)"""
        return x_BHLD.transpose(0, 1) if self.by_head else x_BHLD

    def mask(self, name: str, logits_GRC: Tensor) -> Tensor:
        """The logits, which stand in scratch memory of this name, -inf where a row does not see the
        column; they are written over."""
        g, r, c = logits_GRC.shape
        corner = self.new.once((name, "corner", g, r, c), lambda: logits_GRC[:, :, c - r :])
        corner.add_(self.new.once(("unseen", r), lambda: self.unseen[:r, :r]))
        return logits_GRC

    def kept(self, block: Block) -> Tensor:
        """1 where a weight is kept, 0 where it is dropped: ``Drop.kept``."""
        assert self.drop is not None
        c = block.shape[2]
        x = self.new("hash", *block.shape, dtype=torch.int32)
        column = self.new.once(("column", c), lambda: self.column_hash[:c])
        torch.add(self.row_hash[block.number], column, out=x)
        shifted = self.new("narrow", *block.shape, dtype=torch.int32)
        kept = reaches_int32_(x, shifted, self.drop.threshold)
        return self.new("kept", *block.shape).copy_(kept)


def by_token(like_BHLD: Tensor) -> Tensor:
    """(B, H, L, D) with anything in it, as ``Attention`` wants it: the heads of a token side by
    side."""
    b, h, length, d = like_BHLD.shape
    return like_BHLD.new_empty(b, length, h, d).transpose(1, 2)
