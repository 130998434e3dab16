"""Gated attention units: attention and feed-forward in one layer.

Shape letters as in transformer.py; W width of gates and values, s width of the head.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor, nn

from pe_lab.models.attention import Attention, last_positions, wide
from pe_lab.models.base import pick_scored
from pe_lab.models.config import DecoderConfig, Vocabulary
from pe_lab.models.conv import Place
from pe_lab.models.kv_cache import LayerCache
from pe_lab.models.normalizers import SquaredReLU
from pe_lab.models.transformer import Transformer, draw
from pe_lab.pe.base import Dims, PositionalEncoding

Activation = Callable[[Tensor], Tensor]
ACTIVATIONS: dict[str, Activation] = {"silu": F.silu, "gelu": F.gelu, "relu": F.relu}


@dataclass(frozen=True, kw_only=True)
class GAUConfig(DecoderConfig):
    """Gated attention units: one head, whose values are gated, in the place of a feed-forward.

    A layer is x + (u * A v) W_o with u = phi(norm(x) W_u), v = phi(norm(x) W_v), both of width
    ``expansion`` * d_model, and A the attention of one head: z = phi(norm(x) W_z) of width s =
    ``head_width``, q = gamma_q * z + beta_q, k = gamma_k * z + beta_k. All linear maps have biases.
    Source: Hua 2022 (2202.10447), phi its Swish, expansion 2 and s 128 at d_model 768. Two layers
    have about the weights of one of a transformer, 6 d_model^2 each.

    - ``attention: softmax`` is A = softmax(q_i . k_j / sqrt(s)), as in Su's GAU-alpha (Su's blog,
      9052, 2022) and the models of his table of length extrapolation (9708, 2023); that one also
      multiplies the logits by log n / log 512 (the key ``logn`` of ``rope``), norms after the
      residual (``norm_position: post``), by a norm without weights, and has no biases.
    - ``attention: relu2`` is A = relu(q_i . k_j / sqrt(s) + bias)^2 / n, the paper's, scaled as in
      Su's blog, 8934 (2022). n is how many keys query i sees, as in Su's code: divided by the
      length, as the paper has it, early queries would see less the longer the sequence is, and
      none could be answered before the last token is there. It extrapolates badly (9019, 2022).

    Initially W_o is divided by sqrt(n_layers), gamma is 1 and beta 0 (q = k = z); all else as in
    transformer.py.
    """

    expansion: PositiveInt
    head_width: PositiveInt
    attention: Literal["softmax", "relu2"]
    activation: Literal["silu", "gelu", "relu"]
    conv_at: Place = "qkv"

    @property
    def width(self) -> int:
        """The width of gates and values."""
        return self.expansion * self.d_model

    def dims(self, vocab_size: int, train_len: int, max_len: int) -> Dims:
        return Dims(
            self.d_model, 1, self.n_layers, vocab_size, train_len, max_len,
            head_width=self.head_width,
        )  # fmt: skip

    def weights(self) -> int:
        return self.n_layers * self.d_model * (3 * self.width + self.head_width)

    def new_normalizer(self, n_heads: int) -> nn.Module:
        return SquaredReLU() if self.attention == "relu2" else super().new_normalizer(n_heads)

    def replaces_softmax(self) -> str | None:
        squared = self.attention == "relu2"
        return "model.attention=relu2" if squared else super().replaces_softmax()

    def refuses(self, encoding: PositionalEncoding) -> str | None:
        if "update_state" in encoding.hooks():
            return (
                "updates its state from the input of each layer's feed-forward, which a gated "
                "attention unit does not have: set model.n_layers=1 or model=transformer"
            )
        by_values = any(getattr(m, "gates", None) == "values" for m in encoding.modules())
        if ("values" in encoding.hooks() or by_values) and self.width != self.head_width:
            return (
                f"needs values as wide as keys, and they are {self.width} and {self.head_width} "
                f"wide: set model.head_width={self.width}"
            )
        return super().refuses(encoding)

    def build(self, vocabulary: Vocabulary, encodings: Sequence[PositionalEncoding]) -> Transformer:
        return Transformer(self, vocabulary.size, encodings)

    def new_block(self, number: int, encoding: PositionalEncoding | None) -> nn.Module:
        assert encoding is not None
        return Unit(self, encoding)


class SharedKeyAttention(Attention):
    """One head whose queries and keys are two scalings of one projection z of the input."""

    def __init__(self, cfg: GAUConfig, encoding: PositionalEncoding) -> None:
        all_widths = 2 * cfg.head_width + cfg.width
        super().__init__(encoding, cfg.window, cfg.new_normalizer(1), cfg.dropout)
        self.gate, self.conv, self.width = None, cfg.new_conv("qkv", all_widths), cfg.width
        self.activation = ACTIVATIONS[cfg.activation]
        self.vz = nn.Linear(cfg.d_model, cfg.width + cfg.head_width)
        self.gamma = nn.Parameter(self.vz.weight.new_ones(2, cfg.head_width))
        self.beta = nn.Parameter(self.vz.weight.new_zeros(2, cfg.head_width))
        self.out: nn.Module = nn.Identity()

    def project(self, x_BTE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        vz_B1TX = self.activation(wide(self.vz(x_BTE)))[:, None]
        v, z = vz_B1TX[..., : self.width], vz_B1TX[..., self.width :]
        q, k = (gamma * z + beta for gamma, beta in zip(self.gamma, self.beta, strict=True))
        if self.conv is None:
            return q, k, v
        s = z.shape[-1]
        qkv_BTX = self.conv(torch.cat((q, k, v), -1).squeeze(1))
        return qkv_BTX[:, None].split((s, s, self.width), -1)


class Unit(nn.Module):
    """One gated attention unit in a residual branch, normalised before or after."""

    branches = 1

    def __init__(self, cfg: GAUConfig, encoding: PositionalEncoding) -> None:
        super().__init__()
        self.pre = cfg.norm_position == "pre"
        self.attention = SharedKeyAttention(cfg, encoding)
        self.activation = ACTIVATIONS[cfg.activation]
        self.gate = nn.Linear(cfg.d_model, cfg.width)
        self.out = nn.Linear(cfg.width, cfg.d_model)
        self.norm, self.drop = cfg.new_norm(), nn.Dropout(cfg.dropout)

    def forward(
        self,
        x: Tensor,
        pos_BS: Tensor,
        carried: Any = None,
        cache: LayerCache | None = None,
        scored: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        x = self.attention.encoding.block_input(x, last_positions(pos_BS, x.shape[1]))
        h = self.norm(x) if self.pre else x
        mixed, carried = self.attention(h, pos_BS, carried, cache)
        x, h, mixed = (pick_scored(states, scored) for states in (x, h, mixed))
        x = x + self.drop(self.out(self.activation(self.gate(h)) * mixed))
        return (x if self.pre else self.norm(x)), carried

    def initialise(self, branches: int) -> None:
        for linear in (self.gate, self.attention.vz, self.out):
            draw(linear)
        self.out.weight.div_(math.sqrt(branches))
