import math
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor, nn

from pe_lab.pe.base import AttentionInputs, Dims, Kind, PositionalEncoding, by_position
from pe_lab.pe.functional import frequencies, refuse_where, rotate_pairs, unit_factors

Pairing = Literal["interleaved", "half"]
LogNMode = Literal["none", "train", "test"]
Drop = Literal["low", "high"]
Clip = Literal["hard", "soft"]
Scale = Annotated[float, Field(ge=1)]
Fraction = Annotated[float, Field(gt=0, le=1)]


class RoPE(PositionalEncoding):
    """Queries and keys, rotated pair by pair by angles that grow with the position.

        q'_im = q_im exp(sqrt(-1) i frequencies[m]),   k'_jm alike     pairs as complex numbers
        frequencies[m] = base^(-2m/D),   m = 0 .. D/2 - 1              (D/2,)

    So q_i . k_j depends on i - j. ``pairing: interleaved`` pairs features 2m and 2m + 1, as the
    paper and GPT-J. ``half`` pairs m and m + D/2, as GPT-NeoX and LLaMA: the same with the features
    in another order. Any length. Not absolute, unless ``logn`` is; causal.

    ``logn`` multiplies the query at position n - 1 by log n / log train length, here and in every
    change of this encoding. Attention then does not flatten over more keys than in training.

    - ``train``: always, for a model trained with it; from Su's blog, 8823 (2021).
    - ``test``: in evaluation only, for a model trained without it, and by at least 1; from Su's
      blog, 9706 (2023), where a dagger marks it.
    - ``logn_clip`` gives (``true``) or takes (``false``) that least factor of 1 to either.

    ``fraction`` below 1 rotates this share of the pairs, rounded down; the others carry content
    without a position. ``drop: null`` spreads the frequencies over fewer pairs (partial RoPE, as
    GPT-J). ``low`` leaves out the slowest of all D/2 (p-RoPE of Barbero 2024, 2410.06205), ``high``
    the fastest.

    ``clip`` acts on the n pairs with less than one rotation in the trained length. ``hard`` does
    not rotate them (HoPE, Chen 2024, 2410.21216). ``soft`` multiplies their frequencies by (1 +
    cos(pi j / (n - 1))) / 2, j = 0 .. n-1 (Clipped RoPE, Li 2026, 2602.05258, which fixes n).
    ``learned`` makes the frequencies parameters of each layer that start there.

    Source: Su 2021 (2104.09864).
    """

    shift_invariant = True
    reads_positions: Kind = float
    frequencies: Tensor

    def __init__(
        self,
        dims: Dims,
        base: PositiveFloat,
        pairing: Pairing,
        logn: LogNMode = "none",
        logn_clip: bool | None = None,
        fraction: Fraction = 1,
        drop: Drop | None = None,
        clip: Clip | None = None,
        learned: bool = False,
    ) -> None:
        super().__init__()
        check_keys(dims, logn, learned and (fraction < 1 or clip is not None))
        self.halves, self.logn, self.logn_clip = pairing == "half", logn, logn_clip
        if logn != "none" and logn_clip is None:
            self.logn_clip = logn == "test"
        self.train_len = dims.train_len
        self.shift_invariant = logn == "none"
        theta_M = rope_frequencies(dims, base, fraction, drop, clip)
        self.frequencies = (
            nn.Parameter(theta_M.to(torch.get_default_dtype()))
            if learned
            else nn.Buffer(theta_M, persistent=False)
        )

    @by_position
    def rotate(
        self, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> tuple[Tensor, Tensor]:
        factor_k = self.factors(inputs.pos_k_BS)
        # The queries are the last of the keys.
        factor_q = self.scale_queries(factor_k[:, :, -q_BHTD.shape[2] :], inputs.pos_q_BT)
        return (
            rotate_pairs(q_BHTD, factor_q, self.halves),
            rotate_pairs(k_BHSD, factor_k, self.halves),
        )

    def factors(self, pos_BT: Tensor) -> Tensor:
        """Complex factors of the pairs at these positions, (B, 1, T, D/2)."""
        return unit_factors(pos_BT, self.frequencies.double())

    def scale_queries(self, x_BHTD: Tensor, pos_q_BT: Tensor) -> Tensor:
        """Queries, or their factors, scaled by ``logn``."""
        if self.logn == "none" or (self.logn == "test" and self.training):
            return x_BHTD
        growth_BT = (pos_q_BT.double() + 1).log() / math.log(self.train_len)
        if self.logn_clip:
            growth_BT = growth_BT.clamp(min=1)
        return (x_BHTD * growth_BT[:, None, :, None]).to(x_BHTD.dtype)


def stretch_factor(dims: Dims, k: float | None) -> float:
    """The factor that stretches a trained RoPE: k, or the longest over the trained length."""
    return max(1.0, dims.longest / dims.train_len) if k is None else k


def rope_frequencies(
    dims: Dims, base: float, fraction: float, drop: Drop | None, clip: Clip | None
) -> Tensor:
    """The frequencies of the D/2 pairs, (D/2,); 0: a pair does not rotate."""
    pairs = dims.head_dim // 2
    rotated = math.floor(fraction * pairs)
    refuse_where(
        (
            not rotated,
            f"fraction={fraction:g} of {pairs} pairs leaves none that rotates: set fraction to "
            f"{1 / pairs:.3g} or more, or pe=none",
        ),
    )
    if drop is None:
        theta = torch.zeros(pairs, dtype=torch.float64)
        theta[:rotated] = frequencies(2 * rotated, base)
    else:
        theta = frequencies(dims.head_dim, base)
        theta[slice(rotated, None) if drop == "low" else slice(pairs - rotated)] = 0
    return theta if clip is None else clip_frequencies(theta, clip, dims.train_len)


def clip_frequencies(theta_M: Tensor, clip: Clip, train_len: int) -> Tensor:
    slow = (theta_M < 2 * math.pi / train_len) & (theta_M > 0)
    n = int(slow.sum())
    refuse_where(
        (
            clip == "hard" and n == int((theta_M > 0).sum()),
            f"clip=hard leaves no pair that rotates, as none does so once within the trained "
            f"length of {train_len}: set clip=null or train on longer sequences",
        ),
    )
    kept = torch.zeros(n, dtype=torch.float64)
    if clip == "soft":
        kept = (1 + torch.linspace(0, math.pi, n, dtype=torch.float64).cos()) / 2
    return theta_M.masked_scatter(slow, theta_M[slow] * kept)


def check_pairs(dims: Dims) -> None:
    """ValueError for heads of an odd width, which leave a feature without a partner."""
    if dims.head_dim % 2:
        even = "an even d_model / n_heads" if dims.head_width is None else "an even one"
        raise ValueError(f"{dims.head_width_reason}, but rotation needs pairs: choose {even}")


def check_keys(dims: Dims, logn: LogNMode, moved: bool) -> None:
    check_pairs(dims)
    refuse_where(
        (
            logn != "none" and dims.train_len < 2,
            f"logn={logn} divides by the logarithm of the trained length, which is 0 for "
            f"{dims.train_len} token: set logn=none or train on longer sequences",
        ),
        (
            moved,
            "learned=true would move the frequencies that fraction and clip fix: set "
            "fraction=1 and clip=null, or learned=false",
        ),
    )
