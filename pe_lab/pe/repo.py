from typing import Annotated, Literal

import torch.nn.functional as F
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn

from pe_lab.pe.base import AttentionInputs, Dims, PositionalEncoding
from pe_lab.pe.functional import frequencies, rotate_queries_and_keys, unit, unit_factors, widened
from pe_lab.pe.rope import check_pairs


class RePo(PositionalEncoding):
    """RoPE at a real position for each token and head, computed from the token's state.

        q_i, k_j rotated by p[h, i] frequencies, p[h, j] frequencies       frequencies (D/2,)
        p[:, j] = position(silu(gate(x_j)) * content(x_j))                 (H,)

    x is the attention's input; ``gate`` and ``content`` map E to ``width``, ``position`` width to
    H, all without bias. Positions may fall, repeat and be negative. ``width: null`` is d_model / 8.
    The lowest layers keep RoPE at the positions of the tokens: ``rope_layers`` of them, a share
    rounded to a number of layers. Maps start as the trunk's. Any length. Not absolute; causal.

    Source: RePo of Sakana AI (code SakanaAI/repo), whose models of 16 and 32 layers begin at layer
    5 and 10.
    """

    shift_invariant = True

    def __init__(
        self,
        dims: Dims,
        base: PositiveFloat,
        pairing: Literal["interleaved", "half"],
        rope_layers: Annotated[float, Field(ge=0, lt=1)],
        width: PositiveInt | None,
    ) -> None:
        super().__init__()
        check_pairs(dims)
        self.halves = pairing == "half"
        self.width = max(1, dims.d_model // 8) if width is None else width
        self.frequencies = nn.Buffer(frequencies(dims.head_dim, base), persistent=False)
        # At least the last layer has positions from its input.
        first = min(round(rope_layers * dims.n_layers), dims.n_layers - 1)
        self.reads_positions = float if dims.layer < first else None
        if self.reads_positions is None:
            self.gate = nn.Linear(dims.d_model, self.width, bias=False)
            self.content = nn.Linear(dims.d_model, self.width, bias=False)
            self.position = nn.Linear(self.width, dims.n_heads, bias=False)

    def rotate(
        self, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> tuple[Tensor, Tensor]:
        if self.reads_positions is not None:
            factor = unit_factors(inputs.pos_k_BS, self.frequencies)
        else:
            p_BHS = self.positions(inputs.x_BSE)
            factor = unit(p_BHS[..., None] * self.frequencies.to(p_BHS.dtype))
        return rotate_queries_and_keys(q_BHTD, k_BHSD, factor, self.halves)

    def positions(self, x_BSE: Tensor) -> Tensor:
        """p, (B, H, S), at least in float32."""
        p_BSH = self.position(F.silu(self.gate(x_BSE)) * self.content(x_BSE))
        return widened(p_BSH).transpose(1, 2)

    def trace(self, logits_BHTS: Tensor, inputs: AttentionInputs) -> dict[str, Tensor]:
        """``position`` p of each key, where it follows from the input."""
        if self.reads_positions is not None:
            return {}
        return {"position": self.positions(inputs.x_BSE)[:, :, None]}
