import math

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn

from pe_lab.pe.base import Dims
from pe_lab.pe.functional import unit_factors
from pe_lab.pe.rope import Fraction, LogN, Pairing, Scale, StretchedRoPE


class LongRoPE(StretchedRoPE):
    """RoPE with a divisor for each pair's frequency, another one beyond the trained length.

        frequencies[m] = base^(-2m/D) / short[m]      sequences up to the trained length
                         base^(-2m/D) / long[m]       longer ones
        q'_im          = attention_factor q_im exp(sqrt(-1) i frequencies[m]),   k'_jm alike
        attention_factor = sqrt(1 + ln k / ln train length)

    All tokens are rotated as the whole sequence demands, so a key cache is refused unless ``short``
    and ``long`` are equal. The source searches them for each model. ``null`` is 1 for ``short`` and
    k for ``long``, which is ``pi`` with a temperature. ``k: null`` is the longest length over the
    trained one. ``fraction`` and ``logn`` as in ``rope``. No parameters, any length. Not absolute,
    unless ``short`` differs from ``long``; causal but for that choice.

    Source: Ding 2024 (2402.13753), as in Phi-3 and rope_type longrope of Hugging Face transformers.
    """

    def __init__(
        self,
        dims: Dims,
        base: PositiveFloat,
        pairing: Pairing,
        short: list[PositiveFloat] | None,
        long: list[PositiveFloat] | None,
        attention_factor: PositiveFloat | None,
        k: Scale | None,
        logn: LogN,
        logn_clip: bool | None,
        fraction: Fraction,
    ) -> None:
        super().__init__(dims, base, pairing, k, logn, logn_clip, fraction)
        if attention_factor is None:
            attention_factor = _temperature(self.k, dims.train_len)
        self.attention_factor = attention_factor
        if attention_factor != 1 and self.needs_softmax is None:
            self.needs_softmax = f"attention_factor={attention_factor:g}"
        pairs, rotated = dims.head_dim // 2, math.floor(fraction * (dims.head_dim // 2))
        both = [
            divisors(key, found, otherwise, rotated) + [1.0] * (pairs - rotated)
            for key, found, otherwise in (("short", short, 1.0), ("long", long, self.k))
        ]
        self.divisors = nn.Buffer(torch.tensor(both, dtype=torch.float64), persistent=False)
        # Pairs that do not rotate are not scaled either.
        lengths = [attention_factor] * rotated + [1.0] * (pairs - rotated)
        self.lengths = nn.Buffer(torch.tensor(lengths, dtype=torch.float64), persistent=False)
        self.equal = both[0] == both[1]
        if not self.equal:
            self.whole_sequence = "long=null" if long is None else "long=[..]"
            self.shift_invariant = self.any_order = self.fractional = False

    @property
    def rotates_by_position(self) -> bool:
        return self.equal and super().rotates_by_position

    def factors(self, pos_BT: Tensor) -> Tensor:
        # The queries are the last of the keys: both end at the last position.
        longer_B = (pos_BT.amax(-1) >= self.train_len).long()
        frequencies_B1M = (self.frequencies / self.divisors[longer_B])[:, None]
        return unit_factors(pos_BT, frequencies_B1M) * self.lengths


def divisors(key: str, found: list[float] | None, otherwise: float, rotated: int) -> list[float]:
    """Those of the pairs that rotate."""
    if found is not None and len(found) != rotated:
        raise ValueError(
            f"{key} has {len(found)} numbers, but {rotated} pairs of features rotate: give "
            f"{rotated}, or {key}=null"
        )
    return [otherwise] * rotated if found is None else found


def _temperature(k: float, train_len: int) -> float:
    if k > 1 and train_len < 2:
        raise ValueError(
            "attention_factor=null divides by the logarithm of the trained length, which is 0 for "
            "1 token: set attention_factor=1, or train on longer sequences"
        )
    return math.sqrt(1 + math.log(k) / math.log(train_len)) if k > 1 else 1.0
