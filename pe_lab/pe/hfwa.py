"""Hybrid window and full attention."""

from typing import Annotated, Any

from pydantic import Field, PositiveFloat
from torch import Tensor

from pe_lab.pe.base import AttentionInputs, Dims, by_position
from pe_lab.pe.rope import LogN, Pairing, RoPE


class HFWA(RoPE):
    """RoPE within a window in all layers but the last, which sees everything and rotates nothing.

    In the first L - 1 layers a query sees itself and the w - 1 tokens before it (``window``),
    through ``rope``; in the last one it sees all, without positions, and is multiplied by log n /
    log train length (``logn`` as in ``rope``, here ``train``). Trained so from the
    start. Source: Su's blog, 9603 (2023). ``window: null`` is the largest with (w - 1) (L - 1) +
    1 <= 3/4 of the trained length, as advised there: what a token knows through all windows then
    stays within what training has shown. L counts all layers, at least 2. No parameters, any
    length. Absolute, by ``logn``; causal.
    """

    def __init__(
        self,
        dims: Dims,
        base: PositiveFloat,
        pairing: Pairing,
        window: Annotated[int, Field(ge=2)] | None,
        logn: LogN,
        logn_clip: bool | None,
    ) -> None:
        super().__init__(dims, base, pairing, logn, logn_clip)
        self.any_order = False
        if dims.n_layers == 1:
            raise ValueError(
                "n_layers=1 leaves no layer for a window below the last one: set model.n_layers "
                "to 2 or more"
            )
        self.both_ways = False
        self.last = dims.layer == dims.n_layers - 1
        if self.last:
            return
        self.logn, self.shift_invariant = "none", True
        reach = 3 * dims.train_len // 4
        self.window = max(2, 1 + (reach - 1) // (dims.n_layers - 1)) if window is None else window

    def null_values(self) -> dict[str, Any]:
        return super().null_values() | {"window": self.window}

    def hooks(self) -> frozenset[str]:
        plain = self.last and self.logn == "none"
        return super().hooks() - ({"rotate"} if plain else set())

    @by_position
    def rotate(
        self, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> tuple[Tensor, Tensor]:
        if self.last:
            return self.scale_queries(q_BHTD, inputs.pos_q_BT), k_BHSD
        return super().rotate(q_BHTD, k_BHSD, inputs)
