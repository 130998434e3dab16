import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from pe_lab.pe.base import Dims, PositionalEncoding, by_distance

FAR = -1e9
"""Added to the logits outside of a window: the weight is 0 in every precision."""


class HardALiBi(PositionalEncoding):
    """Head h = 1, 2, .. sees the last h tokens only, itself among them; the other heads see all.

        logits[h, i, j] = q_i . k_j / sqrt(D) - 1e9 [i - j >= windows[h]]
        windows[h]      = h for h = 1 .. heads, infinite for the others              (H,)

    ``heads: null`` is half of the heads, at least one. Windows are counted in positions, i - j. The
    other heads have no encoding. No parameters, any length. Not absolute; causal.

    Source: Jelassi 2024 (2402.01032), ``num_masked_heads`` of its code.
    """

    shift_invariant = True

    def __init__(self, dims: Dims, heads: PositiveInt | None) -> None:
        super().__init__()
        self.heads = max(1, dims.n_heads // 2) if heads is None else heads
        if self.heads > dims.n_heads:
            raise ValueError(
                f"heads={heads} is more than the {dims.n_heads} heads of layer {dims.layer}: set "
                f"heads to {dims.n_heads} or less"
            )
        # The first head sees itself alone, wherever it is.
        self.reads_positions = float if self.heads > 1 else None
        windows_H = torch.full((dims.n_heads,), torch.inf)
        windows_H[: self.heads] = torch.arange(1, self.heads + 1)
        self.windows = nn.Buffer(windows_H, persistent=False)

    @by_distance
    def bias(self, pos_q_BT: Tensor, pos_k_BS: Tensor) -> Tensor | None:
        if self.reads_positions is None:
            pos_k_BS = torch.arange(pos_k_BS.shape[1], device=pos_k_BS.device)[None]
            pos_q_BT = pos_k_BS[:, -pos_q_BT.shape[1] :]
        far_BTS = (pos_q_BT[:, :, None] - pos_k_BS[:, None]).abs()
        outside = far_BTS[:, None] >= self.windows[:, None, None]
        return outside.to(self.windows.dtype) * FAR
