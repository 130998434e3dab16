import math
from typing import Self

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn

from pe_lab.pe.base import AttentionInputs, Dims, PositionalEncoding
from pe_lab.pe.functional import distances, frequencies, pick_rows, span


class TransformerXL(PositionalEncoding):
    """Sinusoids of the distance as a second key, and learned vectors in the place of a query.

        logits[i, j] = ((q_i + u_h) . k_j + (q_i + v_h) . (project R_(i-j))) / sqrt(D)
        R_n          = [sin(n frequencies), cos(n frequencies)]                       (E,)
        frequencies[m] = base^(-2m/E)

    ``project`` maps E to H D without bias, for each layer; u and v are (H, D). ``share_biases:
    true`` gives all layers one u and one v, as the published code does; ``false`` gives separate
    ones, as XLNet. ``project`` starts as the trunk's linear weights, u and v normal with deviation
    0.02. Any length. Not absolute; causal.

    Source: Dai 2019 (1901.02860), without its memory and its ``clamp_len``. XLNet (1906.08237) adds
    segments and reads R of i - j < 0 too.
    """

    shift_invariant = True

    def __init__(self, dims: Dims, base: PositiveFloat, share_biases: bool) -> None:
        super().__init__()
        self.share_biases = share_biases
        self.n_heads, self.width = dims.n_heads, dims.d_model
        self.frequencies = nn.Buffer(frequencies(dims.d_model, base), persistent=False)
        self.project = nn.Linear(dims.d_model, dims.heads_width, bias=False)
        shape = (dims.n_heads, 1, dims.head_dim)
        self.biases = nn.ParameterDict({name: 0.02 * torch.randn(shape) for name in ("u", "v")})

    def share(self, lower: Self) -> None:
        if self.share_biases:
            self.biases = lower.biases

    def keys(self, most: int) -> Tensor:
        """W R_n for n = 0 .. most, (H, R, D)."""
        angle = torch.arange(most + 1, device=self.frequencies.device)[:, None] * self.frequencies
        # An odd width ends one cosine early.
        wave_RE = torch.cat((angle.sin(), angle.cos()), -1)[:, : self.width]
        key_RE: Tensor = self.project(wave_RE.to(self.project.weight.dtype))
        return key_RE.view(most + 1, self.n_heads, -1).transpose(0, 1)

    def logits(
        self, content_BHTS: Tensor, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> Tensor:
        scale = 1 / math.sqrt(q_BHTD.shape[-1])
        row_BTS = distances(inputs.pos_q_BT, inputs.pos_k_BS)
        key_HRD = self.keys(span(inputs.pos_k_BS))
        score_BHTR = ((q_BHTD + self.biases["v"]) * scale) @ key_HRD.transpose(-1, -2)
        sought_BH1S: Tensor = (self.biases["u"] * scale) @ k_BHSD.transpose(-1, -2)
        return content_BHTS + pick_rows(score_BHTR, row_BTS) + sought_BH1S
