"""RoPE for near keys, other rotations for far ones: the base of the windowed changes of RoPE."""

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from pe_lab.pe.base import AttentionInputs, Dims
from pe_lab.pe.functional import distances, rotate_pairs
from pe_lab.pe.rope import LogN, Pairing, RoPE


class NearFar(RoPE):
    """RoPE for near keys, other rotations for far ones.

        logits[i, j] = RoPE's                                          i - j < near
        logits[i, j] = (far_q_i q_i) . (far_k_j k_j) / sqrt(D)         elsewhere

    Subclasses compute ``far_q`` and ``far_k`` in ``far_factors``. ``window`` is ``near``; null: the
    trained length divided by ``divisor``.
    """

    at_test_time = True
    replaces_content = True
    divisor: ClassVar[int] = 2

    def __init__(
        self,
        dims: Dims,
        base: PositiveFloat,
        pairing: Pairing,
        window: PositiveInt | None,
        logn: LogN,
        logn_clip: bool | None,
    ) -> None:
        super().__init__(dims, base, pairing, logn, logn_clip)
        self.any_order = False
        self.near = max(1, dims.train_len // self.divisor) if window is None else window

    def null_values(self) -> dict[str, Any]:
        return super().null_values() | {"window": self.near}

    @abstractmethod
    def far_factors(self, pos_q_BT: Tensor, pos_k_BS: Tensor) -> tuple[Tensor, Tensor | None]:
        """The complex factors of far queries and keys, see ``factors``; None: keys stay as they
        are."""

    def far(self, inputs: AttentionInputs) -> tuple[Tensor, Tensor]:
        """Queries and keys whose product is the content term of far keys."""
        factor_q, factor_k = self.far_rotation(inputs)
        far_k = inputs.k_BHSD
        if factor_k is not None:
            far_k = rotate_pairs(far_k, factor_k, self.halves)
        return rotate_pairs(inputs.q_BHTD, factor_q, self.halves), far_k

    def far_rotation(self, inputs: AttentionInputs) -> tuple[Tensor, Tensor | None]:
        """``far_factors`` with the queries' scaled by ``logn``."""
        factor_q, factor_k = self.far_factors(inputs.pos_q_BT, inputs.pos_k_BS)
        return self.scale_queries(factor_q, inputs.pos_q_BT), factor_k

    def logits(
        self, content_BHTS: Tensor, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> Tensor:
        far_q, far_k = self.far(inputs)
        far_BHTS = (far_q * far_q.shape[-1] ** -0.5) @ far_k.transpose(-1, -2)
        near_BTS = distances(inputs.pos_q_BT, inputs.pos_k_BS) < self.near
        return torch.where(near_BTS[:, None], content_BHTS, far_BHTS)
