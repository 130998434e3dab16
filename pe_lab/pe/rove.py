from pydantic import PositiveFloat
from torch import Tensor

from pe_lab.pe.base import AttentionInputs, Dims
from pe_lab.pe.functional import rotate_pairs
from pe_lab.pe.rope import Pairing, RoPE


class RoVE(RoPE):
    """RoPE, and values rotated as keys are, so that what a token passes on depends on its distance.

        out_i = R(-i) sum over j of weights[i, j] R(j) v_j
              = sum over j of weights[i, j] R(j - i) v_j

    R(n) rotates the pair m of a head's features by n base^(-2m/D), for queries and keys as in
    ``rope``. No parameters, any length. Not absolute; causal.

    Source: García-Castellanos 2026 (2606.11275).
    """

    def __init__(self, dims: Dims, base: PositiveFloat, pairing: Pairing) -> None:
        super().__init__(dims, base, pairing)

    def values(self, weights_BHTS: Tensor, inputs: AttentionInputs) -> Tensor | None:
        v_BHSD = inputs.v_BHSD
        factors_k = self.factors(inputs.pos_k_BS)
        turned_BHSD = rotate_pairs(v_BHSD, factors_k, self.halves)
        weights_BHTS = weights_BHTS.to(v_BHSD.dtype)
        back = factors_k[:, :, -weights_BHTS.shape[2] :].conj()
        # What is added to the average of the values as they are.
        return rotate_pairs(weights_BHTS @ turned_BHSD, back, self.halves) - weights_BHTS @ v_BHSD
