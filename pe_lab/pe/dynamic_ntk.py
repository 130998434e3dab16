import torch
from pydantic import PositiveFloat
from torch import Tensor, nn

from pe_lab.pe.base import Dims
from pe_lab.pe.functional import unit_factors
from pe_lab.pe.ntk_old import slowest_by_k
from pe_lab.pe.rope import LogN, Pairing, RoPE, Scale


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
        logn: LogN,
        logn_clip: bool | None,
    ) -> None:
        super().__init__(dims, base, pairing, logn, logn_clip)
        self.any_order = False
        if k is not None and factor != 1:
            raise ValueError(
                f"factor={factor:g} has no effect with k={k:g}, which fixes the scale: leave one "
                "of them out"
            )
        self.factor, self.fixed = factor, k is not None
        share = torch.arange(0, dims.head_dim, 2, dtype=torch.float64) / dims.head_dim
        self.powers = nn.Buffer(-slowest_by_k(dims) * share, persistent=False)
        if k is None:
            self.whole_sequence = "k=null"
            self.shift_invariant = self.fractional = False
        else:
            self.frequencies = self.frequencies * k**self.powers

    @property
    def rotates_by_position(self) -> bool:
        return self.fixed and super().rotates_by_position

    def factors(self, pos_BT: Tensor) -> Tensor:
        if self.fixed:
            return super().factors(pos_BT)
        # The queries are the last of the keys: both end at the last position.
        ratio_B1 = ((pos_BT.amax(-1, keepdim=True).double() + 1) / self.train_len).clamp(min=1)
        scale_B1 = self.factor * ratio_B1 - (self.factor - 1)
        return unit_factors(pos_BT, (self.frequencies * scale_B1**self.powers)[:, None])
