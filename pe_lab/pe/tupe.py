import math

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from pe_lab.pe.base import AttentionInputs, Dims, PositionalEncoding
from pe_lab.pe.functional import look_up
from pe_lab.pe.t5 import T5


class TUPE(PositionalEncoding):
    """Logits of content and of absolute positions, each with separate projections, added.

        logits[i, j] = (q_i . k_j + query(p_i) . key(p_j)) / sqrt(2 D)
        p            = LayerNorm(table)                               table (max_len, E)

    ``query`` and ``key`` map E to D for each head. The position term is computed once for all
    layers; ``share_layers: false``: for each. ``relative: true`` adds T5's bias (TUPE-R), 32
    buckets up to 128. Rows start normal with deviation 0.02, projections as the model's weights,
    uniform in +-1/sqrt(E). A position past ``max_len`` is an error. Absolute; causal.

    Source: Ke 2021 (2006.15595) and the authors' code, which has the norm of p and the bias of
    ``query``. The bias of ``key``, which softmax cannot see, is left out, as is the untying of
    [CLS].
    """

    def __init__(
        self, dims: Dims, max_len: PositiveInt | None, relative: bool, share_layers: bool
    ) -> None:
        super().__init__()
        self.max_len = dims.max_len if max_len is None else max_len
        self.share_layers, self.n_heads = share_layers, dims.n_heads
        self.table = nn.Parameter(torch.randn(self.max_len, dims.d_model) * 0.02)
        self.norm = nn.LayerNorm(dims.d_model)
        self.query = nn.Linear(dims.d_model, dims.heads_width)
        self.key = nn.Linear(dims.d_model, dims.heads_width, bias=False)
        nn.init.zeros_(self.query.bias)
        self.relative = T5(dims, 32, 128, share_layers) if relative else None

    def rotate(
        self, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> tuple[Tensor, Tensor]:
        return q_BHTD / math.sqrt(2), k_BHSD

    def bias(self, pos_q_BT: Tensor, pos_k_BS: Tensor) -> Tensor | None:
        # One product for all layers and examples: half precision would save nothing.
        with torch.autocast(pos_q_BT.device.type, enabled=False):
            q_BHTD = self._project(self.query, pos_q_BT)
            k_BHSD = self._project(self.key, pos_k_BS)
            scale = 1 / math.sqrt(2 * q_BHTD.shape[-1])
            logits_BHTS = (q_BHTD * scale) @ k_BHSD.transpose(-1, -2)
        if self.relative is None:
            return logits_BHTS
        relative_BHTS = self.relative.bias(pos_q_BT, pos_k_BS)
        return logits_BHTS + relative_BHTS

    def _project(self, linear: nn.Linear, pos_BT: Tensor) -> Tensor:
        rows_BTE: Tensor = linear(self.norm(look_up(pos_BT, self.table)))
        return rows_BTE.view(*pos_BT.shape, self.n_heads, -1).transpose(1, 2)
