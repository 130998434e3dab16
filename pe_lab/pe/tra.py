import torch.nn.functional as F
from torch import Tensor, nn

from pe_lab.pe.base import AttentionInputs, Dims, PositionalEncoding
from pe_lab.pe.functional import masked_softmax, widened
from pe_lab.pe.hard_alibi import FAR


class TRA(PositionalEncoding):
    """Keys with a negative score are not seen, and distance counts the keys that are.

        logits[h, i, j] = s + count[h, i, j] log sigmoid(gate(x_i)_h)      where s > 0, else -1e9
        s               = q_i . k_j / sqrt(D)
        count[h, i, j]  = number of keys in j .. i whose score of query i is positive

    x is the attention's input, ``gate`` maps E to H. A query without a key of positive score
    attends to nothing: its weights are 0. The factor of the count is the query's. Positions are not
    read, the order of the tokens is. ``gate`` starts as the trunk, its bias at 0: each key between
    first halves a weight. Any length. Not absolute; causal.

    Source: Threshold Relative Attention, Opper 2025 (2503.23174), as in the authors' notebook
    (MOSS workshop, submission 96), which norms q and k as ``model.qk_norm=true`` does, without
    weights.
    """

    shift_invariant = True
    reads_positions = None

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.gate = nn.Linear(dims.d_model, dims.n_heads)
        nn.init.zeros_(self.gate.bias)

    def logits(
        self, content_BHTS: Tensor, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> Tensor:
        seen_BHTS = (content_BHTS > 0) & inputs.mask_TS
        count_BHTS = seen_BHTS.flip(-1).cumsum(-1).flip(-1)
        x_BTE = inputs.x_BSE[:, -q_BHTD.shape[2] :]
        each_BHT = F.logsigmoid(widened(self.gate(x_BTE))).transpose(1, 2)
        return (content_BHTS + count_BHTS * each_BHT[..., None]).where(seen_BHTS, FAR)

    def normalize(self, logits_BHTS: Tensor, mask_TS: Tensor) -> Tensor:
        # A row of keys that are not seen would share its weight among them.
        return masked_softmax(logits_BHTS, mask_TS) * (logits_BHTS > FAR / 2)
