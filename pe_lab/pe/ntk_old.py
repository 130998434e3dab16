from typing import Literal

from pydantic import PositiveFloat

from pe_lab.pe.base import Dims
from pe_lab.pe.rope import LogN, Pairing, Scale, StretchedRoPE, scale


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
        logn: LogN,
        logn_clip: bool | None,
    ) -> None:
        power = slowest_by_k(dims)
        stretched = base * scale(dims, k) ** (power if variant == 9675 else 1)
        super().__init__(dims, stretched, pairing, k, logn, logn_clip)


def slowest_by_k(dims: Dims) -> float:
    """The power of k that slows down the slowest pair k times, as a factor of the base."""
    if dims.head_dim == 2:
        raise ValueError(
            f"{dims.head_width_reason}, whose only pair has the same angle with every base: "
            "choose wider heads, or pe=pi"
        )
    return dims.head_dim / (dims.head_dim - 2)
