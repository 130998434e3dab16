"""The C++ kernel of attention with near and far rotations: that of distance.py."""

from torch import Tensor

from pe_lab.core.dropout import Drop
from pe_lab.kernels.cpu.ctypes_abi import RotaryFactors, check, real_factors
from pe_lab.kernels.cpu.distance import Distance
from pe_lab.pe.rotation import Rotation


def near_far(
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSD: Tensor,
    near: int,
    rotation: Rotation,
    far_q: Tensor,
    far_k: Tensor | None,
    drop: Drop | None,
) -> Tensor:
    """Causal attention, (B, H, T, D), of queries and keys rotated by ``rotation`` where i - j <
    ``near``, elsewhere by the complex factors ``far_q`` and ``far_k`` (None: keys stay as they
    are).

    The T queries are the last of the S tokens. Memory grows with T + S. Only blocks with near and
    far keys compute both products.
    """
    check(q_BHTD, k_BHSD, v=(v_BHSD, tuple(k_BHSD.shape)))

    def real(factors: Tensor, x: Tensor) -> Tensor:
        return real_factors(factors.to(x.dtype.to_complex()), rotation.halves).expand(x.shape)

    factors = RotaryFactors(
        real(rotation.q, q_BHTD),
        real(rotation.k, k_BHSD),
        rotation.halves,
        min(near, k_BHSD.shape[2]),
        real(far_q, q_BHTD),
        None if far_k is None else real(far_k, k_BHSD),
    )
    out: Tensor = Distance.apply(  # type: ignore[no-untyped-call]
        drop, factors, q_BHTD, k_BHSD, v_BHSD, None, None, None, None, None, None
    )
    return out
