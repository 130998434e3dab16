from typing import Any, Literal, Self

import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from pe_lab.pe.alibi import ALiBi
from pe_lab.pe.base import AttentionInputs, Dims, PositionalEncoding, replaces_content
from pe_lab.pe.fire import FIRE
from pe_lab.pe.kerple import KERPLE

# Each with the values of its yaml; a test holds them equal.
BASES: dict[str, tuple[type[ALiBi | KERPLE | FIRE], dict[str, Any]]] = {
    "alibi": (ALiBi, {"learned": False}),
    "kerple": (KERPLE, {"form": "log", "share_layers": True}),
    "fire": (FIRE, {"hidden": 32, "c": 0.1, "threshold": 0.25, "share_layers": False}),
}


class DAPE(PositionalEncoding):
    """A static bias, adjusted by what a small network reads in the logits of all heads.

        logits = A + B + out(leaky_relu(hidden([A, B])))
        A = q_i . k_j / sqrt(D),   B the bias of ``base``        vectors over the heads, (H,)
        hidden: Linear(2 H, width),   out: Linear(width, H) without bias

    B is ALiBi, KERPLE or FIRE as ``pe=alibi``, ``kerple`` or ``fire`` set it, and is shared among
    layers where that one is. Each layer has its own network, with PyTorch's initial weights. Any
    length. Absolute where the base is (``fire``); causal.

    Source: Zheng 2024 (2405.14722) and its code, whose ``out`` has a bias that softmax cannot see.
    There every layer has a separate base, and FIRE's perceptron has a leaky activation. DAPE V2
    (2410.04798), a convolution over keys, is another method.

    The hidden layer is (B, T, S, width): width / H times the logits.
    """

    reads_positions = float

    def __init__(
        self, dims: Dims, base: Literal["alibi", "kerple", "fire"], width: PositiveInt
    ) -> None:
        super().__init__()
        bias_class, keys = BASES[base]
        self.base = bias_class(dims, **keys)
        self.shift_invariant = self.base.shift_invariant
        self.hidden = nn.Linear(2 * dims.n_heads, width)
        self.out = nn.Linear(width, dims.n_heads, bias=False)

    def share(self, lower: Self) -> None:
        if self.base.share_layers:
            self.base = lower.base

    @replaces_content
    def logits(
        self, content_BHTS: Tensor, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> Tensor:
        bias_BHTS = self.base.bias(inputs.pos_q_BT, inputs.pos_k_BS)
        return content_BHTS + bias_BHTS + self._adjustment(content_BHTS, bias_BHTS)

    def _adjustment(self, content_BHTS: Tensor, bias_BHTS: Tensor) -> Tensor:
        # Heads last, and the bias apart: it has batch 1 where all examples share their positions.
        from_content, from_bias = self.hidden.weight.chunk(2, -1)
        hidden_BTSN = F.linear(content_BHTS.movedim(1, -1), from_content)
        hidden_BTSN += F.linear(
            bias_BHTS.movedim(1, -1).to(from_bias.dtype), from_bias, self.hidden.bias
        )
        adjusted_BTSH: Tensor = self.out(F.leaky_relu(hidden_BTSN, inplace=True))
        return adjusted_BTSH.movedim(-1, 1)

    def trace(self, logits_BHTS: Tensor, inputs: AttentionInputs) -> dict[str, Tensor]:
        """``adjustment``, the network's part of the logits, and ``base bias`` B."""
        q, k = inputs.q_BHTD, inputs.k_BHSD
        content_BHTS = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
        bias_BHTS = self.base.bias(inputs.pos_q_BT, inputs.pos_k_BS)
        return {
            "adjustment": self._adjustment(content_BHTS, bias_BHTS),
            "base bias": bias_BHTS,
        }
