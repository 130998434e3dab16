"""Rotary position embedding."""

import math
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor, nn

from pe_lab.pe.base import AttentionInputs, Dims, PositionalEncoding, by_position
from pe_lab.pe.rope_frequencies import Clip, Drop, rope_frequencies
from pe_lab.pe.rotation import Rotation, rotate_pairs, unit_factors

Pairing = Literal["interleaved", "half"]
LogN = Literal["none", "train", "test"]
Scale = Annotated[float, Field(ge=1)]


class RoPE(PositionalEncoding):
    """Queries and keys, rotated pair by pair by angles that grow with the position.

    The pair m of q_i and k_i is rotated by i base^(-2m/D), m = 0..D/2-1, so that q_i . k_j
    depends on i - j. Source: Su 2021 (2104.09864). ``pairing: interleaved`` pairs features 2m and
    2m + 1, as the paper and GPT-J; ``half`` pairs m and m + D/2, as GPT-NeoX and LLaMA: the
    same encoding with the features in another order. Any length. Not absolute,
    unless ``logn`` is; causal.

    ``logn`` multiplies the query at position n - 1 by log n / log train length, here and in every
    change of this encoding, so that attention does not flatten over more keys than in training.
    ``train``: always, in training too, for a model trained with it; from Su's blog, 8823 (2021).
    ``test``: in evaluation only, for a model trained without it, and by 1 at the least, so that
    nothing changes within the trained length; from Su's blog, 9706 (2023), where it is marked with
    a dagger. ``logn_clip`` gives (``true``) or takes (``false``) that least factor of 1 to either:
    with ``logn: train`` and ``logn_clip: true`` training is as without ``logn``, unless positions
    pass the trained length there.

    ``fraction`` below 1 rotates this share of the pairs, rounded down; the others are content
    without a position. ``drop: null`` spreads the frequencies over fewer pairs (partial RoPE, as
    GPT-J); ``low`` leaves out the slowest of all D/2, ``high`` the fastest. p-RoPE of Barbero 2024
    (2410.06205) is ``drop: low``. ``clip`` acts on the pairs with less than one rotation in the
    trained length L, theta < 2 pi / L: ``hard`` does not rotate them (HoPE, Chen 2024,
    2410.21216), ``soft`` multiplies the frequencies of these n pairs by (1 + cos(pi j / (n - 1)))
    / 2, j = 0..n-1 (Clipped RoPE, Li 2026, 2602.05258, which fixes n). ``learned`` makes the
    frequencies parameters of each layer that start there.
    """

    shift_invariant = True
    frequencies: Tensor

    def __init__(
        self,
        dims: Dims,
        base: PositiveFloat,
        pairing: Pairing,
        logn: LogN = "none",
        logn_clip: bool | None = None,
        fraction: Annotated[float, Field(gt=0, le=1)] = 1,
        drop: Drop | None = None,
        clip: Clip | None = None,
        learned: bool = False,
    ) -> None:
        super().__init__()
        check_pairs(dims)
        if logn == "none" and logn_clip is not None:
            raise ValueError(
                f"logn_clip={str(logn_clip).lower()} has no effect with logn=none: set logn=train "
                "or logn=test, or logn_clip=null"
            )
        if logn != "none" and dims.train_len < 2:
            raise ValueError(
                f"logn={logn} divides by the logarithm of the trained length, which is 0 for "
                f"{dims.train_len} token: set logn=none or train on longer sequences"
            )
        self.halves, self.logn = pairing == "half", logn
        self.logn_clip = logn == "test" if logn_clip is None else logn_clip
        self.train_len = dims.train_len
        self.shift_invariant = self.any_order = logn == "none"
        self.needs_softmax = None if logn == "none" else f"logn={logn}"
        # What it counts are the keys behind a query.
        self.both_ways = logn == "none"
        theta_M = rope_frequencies(dims, base, fraction, drop, clip)
        self.learned = learned
        if not learned:
            self.register_buffer("frequencies", theta_M, persistent=False)
        elif fraction < 1 or clip is not None:
            raise ValueError(
                "learned=true would move the frequencies that fraction and clip fix: set "
                "fraction=1 and clip=null, or learned=false"
            )
        else:
            self.frequencies = nn.Parameter(theta_M.to(torch.get_default_dtype()))

    def null_values(self) -> dict[str, Any]:
        return {} if self.logn == "none" else {"logn_clip": self.logn_clip}

    @by_position
    def rotate(
        self, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> tuple[Tensor, Tensor]:
        rotation = self.rotation(inputs)
        return (
            rotate_pairs(q_BHTD, rotation.q, rotation.halves),
            rotate_pairs(k_BHSD, rotation.k, rotation.halves),
        )

    def rotation(self, inputs: AttentionInputs) -> Rotation:
        """What ``rotate`` multiplies queries and keys by."""
        factor_k = self.factors(inputs.pos_k_BS)
        # The queries are the last of the keys.
        last = factor_k[:, :, -inputs.q_BHTD.shape[2] :]
        factor_q = self.scale_queries(last, inputs.pos_q_BT)
        return Rotation(factor_q, factor_k, self.halves)

    def factors(self, pos_BT: Tensor) -> Tensor:
        """Complex factors of the pairs at these positions, (B, 1, T, D/2)."""
        theta_M = self.frequencies.double() if self.learned else self.frequencies
        return unit_factors(pos_BT, theta_M)

    def scale_queries(self, x_BHTD: Tensor, pos_q_BT: Tensor) -> Tensor:
        """Queries, or their factors, scaled by ``logn``."""
        if self.logn == "none" or (self.logn == "test" and self.training):
            return x_BHTD
        growth_BT = (pos_q_BT.double() + 1).log() / math.log(self.train_len)
        if self.logn_clip:
            growth_BT = growth_BT.clamp(min=1)
        return (x_BHTD * growth_BT[:, None, :, None]).to(x_BHTD.dtype)


class StretchedRoPE(RoPE):
    """The base of the changes of RoPE that stretch its angles for sequences ``k`` times as long as
    in training."""

    at_test_time = True

    def __init__(
        self,
        dims: Dims,
        base: PositiveFloat,
        pairing: Pairing,
        k: Scale | None,
        logn: LogN,
        logn_clip: bool | None,
    ) -> None:
        super().__init__(dims, base, pairing, logn, logn_clip)
        self.k = scale(dims, k)
        self.frequencies = self.stretched(self.frequencies)

    def null_values(self) -> dict[str, Any]:
        return super().null_values() | {"k": self.k}

    def stretched(self, frequencies_M: Tensor) -> Tensor:
        """The frequencies of the D/2 pairs, stretched by ``k``."""
        return frequencies_M


def scale(dims: Dims, k: float | None) -> float:
    """By how much a trained RoPE is stretched: k, or longest over trained length."""
    return max(1.0, dims.longest / dims.train_len) if k is None else k


def check_pairs(dims: Dims) -> None:
    """Heads of an odd width leave a feature without a partner."""
    if dims.head_dim % 2:
        raise ValueError(
            f"{dims.head_width_reason}, but rotation needs pairs: choose "
            + ("an even d_model / n_heads" if dims.head_width is None else "an even one")
        )
