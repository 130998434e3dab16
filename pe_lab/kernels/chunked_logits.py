"""The logits of a block of query rows, and what their gradient means for what they are made of."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from pe_lab.kernels.blocks import Block, Walk, by_token

# Products like even sizes, and few of them leave fewer views to make.
EVEN = 16


class Content:
    """q.k / sqrt(D).

    ``backward`` of this and the other classes serves the block that ``logits`` was last asked for,
    and may write over its argument; every block has to come, in turn.
    """

    def __init__(self, walk: Walk, q_BHTD: Tensor, k_BHSD: Tensor, name: str = "logits") -> None:
        self.walk, self.name = walk, name
        self.scale = q_BHTD.shape[-1] ** -0.5
        self.q, self.k = walk.of_rows(q_BHTD), walk.of_columns(k_BHSD)
        self.like_q, self.like_k = q_BHTD, k_BHSD

    def expect_gradients(self) -> None:
        """Make ``grad_q`` and ``grad_k``, as ``by_token`` does; the backward fills them."""
        self.grad_q, self.grad_k = by_token(self.like_q), by_token(self.like_k)
        self.grads_q = self.walk.of_rows(self.grad_q)
        self.grads_k = self.walk.of_columns(self.grad_k)

    def products(self, block: Block) -> Tensor:
        """The logits without the mask."""
        q, k = self.q[block.number], self.k[block.number]
        return self.walk.new.product(self.name, q, k.transpose(1, 2), self.scale)

    def logits(self, block: Block) -> Tensor:
        return self.walk.mask(self.name, self.products(block))

    def backward(self, block: Block, grad_GRC: Tensor, *more: Tensor) -> None:
        """``more``: two factors of which the product is part of the gradient of q."""
        product, n = self.walk.new.product, block.number
        for_rows = product("for rows", grad_GRC, self.k[n], self.scale)
        if more:
            for_rows.baddbmm_(*more)
        self.grads_q[n].copy_(for_rows)
        for_columns = product("for columns", grad_GRC.transpose(1, 2), self.q[n], self.scale)
        block.give(self.grads_k[n], for_columns)


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
        self.n = bias_HN.shape[1]
        # What stands in the last block, and in part in every other: row r and column c are at
        # distance S - R + r - c, so that each row is the one below it moved by a column.
        h, r, s = len(bias_HN), walk.rows, walk.keys
        back = F.pad(bias_HN[:, :s].flip(-1), (0, r), value=-math.inf)
        bias_HRS = back.as_strided((h, r, s), (back.stride(0), 1, 1)).flip(1)
        self.bias = walk.of_heads(bias_HRS)
        self.grad_HRS = torch.zeros_like(bias_HRS) if learned else None
        self.grads = None if self.grad_HRS is None else walk.of_heads(self.grad_HRS)

    def logits(self, block: Block) -> Tensor:
        return self.products(block).add_(self.bias[block.number])

    def backward(self, block: Block, grad_GRC: Tensor, *more: Tensor) -> None:
        if self.grads is not None:
            part = grad_GRC.sum(0, keepdim=True) if self.walk.by_head else grad_GRC
            self.grads[block.number].add_(part)
        super().backward(block, grad_GRC, *more)

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
        self.most = len(table_ND) - 1
        # Above the last row stands itself: no slope there, and no fraction.
        self.table_MD = torch.cat((table_ND, table_ND[-1:]))
        self.grad_table_MD = torch.zeros_like(self.table_MD) if learned else None

    def expect_gradients(self) -> None:
        super().expect_gradients()
        if self.gates is not self:
            self.gates.expect_gradients()

    def logits(self, block: Block) -> Tensor:
        new, (g, r, c) = self.walk.new, block.shape
        logits = super().logits(block)
        gate_logits = logits if self.gates is self else self.gates.logits(block)
        self.open = torch.sigmoid(gate_logits, out=new("gates", g, r, c))
        p = self.open.flip(-1).cumsum_(-1).flip(-1)
        if c > self.most:
            p.clamp_(max=self.most)
        furthest = float(p[:, :, 0].max())
        if math.isnan(furthest):
            # A place has to be found all the same; the logits are no numbers either.
            p.nan_to_num_(nan=0.0)
            furthest = self.most
        # Twice 16: one for what is cut off, one for the row above.
        self.m = m = min(int(furthest) // EVEN * EVEN + 2 * EVEN, self.most + 2)
        used = new.once(("used", g, m), lambda: self.table_MD[:m].T.expand(g, -1, -1))
        new.product("scores", self.gates.q[block.number], used)
        # In one piece: what this makes of a row's last number is never looked up.
        size = g * r * m
        scores, slopes = new("scores", size), new("slopes", size)
        upper = new.once(("upper", size), lambda: scores[1:])
        lower = new.once(("lower", size), lambda: scores[:-1])
        torch.sub(upper, lower, out=new.once(("steps", size), lambda: slopes[:-1]))
        # In 32 bits, which vector instructions convert to.
        whole = new("whole", g, r, c, dtype=torch.int32).copy_(p)
        whole.add_(new.once(("starts", g, r, m), lambda: self._starts(g, r, m)))
        at, slope, term = (new(name, g * r * c) for name in ("whole", "slope", "term"))
        torch.index_select(slopes, 0, at, out=slope)
        torch.index_select(scores, 0, at, out=term)
        self.fraction, self.slope = p.frac_(), new("slope", g, r, c)
        return logits.add_(new("term", g, r, c)).addcmul_(self.fraction, self.slope)

    def _starts(self, g: int, r: int, m: int) -> Tensor:
        """Where the rows of (G, R, M) begin."""
        at = torch.arange(0, g * r * m, m, dtype=torch.int32, device=self.table_MD.device)
        return at.view(g, r, 1)

    def backward(self, block: Block, grad_GRC: Tensor, *more: Tensor) -> None:
        # The gate at k is part of p_ij for every j <= k.
        grad = self.slope.mul_(grad_GRC).cumsum_(-1)
        grad = torch.ops.aten.sigmoid_backward.grad_input(grad, self.open, grad_input=grad)
        more = self._to_table(block, grad_GRC)
        if self.gates is self:
            super().backward(block, grad_GRC.add_(grad), *more)
        else:
            self.gates.backward(block, grad, *more)
            super().backward(block, grad_GRC)

    def _to_table(self, block: Block, grad_GRC: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient of gate_q_i . e[n], shared by the two whole numbers around a position; what
        of it is to be multiplied for the gradient of gate_q."""
        new, (g, r, c), m = self.walk.new, block.shape, self.m
        at = new("at", g * r * c, dtype=torch.int64).copy_(new("whole", g * r * c))
        grad, above = new("scores", g * r * m), new("slopes", g * r * m)
        grad.zero_().scatter_add_(0, at, grad_GRC.view(-1))
        above.zero_().scatter_add_(0, at, self.fraction.mul_(grad_GRC).view(-1))
        grad.sub_(above)[1:].add_(above[:-1])
        grad_GRM = new("scores", g, r, m)
        if self.grad_table_MD is not None:
            gate_q = self.gates.q[block.number].flatten(0, 1)
            self.grad_table_MD[:m].addmm_(grad_GRM.flatten(0, 1).T, gate_q)
        return grad_GRM, new.once(("table", g, m), lambda: self.table_MD[:m].expand(g, -1, -1))

    def grad_table(self) -> Tensor | None:
        """(N, D), when every block has added to it."""
        return None if self.grad_table_MD is None else self.grad_table_MD[:-1]
