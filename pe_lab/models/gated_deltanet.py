"""Gated DeltaNet. Shape letters as in linear_recurrent.py."""

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

LOWEST = 0.01


@dataclass(frozen=True, kw_only=True)
class GatedDeltaNetConfig(LinearRecurrentConfig):
    """Gated DeltaNet: a linear RNN that overwrites what a key held, and forgets.

    Of each head, with x_t the input of the layer after its norm,

        q_t, k_t = unit(silu(conv(W x)))_t       v_t = silu(conv(W x))_t         a map each
        a_t      = exp(-exp(A) softplus(w . x_t + b))       beta_t = sigmoid(w' . x_t)
        S_t      = a_t (I - beta_t k_t k_t^T) S_(t-1) + beta_t k_t v_t^T         (D, W)
        o_t      = S_t^T q_t / sqrt(D)
        y_t      = W_o (RMSNorm(o_t) * silu(W_g x_t))       all heads joined in W_o

    D is ``head_width`` and W is ``expansion`` D. A SwiGLU feed-forward of width ``d_ff`` (null: 8/3
    d_model) follows. ``negative_eigenvalues`` doubles beta, so that a state can change sign, as
    tracking the state of parity needs (Grazzi 2024, 2411.12537). Everything else as in
    LinearRecurrentConfig. There is no attention: an encoding can only change the input.

    Source: Yang 2024 (2412.06464), with D 256, expansion 2 and kernels of 4; exp(A) starts uniform
    from 0.01 to 16, as in transformers.
    """

    n_heads: PositiveInt
    head_width: PositiveInt
    expansion: PositiveInt
    negative_eigenvalues: bool
    d_ff: PositiveInt | None

    @property
    def ff_width(self) -> int:
        return round(8 * self.d_model / 3) if self.d_ff is None else self.d_ff

    def weights(self) -> int:
        mixing = self.n_heads * self.head_width * (2 + 3 * self.expansion)
        return self.n_layers * self.d_model * (mixing + 3 * self.ff_width)

    def new_block(self) -> Block:
        return Block(self.d_model, GatedDelta(self), self.ff_width, self.dropout)


class GatedDelta(Mixer):
    """The mixer of Gated DeltaNet."""

    def __init__(self, cfg: GatedDeltaNetConfig) -> None:
        super().__init__()
        self.n_heads, self.most = cfg.n_heads, 2 if cfg.negative_eigenvalues else 1
        keys, w = cfg.n_heads * cfg.head_width, cfg.expansion * cfg.head_width
        self.widths = keys, keys, cfg.n_heads * w
        self.qkv = nn.Linear(cfg.d_model, sum(self.widths), bias=False)
        self.beta_decay = nn.Linear(cfg.d_model, 2 * cfg.n_heads, bias=False)
        self.gate = nn.Linear(cfg.d_model, cfg.n_heads * w, bias=False)
        self.conv = ShortConv(cfg.short_conv, sum(self.widths), bias=False)
        self.decay = Decay(cfg.n_heads, LOWEST)
        self.norm = nn.RMSNorm(w, eps=EPSILON)
        self.out = nn.Linear(cfg.n_heads * w, cfg.d_model, bias=False)

    def forward(self, x_BTE: Tensor, cache: MatrixState | None) -> Tensor:
        qkv = self.conv(widened(self.qkv(x_BTE)), cache).split(self.widths, -1)
        q, k, v = (features_to_heads(part, self.n_heads) for part in qkv)
        beta, a = self.beta_decay(x_BTE).chunk(2, -1)
        beta_BHT = self.most * widened(beta).sigmoid().transpose(1, 2)
        q = unit(q) * q.shape[-1] ** -0.5
        _, log_decay = self.decay(a)
        with torch.autocast(x_BTE.device.type, enabled=False):
            mixed_BTHW = scan(q, unit(k), v, log_decay, beta_BHT, cache).transpose(1, 2)
        return self.out(self.norm(mixed_BTHW).flatten(-2) * F.silu(self.gate(x_BTE)))


def unit(x: Tensor) -> Tensor:
    """x / |x|, by the published formula, which is finite at 0."""
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
