"""RoPE, stretched for sequences ``k`` times as long as in training: a change at test time.

Each class is RoPE with other frequencies (D/2,).
"""

import math
from typing import Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn

from pe_lab.pe.base import Dims
from pe_lab.pe.functional import unit_factors
from pe_lab.pe.rope import Drop, Fraction, LogNMode, Pairing, RoPE, Scale, stretch_factor


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
        logn: LogNMode,
        logn_clip: bool | None,
        fraction: Fraction,
        drop: Drop | None,
    ) -> None:
        super().__init__(dims, base, pairing, logn, logn_clip, fraction, drop)
        self.k = stretch_factor(dims, k)
        self.frequencies = self.stretch(self.frequencies)

    def stretch(self, frequencies_M: Tensor) -> Tensor:
        """The frequencies of the D/2 pairs, stretched by ``k``."""
        return frequencies_M


class PI(StretchedRoPE):
    """RoPE at positions divided by k, so that all fall within the trained ones.

        frequencies[m] = base^(-2m/D) / k

    A change to a trained ``rope`` at test time; trained so, it is RoPE with lower frequencies. ``k:
    null`` is the longest length over the trained one, so 1, plain RoPE, at the trained length.
    ``fraction``, ``drop`` and ``logn`` as in ``rope``. No parameters, any length. Not absolute;
    causal.

    Source: Chen 2023 (2306.15595); rope_type linear and proportional of Hugging Face transformers.
    """

    def stretch(self, frequencies_M: Tensor) -> Tensor:
        return frequencies_M / self.k


class NTKOld(StretchedRoPE):
    """RoPE with a larger base: fast pairs keep their angles, the slowest rotates k times slower.

        frequencies[m] = base'^(-2m/D),   base' = base k^(D / (D - 2))

    ``variant: 9706`` has base' = base k, so the slowest pair rotates k^(1 - 2/D) times slower. A
    change to a trained ``rope`` at test time. ``k: null`` is the longest length over the trained
    one, so 1, plain RoPE, at the trained length. ``logn`` as in ``rope``. No parameters, any
    length. Not absolute; causal.

    Source: Su's blog, 9675 (2023), and Su's blog, 9706 (2023), after bloc97, 2023.
    """

    def __init__(
        self,
        dims: Dims,
        base: PositiveFloat,
        pairing: Pairing,
        variant: Literal[9675, 9706],
        k: Scale | None,
        logn: LogNMode,
        logn_clip: bool | None,
    ) -> None:
        power = base_power(dims)
        stretched = base * stretch_factor(dims, k) ** (power if variant == 9675 else 1)
        super().__init__(dims, stretched, pairing, k, logn, logn_clip, 1, None)


def base_power(dims: Dims) -> float:
    """The power p for which a base times k^p makes the slowest pair k times slower."""
    if dims.head_dim == 2:
        raise ValueError(
            f"{dims.head_width_reason}, whose only pair has the same angle with every base: "
            "choose wider heads, or pe=pi"
        )
    return dims.head_dim / (dims.head_dim - 2)


class NTKFixed(StretchedRoPE):
    """RoPE written in a larger radix: every pair is interpolated, the slower the more.

        frequencies[m] = 1 / (lam (beta lam)^m),   m = 0 .. D/2 - 1
        beta = base^(2/D),   lam = k^(2/D)

    The fastest pair rotates k^(2/D) times slower, the slowest k times. A change to a trained
    ``rope`` at test time. ``k: null`` is the longest length over the trained one, so 1, plain RoPE,
    at the trained length. ``logn`` as in ``rope``. No parameters, any length. Not absolute; causal.

    Source: Su's blog, 9706 (2023).
    """

    def __init__(
        self,
        dims: Dims,
        base: PositiveFloat,
        pairing: Pairing,
        k: Scale | None,
        logn: LogNMode,
        logn_clip: bool | None,
    ) -> None:
        super().__init__(dims, base, pairing, k, logn, logn_clip, 1, None)

    def stretch(self, frequencies_M: Tensor) -> Tensor:
        pairs = len(frequencies_M)
        pair = torch.arange(1, pairs + 1, dtype=torch.float64)
        return frequencies_M / self.k ** (pair / pairs)


class NTKMixed(StretchedRoPE):
    """RoPE whose pairs are interpolated by exp(a m^b): b < 1 leaves more of it to the slow pairs.

        frequencies[m-1] = 1 / (base^(2 (m-1) / D) exp(a m^b)),   m = 1 .. D/2
        a (D/2)^b        = ln k

    The slowest pair rotates k times slower. ``b: 1`` is ``ntk_fixed``, ``b: 0`` would be ``pi``;
    the source finds 0.625 best. A change to a trained ``rope`` at test time. ``k: null`` is the
    longest length over the trained one, so 1, plain RoPE, at the trained length. ``logn`` as in
    ``rope``. No parameters, any length. Not absolute; causal.

    Source: Su's blog, 9706 (2023).
    """

    def __init__(
        self,
        dims: Dims,
        base: PositiveFloat,
        pairing: Pairing,
        b: PositiveFloat,
        k: Scale | None,
        logn: LogNMode,
        logn_clip: bool | None,
    ) -> None:
        super().__init__(dims, base, pairing, k, logn, logn_clip, 1, None)
        pairs = dims.head_dim // 2
        share = torch.arange(1, pairs + 1, dtype=torch.float64) / pairs
        self.frequencies = self.frequencies * (-math.log(self.k) * share**b).exp()


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
        logn: LogNMode,
        logn_clip: bool | None,
    ) -> None:
        super().__init__(dims, base, pairing, k, logn, logn_clip, 1, None)
        if fast <= slow:
            raise ValueError(
                f"fast={fast:g} is not larger than slow={slow:g}: set it to more rotations"
            )
        if ramp == "rotations":
            rotations = dims.train_len * self.frequencies / (2 * math.pi)
            kept = ((rotations - slow) / (fast - slow)).clamp(0, 1)
        else:
            kept = kept_shares(dims, base, slow, fast, ramp == "pairs")
        self.frequencies = self.frequencies * ((1 - kept) / self.k + kept)
        self.attention_factor = 0.1 * math.log(self.k) + 1 if temperature else 1.0

    def factors(self, pos_BT: Tensor) -> Tensor:
        # Queries and keys alike: the logits are multiplied by its square.
        return super().factors(pos_BT) * self.attention_factor


