"""A learned vector for every distance: the "relative PE" of the CoPE paper."""

import math

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from pe_lab.pe.base import AttentionInputs, Dims, PositionalEncoding
from pe_lab.pe.functional import distances, pick_rows


class Relative(PositionalEncoding):
    """Learned row for every distance, added to the keys (relative PE of the CoPE paper).

        logits[i, j] = q_i . (k_j + table[i - j]) / sqrt(D)      table (max_len, D)

    There is no value term. All heads read one table, and all layers too (``share_layers: false``: a
    table for each). Rows start normal with deviation 1/sqrt(D). A distance past ``max_len`` - 1 is
    an error. Not absolute; causal: i - j < 0 has no row.

    Source: Golovneva 2024 (2405.18719) and its code, after Shaw 2018 (1803.02155).
    """

    shift_invariant = True

    def __init__(self, dims: Dims, max_len: PositiveInt | None, share_layers: bool) -> None:
        super().__init__()
        self.max_len = dims.max_len if max_len is None else max_len
        self.share_layers = share_layers
        d = dims.head_dim
        self.table = nn.Parameter(torch.randn(self.max_len, d) / math.sqrt(d))

    def logits(
        self, content_BHTS: Tensor, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> Tensor:
        q_BHTD = q_BHTD / math.sqrt(q_BHTD.shape[-1])
        row_BTS = distances(inputs.pos_q_BT, inputs.pos_k_BS)
        return content_BHTS + pick_rows(q_BHTD @ self.table.T, row_BTS)
