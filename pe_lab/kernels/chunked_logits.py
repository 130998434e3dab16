"""The logits of a block of query rows, and what their gradient means for what they are made of."""

import math
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from pe_lab.kernels.blocks import Block, Walk


class Content:
    """q.k / sqrt(D).

    ``backward`` of this and the other classes serves the block that ``logits`` was last asked for,
    may write over its argument, and adds to the gradients.
    """

    def __init__(self, walk: Walk, q_BHTD: Tensor, k_BHSD: Tensor, name: str = "logits") -> None:
        self.walk, self.name = walk, name
        self.scale = q_BHTD.shape[-1] ** -0.5
        self.q_OITD, self.k_OISD = walk.view(q_BHTD), walk.view(k_BHSD)
        self.k_OIDS = self.k_OISD.transpose(2, 3)

    @cached_property
    def grad_q(self) -> Tensor:
        """(B, H, T, D)"""
        return self.walk.zeros(self.walk.view(self.q_OITD))

    @cached_property
    def grad_k(self) -> Tensor:
        """(B, H, S, D)"""
        return self.walk.zeros(self.walk.view(self.k_OISD))

    def products(self, block: Block) -> Tensor:
        """The logits without the mask."""
        k = self.k_OIDS[block.outer, block.inner, :, : block.columns]
        return self.walk.new.product(self.name, block.of_rows(self.q_OITD), k, self.scale)

    def logits(self, block: Block) -> Tensor:
        return self.walk.mask(block, self.products(block))

    def backward(self, block: Block, grad_GRC: Tensor) -> None:
        product, view = self.walk.new.product, self.walk.view
        q, k = block.of_rows(self.q_OITD), block.of_columns(self.k_OISD)
        for_rows = product("for rows", grad_GRC, k, self.scale)
        block.of_rows(view(self.grad_q)).add_(for_rows)
        for_columns = product("for columns", grad_GRC.transpose(1, 2), q, self.scale)
        block.of_columns(view(self.grad_k)).add_(for_columns)


class Biased(Content):
    """The content and a bias for each head and distance.

    Args:
        bias_HN: for the distances 0, 1, ...
        learned: whether its gradient is wanted.
    """

    def __init__(
        self, walk: Walk, q_BHTD: Tensor, k_BHSD: Tensor, bias_HN: Tensor, learned: bool
    ) -> None:
        super().__init__(walk, q_BHTD, k_BHSD)
        self.learned, self.n = learned, bias_HN.shape[1]
        # What stands in the last block, and in part in every other: row r and column c are at
        # distance S - R + r - c, so that each row is the one below it moved by a column.
        h, r, s = len(bias_HN), walk.rows, walk.keys
        back = F.pad(bias_HN[:, :s].flip(-1), (0, r), value=-math.inf)
        bias_HRS = back.as_strided((h, r, s), (back.stride(0), 1, 1)).flip(1)
        self.bias_OIRS = walk.view(bias_HRS.expand(walk.batch, h, r, s))
        self.grad_HRS = torch.zeros_like(bias_HRS) if learned else None

    def logits(self, block: Block) -> Tensor:
        bias_IRC = self._part(self.bias_OIRS[block.outer, block.inner], block)
        return self.products(block).add_(bias_IRC)

    def backward(self, block: Block, grad_GRC: Tensor) -> None:
        if self.grad_HRS is not None:
            if self.walk.by_head:
                self._part(self.grad_HRS[block.outer], block).add_(grad_GRC.sum(0))
            else:
                self._part(self.grad_HRS[block.inner], block).add_(grad_GRC)
        super().backward(block, grad_GRC)

    def _part(self, x_XRS: Tensor, block: Block) -> Tensor:
        _, r, c = block.shape
        return x_XRS[..., self.walk.rows - r :, self.walk.keys - c :]

    def grad_bias(self) -> Tensor | None:
        """(H, N), when every block has added to it."""
        if self.grad_HRS is None:
            return None
        h, r, s = self.grad_HRS.shape
        moved = self.grad_HRS.new_zeros(h, r, s + r)
        moved.as_strided((h, r, s), (r * (s + r), s + r + 1, 1)).copy_(self.grad_HRS.flip(1))
        return F.pad(moved.sum(1)[:, :s].flip(-1), (0, self.n - s))


