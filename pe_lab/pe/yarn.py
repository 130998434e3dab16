import math
from typing import Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor

from pe_lab.pe.base import Dims
from pe_lab.pe.rope import LogN, Pairing, Scale, StretchedRoPE


class YaRN(StretchedRoPE):
    """RoPE interpolated pair by pair, by the rotations that each makes within the trained length.

        frequencies[m] = base^(-2m/D) ((1 - g_m) / k + g_m)
        g_m            = (r_m - slow) / (fast - slow), clamped to [0, 1]
        logits         = q_i . k_j / sqrt(D) (0.1 ln k + 1)^2

    r_m are the rotations of pair m within the trained length: fast pairs keep their frequency, slow
    ones are interpolated by k. ``temperature: false`` leaves out the factor of the logits
    ("NTK-by-parts"). ``ramp: pairs`` lets g fall linearly with m instead, between the pairs of
    ``fast`` and ``slow`` rotations, rounded outwards; ``pairs_unrounded`` does not round. A change
    to a trained ``rope`` at test time or before some fine-tuning. ``k: null`` is the longest length
    over the trained one, so 1, plain RoPE, at the trained length. ``logn`` as in ``rope``. No
    parameters, any length. Not absolute; causal.

    Source: Peng 2023 (2309.00071); ``ramp: pairs`` is its published code and rope_type yarn of
    Hugging Face transformers, ``pairs_unrounded`` that with truncate=false (gpt-oss). Their
    rope_type llama3 (Llama 3.1) is ``slow: 1``, ``fast: 4`` and ``temperature: false``.
    """

    def __init__(
        self,
        dims: Dims,
        base: PositiveFloat,
        pairing: Pairing,
        ramp: Literal["rotations", "pairs", "pairs_unrounded"],
        slow: PositiveFloat,
        fast: PositiveFloat,
        temperature: bool,
        k: Scale | None,
        logn: LogN,
        logn_clip: bool | None,
    ) -> None:
        super().__init__(dims, base, pairing, k, logn, logn_clip)
        if fast <= slow:
            raise ValueError(
                f"fast={fast:g} is not larger than slow={slow:g}: set it to more rotations"
            )
        if ramp == "rotations":
            rotations = dims.train_len * self.frequencies / (2 * math.pi)
            kept = ((rotations - slow) / (fast - slow)).clamp(0, 1)
        else:
            kept = kept_by_pair(dims, base, slow, fast, ramp == "pairs")
        self.frequencies = self.frequencies * ((1 - kept) / self.k + kept)
        self.attention_factor = 0.1 * math.log(self.k) + 1 if temperature else 1.0
        if temperature and self.needs_softmax is None:
            self.needs_softmax = "temperature=true"

    def factors(self, pos_BT: Tensor) -> Tensor:
        # Queries and keys alike: the logits are multiplied by its square.
        return super().factors(pos_BT) * self.attention_factor


def kept_by_pair(dims: Dims, base: float, slow: float, fast: float, rounded: bool) -> Tensor:
    """The share g of each pair, by its number."""
    if base <= 1:
        raise ValueError(
            f"base={base:g} rotates no pair more slowly than another, which a ramp by pairs "
            "needs: set base above 1 or ramp=rotations"
        )
    width = dims.head_dim

    def pair_of(rotations: float) -> float:
        return width * math.log(dims.train_len / (rotations * 2 * math.pi)) / (2 * math.log(base))

    first, last = pair_of(fast), pair_of(slow)
    if rounded:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    # Wide enough not to divide by zero, as the published code.
    length = last - first or 0.001
    ramp = (torch.arange(width // 2, dtype=torch.float64) - first) / length
    return 1 - ramp.clamp(0, 1)
