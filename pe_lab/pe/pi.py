from pydantic import PositiveFloat
from torch import Tensor

from pe_lab.pe.base import Dims
from pe_lab.pe.rope import Drop, Fraction, LogN, Pairing, Scale, StretchedRoPE


class PI(StretchedRoPE):
    """RoPE at positions divided by k, so that all fall within the trained ones.

        frequencies[m] = base^(-2m/D) / k

    A change to a trained ``rope`` at test time; trained so, it is RoPE with lower frequencies. ``k:
    null`` is the longest length over the trained one, so 1, plain RoPE, at the trained length.
    ``fraction``, ``drop`` and ``logn`` as in ``rope``. No parameters, any length. Not absolute;
    causal.

    Source: Chen 2023 (2306.15595); rope_type linear and proportional of Hugging Face transformers.
    """

    def __init__(
        self,
        dims: Dims,
        base: PositiveFloat,
        pairing: Pairing,
        k: Scale | None,
        logn: LogN,
        logn_clip: bool | None,
        fraction: Fraction,
        drop: Drop | None,
    ) -> None:
        super().__init__(dims, base, pairing, k, logn, logn_clip, fraction, drop)

    def stretched(self, frequencies_M: Tensor) -> Tensor:
        return frequencies_M / self.k