class Counted(Content):
    """The content and gate_q_i . e[p_ij], as ``pe_lab.pe.cope.CountAndPick`` has it.

    Args:
        gates: what the gates' logits are; None: the content itself.
        table_ND: e.
        learned: whether its gradient is wanted.
    """

    def __init__(
        self,
        walk: Walk,
        q_BHTD: Tensor,
        k_BHSD: Tensor,
        gates: Content | None,
        table_ND: Tensor,
        learned: bool,
    ) -> None:
        super().__init__(walk, q_BHTD, k_BHSD)
        self.gates = self if gates is None else gates
        self.table_ND, self.most = table_ND, len(table_ND) - 1
        self.grad_table_ND = torch.zeros_like(table_ND) if learned else None

    def logits(self, block: Block) -> Tensor:
        new, shape = self.walk.new, block.shape
        logits = self.products(block)
        gate_logits = logits if self.gates is self else self.gates.products(block)
        self.open = self.walk.close(block, torch.sigmoid(gate_logits, out=new("gates", *shape)))
        p = torch.cumsum(self.open.flip(-1), -1, out=new("positions", *shape)).flip(-1)
        p.clamp_(max=self.most)
        furthest = float(p[..., 0].max())
        if math.isnan(furthest):
            # A place has to be found all the same; the logits are no numbers either.
            p.nan_to_num_(nan=0.0)
            furthest = self.most
        self.used = self.table_ND[: int(furthest) + 2].expand(shape[0], -1, -1)
        gate_q = block.of_rows(self.gates.q_OITD)
        scores = new.product("scores", gate_q, self.used.transpose(1, 2))
        slopes = new("slopes", *scores.shape)
        torch.sub(scores[..., 1:], scores[..., :-1], out=slopes[..., :-1])
        slopes[..., -1] = 0
        # By way of 32 bits, which vector instructions convert to.
        self.whole = new("whole", *shape, dtype=torch.int64)
        self.whole.copy_(new("whole, narrow", *shape, dtype=torch.int32).copy_(p))
        self.fraction = p.frac_()
        self.slope = torch.gather(slopes, -1, self.whole, out=new("slope", *shape))
        term = torch.gather(scores, -1, self.whole, out=new("term", *shape))
        logits.add_(term.addcmul_(self.fraction, self.slope))
        return self.walk.mask(block, logits)

    def backward(self, block: Block, grad_GRC: Tensor) -> None:
        below = self.walk.new("term", *block.shape)
        # The gate at k is part of p_ij for every j <= k.
        steep = torch.mul(self.slope, grad_GRC, out=below)
        grad = torch.cumsum(steep, -1, out=self.slope)
        grad.mul_(self.open.addcmul_(self.open, self.open, value=-1))
        self._to_table(block, grad_GRC, below)
        if self.gates is self:
            grad_GRC.add_(grad)
        else:
            self.gates.backward(block, grad)
        super().backward(block, grad_GRC)

    def _to_table(self, block: Block, grad_GRC: Tensor, below: Tensor) -> None:
        """The gradient of gate_q_i . e[n], shared by the two whole numbers around a position."""
        n = self.used.shape[1]
        above = self.fraction.mul_(grad_GRC)
        torch.sub(grad_GRC, above, out=below)
        # Nothing is above the last row: its column is cut off.
        both = self.walk.new("grad scores", *block.shape[:2], n + 1).zero_()
        both.scatter_add_(-1, self.whole, below)
        both[..., 1:].scatter_add_(-1, self.whole, above)
        grad = both[..., :n]
        for_rows = self.walk.new.product("for rows", grad, self.used)
        block.of_rows(self.walk.view(self.gates.grad_q)).add_(for_rows)
        if self.grad_table_ND is not None:
            gate_q = block.of_rows(self.gates.q_OITD).flatten(0, 1)
            self.grad_table_ND[:n].addmm_(grad.flatten(0, 1).T, gate_q)
