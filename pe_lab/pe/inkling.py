from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn

from pe_lab.pe.base import AttentionInputs, Dims, PositionalEncoding, by_position
from pe_lab.pe.functional import distances, pick_rows, span, widened


class Inkling(PositionalEncoding):
    """Bias by the distance, whose profile follows from the query's token; logits grow far out.

        logits[h, i, j] = growth[i] (q_i . k_j / sqrt(D) + r[h, i] . table[:, i - j])
        r[h, i]         = relative(x_i)                                            (width,)
        growth[i]       = 1 + alpha log(max((i + 1) / floor, 1))

    x is the attention's input, ``relative`` maps E to H width without bias, and ``table`` is
    (width, extent), for each layer. From the distance ``extent`` on the bias is 0. ``extent:
    null`` and ``floor: null`` are the trained length; the released model has 1024 at the distance.
    ``alpha: 0`` leaves out the growth. The table starts normal with deviation 0.02, ``relative`` as
    the trunk's linear weights. Any length. Absolute by its growth alone; causal.

    Source: Inkling of Thinking Machines, as in transformers 5.24. Its norms of q and k are
    ``model.qk_norm=true``, its convolutions of k and v about ``model.conv=4``. Its layers with
    windows have no growth.
    """

    def __init__(
        self,
        dims: Dims,
        width: PositiveInt,
        extent: PositiveInt | None,
        alpha: Annotated[float, Field(ge=0)],
        floor: PositiveFloat | None,
    ) -> None:
        super().__init__()
        self.extent = dims.train_len if extent is None else extent
        self.floor = float(dims.train_len) if floor is None else floor
        self.alpha, self.n_heads = alpha, dims.n_heads
        # Past the last position there is nothing to grow.
        self.shift_invariant = alpha == 0 or self.floor >= dims.max_len
        self.unused = set() if alpha else {"rotate"}
        self.relative = nn.Linear(dims.d_model, dims.n_heads * width, bias=False)
        self.table = nn.Parameter(0.02 * torch.randn(width, self.extent))

    @by_position
    def rotate(
        self, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> tuple[Tensor, Tensor]:
        growth_BT = self.growth(inputs.pos_q_BT)
        return (q_BHTD * growth_BT[:, None, :, None]).to(q_BHTD.dtype), k_BHSD

    def logits(
        self, content_BHTS: Tensor, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> Tensor:
        bias_BHTS = self.relative_bias(inputs)
        growth_BT = self.growth(inputs.pos_q_BT).to(bias_BHTS.dtype)
        return content_BHTS + bias_BHTS * growth_BT[:, None, :, None]

    def growth(self, pos_q_BT: Tensor) -> Tensor:
        """What the logits of each query are multiplied by."""
        return 1 + self.alpha * ((pos_q_BT.double() + 1) / self.floor).clamp(min=1).log()

    def relative_bias(self, inputs: AttentionInputs) -> Tensor:
        """r[h, i] . table[:, i - j], (B, H, T, S)."""
        x_BTE = inputs.x_BSE[:, -inputs.pos_q_BT.shape[1] :]
        r_BHTW = self.relative(x_BTE).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        near = min(self.extent, span(inputs.pos_k_BS) + 1)
        # A last column of zeros is for all distances past the extent.
        score_BHTN = F.pad(widened(r_BHTW @ self.table[:, :near]), (0, 1))
        return pick_rows(score_BHTN, distances(inputs.pos_q_BT, inputs.pos_k_BS).clamp(max=near))

    def trace(self, logits_BHTS: Tensor, inputs: AttentionInputs) -> dict[str, Tensor]:
        """``relative bias`` of each pair, without the growth."""
        return {"relative bias": self.relative_bias(inputs)}
