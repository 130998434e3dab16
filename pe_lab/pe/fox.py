import torch.nn.functional as F
from torch import Tensor, nn

from pe_lab.pe.base import AttentionInputs, Dims, PositionalEncoding
from pe_lab.pe.functional import widened


class FoX(PositionalEncoding):
    """Forget gate for each token and head; a key decays by the product of the gates after it.

        f_t          = sigmoid(gate(x_t))                                 gate: Linear(E, H)
        logits[i, j] = q_i . k_j / sqrt(D) + log f_(j+1) + .. + log f_i

    x is the attention's input. The key's own gate does not count, the query's does. Sums are
    differences of one running sum, in at least float32. Positions are not read. The weight starts
    as the trunk's linear weights, the bias at zero, as published: a key first decays by about half
    with each token. Any length. Not absolute; causal: i - j < 0 has no gates between.

    Source: Lin 2025 (2503.02130), the forget gate without the rest of its "Pro" block. Gates that
    do not read x (``bias_only`` in its code) are ALiBi with learned slopes.
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
        decay_BHS = self.log_decay(inputs)
        decay_BHT = decay_BHS[..., -q_BHTD.shape[2] :]
        # Ahead of the query the difference is positive, and masked.
        return content_BHTS + (decay_BHT[..., None] - decay_BHS[:, :, None])

    def log_decay(self, inputs: AttentionInputs) -> Tensor:
        """The sum log f_0 + .. + log f_j, (B, H, S)."""
        # A running sum of many logarithms would drown its summands in half precision.
        return F.logsigmoid(widened(self.gate(inputs.x_BSE))).cumsum(1).transpose(1, 2)

    def trace(self, logits_BHTS: Tensor, inputs: AttentionInputs) -> dict[str, Tensor]:
        """The ``forget gate`` f_j of each key."""
        return {"forget gate": self.gate(inputs.x_BSE).sigmoid().transpose(1, 2)[:, :, None]}
