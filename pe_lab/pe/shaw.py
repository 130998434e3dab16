import math

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from pe_lab.pe.base import AttentionInputs, Dims, PositionalEncoding
from pe_lab.pe.functional import distances, pick_rows


class Shaw(PositionalEncoding):
    """Learned vectors of the clipped distance, added to keys and values.

        logits[i, j] = q_i . (k_j + key_table[r]) / sqrt(D)            r = min(i - j, clip)
        out_i        = sum over j of weights[i, j] (v_j + value_table[r])

    Both tables are (clip + 1, D), for each layer, shared by its heads. ``values: false`` drops the
    second, which the paper found to cost nothing. Rows start normal with deviation 1/sqrt(D). Any
    length. Not absolute; causal.

    Source: Shaw 2018 (1803.02155), whose tables have 2 clip + 1 rows. A causal model never reads
    those of i - j < 0.
    """

    shift_invariant = True

    def __init__(self, dims: Dims, clip: PositiveInt, values: bool) -> None:
        super().__init__()
        self.clip = clip
        self.unused = set() if values else {"values"}
        shape, deviation = (clip + 1, dims.head_dim), 1 / math.sqrt(dims.head_dim)
        self.key_table = nn.Parameter(torch.randn(shape) * deviation)
        self.value_table = nn.Parameter(torch.randn(shape) * deviation) if values else None

    def _rows(self, pos_q_BT: Tensor, pos_k_BS: Tensor) -> Tensor:
        return distances(pos_q_BT, pos_k_BS).clamp(max=self.clip)

    def logits(
        self, content_BHTS: Tensor, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> Tensor:
        q_BHTD = q_BHTD / math.sqrt(q_BHTD.shape[-1])
        row_BTS = self._rows(inputs.pos_q_BT, inputs.pos_k_BS)
        return content_BHTS + pick_rows(q_BHTD @ self.key_table.T, row_BTS)

    def values(self, weights_BHTS: Tensor, inputs: AttentionInputs) -> Tensor | None:
        if self.value_table is None:
            return None
        # The weights of all keys at one clipped distance share a row: add them up first.
        row_BTS = self._rows(inputs.pos_q_BT, inputs.pos_k_BS)[:, None].expand_as(weights_BHTS)
        empty_BHTR = weights_BHTS.new_zeros(*weights_BHTS.shape[:-1], self.clip + 1)
        return empty_BHTR.scatter_add(-1, row_BTS, weights_BHTS) @ self.value_table
