"""The keys of decoders, and the sizes of a transformer's layers, common or for single layers."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveInt
from torch import nn

from pe_lab.common.validation import closed
from pe_lab.models.base import ModelConfig
from pe_lab.pe.base import Dims, PositionalEncoding

Activation = Literal["relu", "gelu", "swiglu"]


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(ModelConfig):
    """The keys that all decoders have.

    ``logn: learned`` multiplies the logits, with what an encoding adds to them, by s_h log n: n
    is the number of keys that the query sees, s_h a parameter of each head and layer. Source:
    scalable softmax, Nakanishi 2025 (2501.19399).
    """

    dropout: Annotated[float, Field(ge=0, lt=1)]
    norm: Literal["layernorm", "rmsnorm"]
    norm_position: Literal["pre", "post"]
    tied_embeddings: bool
    window: PositiveInt | None = None
    logn: Literal["learned"] | None = None

    def refuses_scaling(self, encoding: PositionalEncoding) -> str | None:
        """Why the logits of an encoding cannot be scaled by ``logn``, as ``refuses`` says it."""
        if self.logn is None:
            return None
        if "normalize" in encoding.hooks():
            return (
                "replaces softmax, whose logits model.logn=learned scales: set model.logn=null, or "
                "choose one that leaves softmax ({fitting})"
            )
        if encoding.needs_softmax is not None and "logn=" in encoding.needs_softmax:
            key = encoding.needs_softmax
            return (
                f"with {key} scales logits by log n, as model.logn=learned does: set "
                f"pe.{key.partition('=')[0]}=none or model.logn=null"
            )
        return None

    def new_norm(self) -> nn.Module:
        return (nn.RMSNorm if self.norm == "rmsnorm" else nn.LayerNorm)(self.d_model)


@closed
class LayerConfig:
    """The sizes of one layer (``model.layers.<i>``); null: those of the model."""

    n_heads: PositiveInt | None = None
    d_ff: PositiveInt | None = None
    activation: Activation | None = None
    window: PositiveInt | None = None
    encoded: bool = True
    """False: the layer has no encoding."""


@dataclass(frozen=True, kw_only=True)
class TransformerSizes(DecoderConfig):
    """The keys of a transformer. ``d_ff: null`` is 4 d_model, 8/3 d_model for SwiGLU.

    ``init: scaled`` is the initialisation of transformer.py; ``pytorch`` is that of nn.Linear:
    biases too are uniform in +-1/sqrt(fan in), and no projection is divided. ``hidden_dropout``
    also drops hidden units of the feed-forward.
    """

    n_heads: PositiveInt
    d_ff: PositiveInt | None
    activation: Activation
    init: Literal["scaled", "pytorch"] = "scaled"
    hidden_dropout: bool = False
    layers: dict[int, LayerConfig] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.hidden_dropout and not self.dropout:
            raise ValueError(
                "hidden_dropout=true has no effect with dropout=0: set dropout above 0, or "
                "hidden_dropout=false"
            )
        for number in self.layers:
            if not 0 <= number < self.n_layers:
                raise ValueError(
                    f"unknown layer layers.{number} with n_layers={self.n_layers}: layers are "
                    f"numbered from 0 to {self.n_layers - 1}"
                )
        for number in range(self.n_layers):
            n_heads = self._layer(number).n_heads
            heads, where = n_heads or self.n_heads, f"layers.{number}." if n_heads else ""
            if self.d_model % heads:
                raise ValueError(
                    f"d_model={self.d_model} is not divisible by {where}n_heads={heads}: "
                    "choose a multiple"
                )

    def _layer(self, number: int) -> LayerConfig:
        return self.layers.get(number, LayerConfig())

    def at_layer(self, number: int) -> Self:
        """The configuration with the values of this layer."""
        layer = self._layer(number)
        changed = {
            key: value
            for key in ("n_heads", "d_ff", "activation", "window")
            if (value := getattr(layer, key)) is not None
        }
        return replace(self, **changed, layers={})

    @property
    def ff_width(self) -> int:
        """Width of the feed-forward layer."""
        if self.d_ff is not None:
            return self.d_ff
        return round(8 * self.d_model / 3) if self.activation == "swiglu" else 4 * self.d_model

    def dims(self, vocab_size: int, train_len: int, max_len: int) -> Dims:
        heads = [self._layer(number).n_heads or self.n_heads for number in range(self.n_layers)]
        return Dims(
            self.d_model, self.n_heads, self.n_layers, vocab_size, train_len, max_len,
            layer_heads=tuple(heads) if len({*heads, self.n_heads}) > 1 else None,
        )  # fmt: skip

    def without(self) -> frozenset[int]:
        return frozenset(number for number, layer in self.layers.items() if not layer.encoded)

    def null_values(self) -> dict[str, Any]:
        return {"d_ff": self.ff_width}

    def weights(self) -> int:
        widths = [self.at_layer(number).ff_width for number in range(self.n_layers)]
        return sum(4 * self.d_model**2 + 2 * self.d_model * width for width in widths)
