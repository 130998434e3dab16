import math

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from pe_lab.pe.base import AttentionInputs, Dims, PositionalEncoding, replaces_content
from pe_lab.pe.conv import check_taps
from pe_lab.pe.functional import causal_filter

CHUNK = 16


class PaTH(PositionalEncoding):
    """Keys pass through one Householder-like matrix for each token on the way to the query.

        logits[i, j] = k_j^T H_(j+1) H_(j+2) .. H_i q_i / sqrt(D)
        H_t    = I - beta_t w_t w_t^T                                  (D, D), for each head
        beta_t = 2 sigmoid(strength(x_t))                              in (0, 2)
        w_t    = u_t / |u_t|,   u = silu(filter * direction(x))        a unit vector

    H_i acts on q_i first; for j = i there is none. H_t projects, reflects or lets pass. x is the
    attention's input, and ``filter`` a causal convolution of each feature over ``conv`` tokens.
    Weights start uniform in +-1/sqrt(fan in), biases at 0. Only the order of the tokens counts. Any
    length. Not absolute; causal: only the tokens between key and query act.

    - ``rank``: ``direction`` is a product of two matrices, (H D, rank) and (rank, E); null: one
      full matrix. ``conv: 1`` reads the token alone.
    - ``silu: false`` leaves out the activation, which the code has and the paper does not name.
    - ``forget: true`` is the paper's PaTH-FoX: it adds log f_(j+1) + .. + log f_i to the logits, as
      ``fox`` does. The published kernel divides that sum by sqrt(D) too.

    Exact and parallel: carried back past the tokens t of a chunk, a query q loses the sum of a_t
    w_t. There (I + strictly upper(diag(beta) W W^T)) a = diag(beta) W q: one triangular solve for
    all queries. Time and memory are of the order of T S (D + CHUNK).

    Source: Yang 2025 (2505.16381) and its authors' code (flash-linear-attention).
    """

    shift_invariant = True
    reads_positions = None

    def __init__(
        self,
        dims: Dims,
        rank: PositiveInt | None,
        conv: PositiveInt,
        silu: bool,
        forget: bool,
    ) -> None:
        super().__init__()
        check_taps(dims, "conv", conv)
        width, heads, all_heads = dims.d_model, dims.n_heads, dims.heads_width
        self.direction: nn.Module = nn.Linear(width, all_heads, bias=False)
        if rank is not None:
            self.direction = nn.Sequential(
                nn.Linear(width, rank, bias=False), nn.Linear(rank, all_heads, bias=False)
            )
        # Row n weighs the token conv - 1 - n back.
        self.filter = nn.Parameter(torch.empty(conv, all_heads).uniform_(-1, 1) / math.sqrt(conv))
        self.silu = silu
        self.strength = nn.Linear(width, heads)
        self.gate = nn.Linear(width, heads) if forget else None
        for linear in (self.strength, self.gate):
            if linear is not None:
                nn.init.zeros_(linear.bias)

    @replaces_content
    def logits(
        self, content_BHTS: Tensor, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> Tensor:
        t = q_BHTD.shape[2]
        # A product of hundreds of matrices and a triangular solve: no half precision here.
        wide = torch.promote_types(q_BHTD.dtype, torch.float32)
        w_BHSD, beta_BHS = self.reflections(inputs, wide)
        with torch.autocast(q_BHTD.device.type, enabled=False):
            q_BHTD = q_BHTD.to(wide) / math.sqrt(q_BHTD.shape[-1])
            logits_BHTS = path_logits(q_BHTD, k_BHSD.to(wide), w_BHSD, beta_BHS)
        decay_BHS = self.log_decay(inputs, wide)
        if decay_BHS is not None:
            logits_BHTS = logits_BHTS + decay_BHS[..., -t:, None] - decay_BHS[:, :, None, :]
        return logits_BHTS

    def reflections(self, inputs: AttentionInputs, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The vectors w and the strengths beta of every key."""
        u_BSE = causal_filter(self.direction(inputs.x_BSE), self.filter)
        u_BSE = F.silu(u_BSE) if self.silu else u_BSE
        u_BHSD = u_BSE.view(*u_BSE.shape[:2], inputs.k_BHSD.shape[1], -1).transpose(1, 2)
        beta_BHS = self.strength(inputs.x_BSE).transpose(1, 2)
        with torch.autocast(u_BHSD.device.type, enabled=False):
            u_BHSD = u_BHSD.to(dtype)
            w_BHSD = u_BHSD * (u_BHSD.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
            return w_BHSD, 2 * beta_BHS.to(dtype).sigmoid()

    def log_decay(self, inputs: AttentionInputs, dtype: torch.dtype) -> Tensor | None:
        """The sum log f_0 + .. + log f_j of the forget gates, (B, H, S); None without them."""
        if self.gate is None:
            return None
        return F.logsigmoid(self.gate(inputs.x_BSE).to(dtype)).cumsum(1).transpose(1, 2)

    def trace(self, logits_BHTS: Tensor, inputs: AttentionInputs) -> dict[str, Tensor]:
        """``beta`` of each token, and its ``forget gate`` f where there is one."""
        traced = {"beta": 2 * self.strength(inputs.x_BSE).sigmoid()}
        if self.gate is not None:
            traced["forget gate"] = self.gate(inputs.x_BSE).sigmoid()
        return {name: each_BSH.transpose(1, 2)[:, :, None] for name, each_BSH in traced.items()}


def path_logits(q_BHTD: Tensor, k_BHSD: Tensor, w_BHSD: Tensor, beta_BHS: Tensor) -> Tensor:
    """The logits k_j^T H_{j+1} .. H_i q_i, (B, H, T, S). Those at j > i mean nothing."""
    t, s = q_BHTD.shape[2], k_BHSD.shape[2]
    carried = q_BHTD[:, :, :0]  # queries from later chunks, carried past all tokens after this one
    columns: list[Tensor] = []
    for start in reversed(range(0, s, CHUNK)):
        here = slice(start, start + CHUNK)
        k, w, beta = k_BHSD[:, :, here], w_BHSD[:, :, here], beta_BHS[:, :, here, None]
        # The first query of this chunk, or of all.
        first = max(start - (s - t), 0)
        carried = torch.cat((q_BHTD[:, :, first : t - carried.shape[2]], carried), 2)
        # The tokens up to its position act on a query of this chunk, all of them on a later one.
        met = beta * (w @ carried.mT).triu(start - (s - t) - first)
        system = beta * (w @ w.mT).triu(1)
        lost = torch.linalg.solve_triangular(system, met, upper=True, unitriangular=True)
        column = carried @ k.mT - lost.mT @ (k @ w.mT).triu(1).mT
        columns.append(F.pad(column, (0, 0, first, 0)))
        carried = carried - lost.mT @ w
    return torch.cat(columns[::-1], -1)
