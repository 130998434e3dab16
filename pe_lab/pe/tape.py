from typing import Any

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from pe_lab.pe.base import AttentionInputs, Dims, PositionalEncoding
from pe_lab.pe.functional import frequencies, rotate_queries_and_keys
from pe_lab.pe.rope import check_pairs


class TAPE(PositionalEncoding):
    """RoPE whose rotation of each token is a tensor that every layer updates.

        q_i, k_i multiplied by z_i                     z_i (H, D/2), pairs as complex numbers
        z_i = exp(sqrt(-1) i frequencies)              in the first layer: RoPE
        z_i <- z_i + attended[h] sum over j of weights[i, j] z_j       after attention
        z_i <- z_i + down (silu(gate(x_i)) * (up z_i))                 before the feed-forward

    ``attended`` is (H,), ``up`` (width, H), ``down`` (H, width), and ``gate`` maps the
    feed-forward's input x to ``width``. Cosine and sine are treated alike, so rotating all z
    together changes nothing: logits depend on relative positions only. ``attended`` and ``up``
    start at zero, where TAPE equals ``rope``; ``down`` and ``gate`` start normal with deviation
    0.02, as published. The last layer updates nothing and has no parameters. Any length. Not
    absolute; causal.

    Source: Zhu 2025 (2501.00712) and the authors' code for language models. There its gate reads
    the output of the feed-forward, and an H x H matrix in place of ``attended`` acts through the
    sums of its rows. In their code for arithmetic ``attended`` is 1, and the model is not RoPE at
    first.
    """

    shift_invariant = True
    reads_positions = float

    def __init__(self, dims: Dims, base: PositiveFloat, width: PositiveInt | None) -> None:
        super().__init__()
        check_pairs(dims)
        self.frequencies = nn.Buffer(frequencies(dims.head_dim, base), persistent=False)
        self.updates = dims.layer < dims.n_layers - 1
        self.width: int | None = None
        if not self.updates:
            self.unused = {"layer_state", "update_state"}
            return
        self.width = width = 4 * dims.n_heads if width is None else width
        self.attended = nn.Parameter(torch.zeros(dims.n_heads))
        self.gate = nn.Linear(dims.d_model, width, bias=False)
        self.up = nn.Parameter(torch.zeros(width, dims.n_heads))
        self.down = nn.Parameter(torch.randn(dims.n_heads, width) * 0.02)
        nn.init.normal_(self.gate.weight, std=0.02)

    def rotate(
        self, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> tuple[Tensor, Tensor]:
        z_BHSD = self._planes(inputs).transpose(1, 2)
        z_BHSM = torch.view_as_complex(z_BHSD.reshape(*z_BHSD.shape[:-1], -1, 2))
        return rotate_queries_and_keys(q_BHTD, k_BHSD, z_BHSM)

    def layer_state(self, weights_BHTS: Tensor, inputs: AttentionInputs) -> Any:
        if not self.updates:
            return inputs.carried
        z_BSHD = self._planes(inputs)
        seen_BHTD = weights_BHTS.to(z_BSHD.dtype) @ z_BSHD.transpose(1, 2)
        new_BTHD = z_BSHD[:, -weights_BHTS.shape[2] :]
        return new_BTHD + self.attended[:, None] * seen_BHTD.transpose(1, 2)

    def update_state(self, carried: Any, x_BTE: Tensor) -> Any:
        if not self.updates:
            return carried
        z_BTHD: Tensor = carried
        return z_BTHD + self.down @ (F.silu(self.gate(x_BTE))[..., None] * (self.up @ z_BTHD))

    def _planes(self, inputs: AttentionInputs) -> Tensor:
        """z of every key, (1 or B, S, H, D): cosine and sine of each pair side by side."""
        if inputs.carried is not None:
            return inputs.carried
        wide = torch.promote_types(inputs.k_BHSD.dtype, torch.float32)
        angle = (inputs.pos_k_BS[..., None] * self.frequencies)[:, :, None]
        z = torch.stack((angle.cos(), angle.sin()), -1).flatten(-2).to(wide)
        return z.expand(-1, -1, inputs.k_BHSD.shape[1], -1)
