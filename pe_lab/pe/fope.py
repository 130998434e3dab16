"""Fourier position embedding."""

import math
from typing import Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn

from pe_lab.pe.base import AttentionInputs, Dims, PositionalEncoding, by_position
from pe_lab.pe.functional import frequencies
from pe_lab.pe.rope import Pairing, check_pairs
from pe_lab.pe.rotation import rotate_queries_and_keys


class FoPE(PositionalEncoding):
    """Pairs multiplied by Fourier series of the position in the place of one frequency each.

    Of RoPE's frequencies base^(-2m/D) those with at least a rotation in the trained length L are
    kept, omega_w >= 2 pi / L. The pair m of q_i and k_i, read as a complex number, is multiplied by

        sum_w C_hwm cos(i omega_w) + sqrt(-1) sum_w S_hwm sin(i omega_w),   m < M
        1 + sqrt(-1) sin_pad,                                              M <= m < D/2

    with matrices C_h, S_h (kept, M) of each head and layer and M the number kept, at most D/4.
    Source: Hua 2024 (2412.17739); ``sin_pad: 0`` is its formula, which leaves the other pairs
    without a position, ``1`` its code. C and S start as in the code, at a matrix with one 1 in each
    column plus normal numbers of gain 0.3, columns divided by their sums; there they stay fixed
    (``learned: false``). A product of two series is no function of i - j: absolute. Any length;
    causal.
    """

    any_order = True
    both_ways = True
    frequencies: Tensor
    cosine: Tensor
    sine: Tensor

    def __init__(
        self,
        dims: Dims,
        base: PositiveFloat,
        pairing: Pairing,
        sin_pad: Literal[0, 1],
        learned: bool,
    ) -> None:
        super().__init__()
        check_pairs(dims)
        half, slowest = dims.head_dim // 2, 2 * math.pi / dims.train_len
        kept = sum(base ** (-m / half) >= slowest for m in range(half))
        if not kept:
            raise ValueError(
                f"base={base:g} has no frequency with a rotation in the trained length of "
                f"{dims.train_len}, which fope mixes: train on 7 tokens or more"
            )
        self.halves, self.sin_pad = pairing == "half", sin_pad
        mixed = min(kept, max(1, dims.head_dim // 4))
        self.constant = half - mixed
        # One frequency with the coefficient 1 is RoPE's.
        self.shift_invariant = kept == 1 and not learned
        theta = frequencies(dims.head_dim, base)[:kept]
        self.register_buffer("frequencies", theta, persistent=False)
        for name in ("cosine", "sine"):
            matrix = start(dims.n_heads, kept, mixed)
            if learned:
                self.register_parameter(name, nn.Parameter(matrix))
            else:
                # Drawn at random: it is kept with the weights.
                self.register_buffer(name, matrix)

    @by_position
    def rotate(
        self, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> tuple[Tensor, Tensor]:
        angle = (inputs.pos_k_BS[..., None] * self.frequencies)[:, None]
        wide = torch.promote_types(self.cosine.dtype, torch.float32)
        with torch.autocast(q_BHTD.device.type, enabled=False):
            real = angle.cos().to(wide) @ self.cosine
            imaginary = angle.sin().to(wide) @ self.sine
        rest = real.new_ones(*real.shape[:-1], self.constant)
        factor = torch.complex(
            torch.cat((real, rest), -1), torch.cat((imaginary, self.sin_pad * rest), -1)
        )
        return rotate_queries_and_keys(q_BHTD, k_BHSD, factor, self.halves)


def start(heads: int, kept: int, mixed: int) -> Tensor:
    """The initial matrices, (heads, kept, mixed)."""
    noise = nn.init.xavier_normal_(torch.empty(heads, kept, mixed), gain=0.3)
    step = math.ceil(kept / mixed)
    chosen = [(row, column) for column in range(mixed) if (row := column * step) < kept]
    for row, column in chosen:
        noise[:, row, column] += 1
    return noise / noise.sum(1, keepdim=True)