def kept_shares(dims: Dims, base: float, slow: float, fast: float, rounded: bool) -> Tensor:
    """The share g of its frequency that each pair keeps, by its number."""
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


class DynamicNTK(RoPE):
    """``ntk_old`` with the scale of the sequence at hand: short sequences stay plain RoPE.

        base' = base s^(D / (D - 2))
        s     = factor r - (factor - 1),   r = max(1, n / train length)

    n is the sequence's last position + 1. ``factor: 1`` makes s = r. All tokens are rotated with
    the scale of the whole sequence, so a key cache is refused. ``k`` fixes s whatever the length,
    allows a cache and excludes ``factor``. A change to a trained ``rope`` at test time. ``logn`` as
    in ``rope``. No parameters, any length. Absolute beyond the trained length; causal but for s.

    Source: emozilla, 2023, described by Peng 2023 (2309.00071); for a whole sequence equal to
    rope_type dynamic of Hugging Face transformers, which allows a larger ``factor``.
    """

    at_test_time = True

    def __init__(
        self,
        dims: Dims,
        base: PositiveFloat,
        pairing: Pairing,
        factor: Scale,
        k: Scale | None,
        logn: LogNMode,
        logn_clip: bool | None,
    ) -> None:
        super().__init__(dims, base, pairing, logn, logn_clip)
        self.factor, self.fixed = factor, k is not None
        share = torch.arange(0, dims.head_dim, 2, dtype=torch.float64) / dims.head_dim
        self.powers = nn.Buffer(-base_power(dims) * share, persistent=False)
        if k is None:
            self.whole_sequence = True
            self.shift_invariant = False
        else:
            self.frequencies = self.frequencies * k**self.powers

    def factors(self, pos_BT: Tensor) -> Tensor:
        if self.fixed:
            return super().factors(pos_BT)
        # The queries are the last of the keys: both end at the last position.
        ratio_B1 = ((pos_BT.amax(-1, keepdim=True).double() + 1) / self.train_len).clamp(min=1)
        scale_B1 = self.factor * ratio_B1 - (self.factor - 1)
        return unit_factors(pos_BT, (self.frequencies * scale_B1**self.powers)[:, None])


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
        logn: LogNMode,
        logn_clip: bool | None,
        fraction: Fraction,
    ) -> None:
        super().__init__(dims, base, pairing, k, logn, logn_clip, fraction, None)
        if attention_factor is None:
            attention_factor = default_attention_factor(self.k, dims.train_len)
        pairs, rotated = dims.head_dim // 2, math.floor(fraction * (dims.head_dim // 2))
        both = [
            check_divisors(key, numbers, default, rotated) + [1.0] * (pairs - rotated)
            for key, numbers, default in (("short", short, 1.0), ("long", long, self.k))
        ]
        self.divisors = nn.Buffer(torch.tensor(both, dtype=torch.float64), persistent=False)
        # Pairs that do not rotate are not scaled either.
        lengths = [attention_factor] * rotated + [1.0] * (pairs - rotated)
        self.lengths = nn.Buffer(torch.tensor(lengths, dtype=torch.float64), persistent=False)
        self.equal = both[0] == both[1]
        if not self.equal:
            self.whole_sequence, self.shift_invariant = True, False

    def factors(self, pos_BT: Tensor) -> Tensor:
        # The queries are the last of the keys: both end at the last position.
        longer_B = (pos_BT.amax(-1) >= self.train_len).long()
        frequencies_B1M = (self.frequencies / self.divisors[longer_B])[:, None]
        return unit_factors(pos_BT, frequencies_B1M) * self.lengths


def check_divisors(
    key: str, numbers: list[float] | None, default: float, rotated: int
) -> list[float]:
    """The divisors of the pairs that rotate."""
    if numbers is not None and len(numbers) != rotated:
        raise ValueError(
            f"{key} has {len(numbers)} numbers, but {rotated} pairs of features rotate: give "
            f"{rotated}, or {key}=null"
        )
    return [default] * rotated if numbers is None else numbers


def default_attention_factor(k: float, train_len: int) -> float:
    if k > 1 and train_len < 2:
        raise ValueError(
            "attention_factor=null divides by the logarithm of the trained length, which is 0 for "
            "1 token: set attention_factor=1, or train on longer sequences"
        )
    return math.sqrt(1 + math.log(k) / math.log(train_len)) if k > 1 else 1.0
