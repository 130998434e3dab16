"""Transformer-XL's relative positions: sinusoids of the distance, projected to keys."""

import math

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn

from pe_lab.pe.base import AttentionInputs, Dims, PositionalEncoding
from pe_lab.pe.functional import distances, frequencies, pick, span


class TransformerXL(PositionalEncoding):
    """Sinusoids of the distance as a second key, and learned vectors in the place of a query.

    logits_ij = (q_i . k_j + q_i . (W R_(i-j)) + u_h . k_j + v_h . (W R_(i-j))) / sqrt(D).
    R_n (E) holds sin(n / base^(2m/E)) for all m, then all cosines; W (H D, E) without bias, one for
    each layer; u and v (H, D). Source: Dai 2019 (1901.02860), without its memory and its
    ``clamp_len``; XLNet (1906.08237) adds segments. ``share_biases: true`` gives all layers one
    u and one v, as the published code does, ``false`` separate ones, as XLNet. W starts as the
    linear weights of the trunk do, u and v normal with deviation 0.02, as published. Any length.
    Not absolute; causal: XLNet also reads R of i - j < 0.
    """

    shift_invariant = True
    frequencies: Tensor

    def __init__(self, dims: Dims, base: PositiveFloat, share_biases: bool) -> None:
        super().__init__()
        self.share_biases = share_biases
        self.n_heads, self.width = dims.n_heads, dims.d_model
        self.register_buffer("frequencies", frequencies(dims.d_model, base), persistent=False)
        self.project = nn.Linear(dims.d_model, dims.heads_width, bias=False)
        shape = (dims.n_heads, 1, dims.head_dim)
        self.biases = nn.ParameterDict({name: 0.02 * torch.randn(shape) for name in ("u", "v")})

    def share(self, lower: PositionalEncoding) -> None:
        assert isinstance(lower, TransformerXL)
        if self.share_biases:
            self.biases = lower.biases

    def keys(self, most: int) -> Tensor:
        """W R_n for n = 0 .. most, (H, R, D)."""
        rows = torch.arange(most + 1, device=self.frequencies.device)
        angle = rows[:, None] * self.frequencies
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
        return content_BHTS + pick(score_BHTR, row_BTS) + sought_BH1S
