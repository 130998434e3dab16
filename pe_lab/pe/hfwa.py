from typing import Annotated

from pydantic import Field, PositiveFloat
from torch import Tensor

from pe_lab.pe.base import AttentionInputs, Dims, by_position
from pe_lab.pe.rope import LogNMode, Pairing, RoPE


class HFWA(RoPE):
    """RoPE within a window in all layers but the last, which sees everything and rotates nothing.

        layers 1 .. L - 1:   logits[i, j] = RoPE's for i - j < window, no others
        layer L:             logits[i, j] = q_i . k_j / sqrt(D) log(i + 1) / log(train length)

    ``window: null`` is the largest with (window - 1) (L - 1) + 1 <= 3/4 of the trained length, as
    the source advises. What a token knows through all windows then stays within what training has
    shown. L counts all layers, at least 2. ``logn`` as in ``rope``, by default ``train``. A model
    is trained so from the start. No parameters, any length. Absolute, by ``logn``; causal.

    Source: Su's blog, 9603 (2023).
    """

    def __init__(
        self,
        dims: Dims,
        base: PositiveFloat,
        pairing: Pairing,
        window: Annotated[int, Field(ge=2)] | None,
        logn: LogNMode,
        logn_clip: bool | None,
    ) -> None:
        super().__init__(dims, base, pairing, logn, logn_clip)
        if dims.n_layers == 1:
            raise ValueError(
                "one layer of attention leaves none for a window below the last one: give it two "
                "or more by model.n_layers, model.pattern, or n_layers of pe_lab.nn.encodings"
            )
        self.last = dims.layer == dims.n_layers - 1
        if self.last:
            self.unused = {"rotate"} if logn == "none" else set()
            return
        self.logn, self.shift_invariant = "none", True
        reach = 3 * dims.train_len // 4
        self.window = max(2, 1 + (reach - 1) // (dims.n_layers - 1)) if window is None else window

    @by_position
    def rotate(
        self, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> tuple[Tensor, Tensor]:
        if self.last:
            return self.scale_queries(q_BHTD, inputs.pos_q_BT), k_BHSD
        return super().rotate(q_BHTD, k_BHSD, inputs)
