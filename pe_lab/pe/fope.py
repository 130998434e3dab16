import math
from typing import Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn

from pe_lab.pe.base import AttentionInputs, Dims, PositionalEncoding, by_position
from pe_lab.pe.functional import frequencies, rotate_queries_and_keys
from pe_lab.pe.rope import Pairing, check_pairs


class FoPE(PositionalEncoding):
    """Pairs of q and k, each multiplied by a Fourier series of the position.

        q'_im = z_im q_im,   k'_jm = z_jm k_jm           pairs m < D/2 as complex numbers
        z_im  = sum over w of (cosine[h, w, m] cos(i frequencies[w])
                               + sqrt(-1) sine[h, w, m] sin(i frequencies[w]))      m < M
        z_im  = 1 + sqrt(-1) sin_pad                                           M <= m < D/2

    ``frequencies`` are RoPE's base^(-2w/D) with at least one rotation in the trained length L, so
    at least 2 pi / L. M is their number, at most D/4. ``cosine`` and ``sine`` are (H, kept, M) in
    each layer. The product of two series is not a function of i - j: absolute. Any length; causal.

    ``sin_pad: 0`` is the paper's formula, which leaves the other pairs without a position; ``1`` is
    its code. ``learned: false`` leaves the matrices as they start, as the code does. They
    start as normal numbers of gain 0.3, plus a 1 in each column m with ceil(kept / M) m < kept.
    ``fourier_norm: true`` divides the columns by their sums, once, at the start. The code divides
    in each pass, which is the same where nothing is learned. The key is false in every published
    configuration. Runs from before this key, among them those of suite v1, have ``true``.

    Source: Hua 2024 (2412.17739), code TsinghuaC3I/Fourier-Position-Embedding.
    """

    reads_positions = float
    cosine: Tensor
    sine: Tensor

    def __init__(
        self,
        dims: Dims,
        base: PositiveFloat,
        pairing: Pairing,
        sin_pad: Literal[0, 1],
        learned: bool,
        fourier_norm: bool,
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
        self.shift_invariant = kept == 1 and fourier_norm and not learned
        self.frequencies = nn.Buffer(frequencies(dims.head_dim, base)[:kept], persistent=False)
        for name in ("cosine", "sine"):
            matrix = start(dims.n_heads, kept, mixed)
            if fourier_norm:
                matrix = matrix / matrix.sum(1, keepdim=True)
            # Drawn at random: a buffer is kept with the weights, too.
            setattr(self, name, nn.Parameter(matrix) if learned else nn.Buffer(matrix))

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
    return noise
