import math

import torch
import torch.nn.functional as F
from pydantic import FiniteFloat
from torch import Tensor, nn

from pe_lab.pe.base import AttentionInputs, Dims, PositionalEncoding, replaces_content
from pe_lab.pe.functional import widened

CHUNK = 16


class Wall(PositionalEncoding):
    """Forget gate for each token and feature; a key's feature decays by the gates after it.

        f_t          = sigmoid(gate(x_t))                              gate: Linear(E, H D)
        logits[i, j] = sum over c of q_ic k_jc f_(j+1)c .. f_ic / sqrt(D)

    x is the attention's input. As in ``fox`` the key's own gate does not count and the query's
    does, but a gate scales its feature of the content term in the place of adding to the logit.
    Positions are not read. The gate's weight starts as the trunk's linear weights and its bias at
    ``start``: at 8, as published, nothing decays at first. Any length. Not absolute; causal: i - j
    < 0 has no gates between.

    Exact and stable: within a chunk of tokens the products of gates are computed for each pair, and
    a query and a key in different chunks meet at the chunk's first token, where both have decayed
    and none has grown. Time is of the order of T S D.

    Source: Wall attention of Tilde Research, the layer and ``naive_wall_attn`` of
    flash-linear-attention 0.6.0. Its gate for each head is ``fox``: [wall, fox] of ``combined``.
    """

    shift_invariant = True
    reads_positions = None

    def __init__(self, dims: Dims, start: FiniteFloat) -> None:
        super().__init__()
        self.n_heads = dims.n_heads
        self.gate = nn.Linear(dims.d_model, dims.heads_width)
        nn.init.constant_(self.gate.bias, start)

    @replaces_content
    def logits(
        self, content_BHTS: Tensor, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> Tensor:
        decay_BHSD = self.log_decay(inputs)
        with torch.autocast(q_BHTD.device.type, enabled=False):
            q_BHTD = widened(q_BHTD) / math.sqrt(q_BHTD.shape[-1])
            return decayed_logits(q_BHTD, widened(k_BHSD), decay_BHSD)

    def log_decay(self, inputs: AttentionInputs) -> Tensor:
        """The sum log f_0 + .. + log f_j of each feature, (B, H, S, D)."""
        gate_BSHD = self.gate(inputs.x_BSE).unflatten(-1, (self.n_heads, -1))
        return F.logsigmoid(widened(gate_BSHD)).cumsum(1).transpose(1, 2)

    def trace(self, logits_BHTS: Tensor, inputs: AttentionInputs) -> dict[str, Tensor]:
        """``mean gate`` of each key, over the features of a head."""
        gate_BSHD = self.gate(inputs.x_BSE).unflatten(-1, (self.n_heads, -1)).sigmoid()
        return {"mean gate": gate_BSHD.mean(-1).transpose(1, 2)[:, :, None]}


def decayed_logits(q_BHTD: Tensor, k_BHSD: Tensor, decay_BHSD: Tensor) -> Tensor:
    """The sum over c of q_ic k_jc exp(decay_ic - decay_jc), (B, H, T, S); 0 where j > i."""
    t, s = q_BHTD.shape[2], k_BHSD.shape[2]
    rows: list[Tensor] = []
    for start in range((s - t) // CHUNK * CHUNK, s, CHUNK):
        # The queries of this chunk, by their place among the keys.
        first, end = max(start, s - t), min(start + CHUNK, s)
        q, decay_q = q_BHTD[:, :, first - s + t : end - s + t], decay_BHSD[:, :, first:end]
        meeting = decay_BHSD[:, :, start : start + 1]
        before = k_BHSD[:, :, :start] * (meeting - decay_BHSD[:, :, :start]).exp()
        far = (q * (decay_q - meeting).exp()) @ before.mT
        # Ahead of the query the difference is positive: exp must not overflow there.
        gates = (decay_q[:, :, :, None] - decay_BHSD[:, :, None, start:end]).clamp(max=0).exp()
        near = ((q[:, :, :, None] * k_BHSD[:, :, None, start:end]) * gates).sum(-1)
        row = torch.cat((far, near.tril(first - start)), -1)
        rows.append(F.pad(row, (0, s - end)))
    return torch.cat(rows, 2)
