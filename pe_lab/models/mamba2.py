"""Mamba-2. Shape letters as in linear_recurrent.py."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from pe_lab.models.attention import features_to_heads
from pe_lab.models.linear_recurrent import (
    EPSILON,
    Block,
    Decay,
    LinearRecurrentConfig,
    MatrixState,
    Mixer,
    ShortConv,
    scan,
)
from pe_lab.pe.functional import widened

LOWEST = 1.0


@dataclass(frozen=True, kw_only=True)
class Mamba2Config(LinearRecurrentConfig):
    """Mamba-2: a state-space model whose decay is one number for each head and token.

    Of each head, with u_t the input of the layer after its norm,

        x_t = silu(conv(W u) + b)_t              (W,)     of each head
        B_t, C_t likewise                        (D,)     the same for all heads
        dt_t = softplus(w . u_t + b')
        S_t = exp(-exp(A) dt_t) S_(t-1) + dt_t B_t x_t^T                         (D, W)
        o_t = S_t^T C_t + d x_t
        y_t = W_o RMSNorm(o_t * silu(W_g u_t))   all heads joined in the norm

    D is ``state_width``, W ``head_width``, and there are ``expansion`` d_model / W heads. d starts
    at 1. There is no feed-forward: two layers have about the weights of one of a transformer.
    Everything else as in LinearRecurrentConfig. There is no attention: an encoding can only change
    the input.

    Source: Dao and Gu 2024 (2405.21060), with D 128, W 64, expansion 2 and kernels of 4; one group
    of B and C, and exp(A) uniform from 1 to 16 at first, as in their code, state-spaces/mamba.
    """

    expansion: PositiveInt
    head_width: PositiveInt
    state_width: PositiveInt

    def __post_init__(self) -> None:
        if self.inner % self.head_width:
            raise ValueError(
                f"expansion * d_model={self.inner} is not divisible by head_width="
                f"{self.head_width}: choose a divisor"
            )

    @property
    def inner(self) -> int:
        """The width of all heads."""
        return self.expansion * self.d_model

    def weights(self) -> int:
        return self.n_layers * self.d_model * (3 * self.inner + 2 * self.state_width)

    def new_block(self) -> Block:
        return Block(self.d_model, StateSpace(self), None, self.dropout)


class StateSpace(Mixer):
    """The mixer of Mamba-2."""

    def __init__(self, cfg: Mamba2Config) -> None:
        super().__init__()
        self.n_heads = cfg.inner // cfg.head_width
        self.widths = cfg.inner, cfg.state_width, cfg.state_width
        self.xbc = nn.Linear(cfg.d_model, sum(self.widths), bias=False)
        self.dt = nn.Linear(cfg.d_model, self.n_heads, bias=False)
        self.gate = nn.Linear(cfg.d_model, cfg.inner, bias=False)
        self.conv = ShortConv(cfg.short_conv, sum(self.widths), bias=True)
        self.decay = Decay(self.n_heads, LOWEST)
        self.skip = nn.Parameter(torch.ones(self.n_heads))
        self.norm = nn.RMSNorm(cfg.inner, eps=EPSILON)
        self.out = nn.Linear(cfg.inner, cfg.d_model, bias=False)

    def forward(self, x_BTE: Tensor, cache: MatrixState | None) -> Tensor:
        xbc = self.conv(widened(self.xbc(x_BTE)), cache)
        x, b_BTD, c_BTD = xbc.split(self.widths, -1)
        x_BHTW = features_to_heads(x, self.n_heads)
        dt_BHT, log_decay = self.decay(self.dt(x_BTE))
        with torch.autocast(x_BTE.device.type, enabled=False):
            k, q, v = b_BTD[:, None], c_BTD[:, None], x_BHTW * dt_BHT[..., None]
            mixed = scan(q, k, v, log_decay, cache=cache) + self.skip[:, None, None] * x_BHTW
        mixed = mixed.transpose(1, 2).flatten(-2)
        return self.out(self.norm(mixed * F.silu(self.gate(x_BTE))))
