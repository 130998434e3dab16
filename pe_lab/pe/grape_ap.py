from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from pe_lab.pe.base import AttentionInputs, Dims, PositionalEncoding
from pe_lab.pe.functional import alibi_slopes, rotate_halves, widened


class GRAPEAP(PositionalEncoding):
    """Decay by gates of the tokens between query and key, each computed for that query.

        logits[h, i, j] = q_i . k_j / sqrt(D) + psi[h, i, j+1] + .. + psi[h, i, i]
        psi[h, i, t] = slopes[h] log sigmoid(p[h, i] . R_t n[h, t] / width)
        p[h, t] = (project x_t)[h],   n[h, t] = p[h, t] / rms(p[h, t])               (width,)

    x is the attention's input, ``slopes`` are ALiBi's, and R_t turns every pair of features (m and
    m + width/2) by minus the position of t, in radians. As in ``fox`` the key's own gate does not
    count and the query's does, but a gate depends on the query too. Only n is turned, so positions
    count by themselves. ``project`` is without bias and starts as the trunk's. Any length.
    Absolute; causal.

    Source: GRAPE-AP of Zhang 2025 (2512.07805), section 5, as the authors' code computes it
    (model-architectures/GRAPE at f5b539f, its ``grape-ap-v1`` with p of width 8). The paper
    normalises the p of the query, too.
    """

    any_order = True
    fractional = True
    needs_softmax = "its gates"

    def __init__(self, dims: Dims, width: Annotated[int, Field(gt=0, multiple_of=2)]) -> None:
        super().__init__()
        self.n_heads = dims.n_heads
        self.slopes = nn.Buffer(torch.tensor(alibi_slopes(dims.n_heads)), persistent=False)
        self.project = nn.Linear(dims.d_model, dims.n_heads * width, bias=False)

    def logits(
        self, content_BHTS: Tensor, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> Tensor:
        psi_BHTS = self.slopes[:, None, None] * F.logsigmoid(self.agreement(inputs))
        # A sum from the last token back: later tokens add zeros.
        path_BHTS = (psi_BHTS * inputs.mask_TS).flip(-1).cumsum(-1).flip(-1)
        return content_BHTS + F.pad(path_BHTS[..., 1:], (0, 1))

    def agreement(self, inputs: AttentionInputs) -> Tensor:
        """p[h, i] . R_t n[h, t] / width, (B, H, T, S), at least in float32."""
        p_BHSW = widened(self.project(inputs.x_BSE).unflatten(-1, (self.n_heads, -1)))
        p_BHSW = p_BHSW.transpose(1, 2)
        width = p_BHSW.shape[-1]
        angle_B1S1 = -inputs.pos_k_BS.double()[:, None, :, None]
        with torch.autocast(p_BHSW.device.type, enabled=False):
            n_BHSW = F.rms_norm(p_BHSW, (width,))
            turned_BHSW = rotate_halves(n_BHSW, angle_B1S1.cos(), angle_B1S1.sin())
            seeking_BHTW = p_BHSW[:, :, -inputs.pos_q_BT.shape[1] :]
            return seeking_BHTW @ turned_BHSW.mT / width

    def ablations(self) -> dict[str, PositionalEncoding]:
        return {"gates": self.without("logits")}

    def trace(self, logits_BHTS: Tensor, inputs: AttentionInputs) -> dict[str, Tensor]:
        """``gate`` of each token for each query."""
        return {"gate": self.agreement(inputs).sigmoid()}
