"""The configuration of models: its fields are the keys of a yaml in conf/model/."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt
from torch import nn

from pe_lab.core.task import Task
from pe_lab.core.validation import closed
from pe_lab.models.base import Model
from pe_lab.models.conv import AttentionConvKeys
from pe_lab.models.normalizers import ASEntmax, Entmax, LogN, Sink, Softmax
from pe_lab.pe.base import Dims, PositionalEncoding

MAX_LAYERS = 1024
"""Each layer is built for itself: thousands would take minutes before the first step."""

WITHOUT_ATTENTION = (
    "acts in attention, which this model does not have: choose an encoding that only changes the "
    "input"
)
"""Why a model without attention cannot use an encoding."""


@dataclass(frozen=True)
class Vocabulary:
    """The vocabulary of a task.

    Args:
        size: the number of tokens in it.
        separator: the token that ends the input part, where the task has an input and an output
            part.
    """

    size: int
    separator: int | None = None


@dataclass(frozen=True, kw_only=True)
class ModelConfig(ABC):
    """The configuration of a model. Its fields are the keys of its yaml.

    A subclass is a frozen keyword-only dataclass that raises ValueError in ``__post_init__`` for
    values that do not fit together.
    """

    n_layers: Annotated[int, Field(ge=1, le=MAX_LAYERS)]
    d_model: PositiveInt

    restarts_positions: ClassVar[bool] = False
    """Whether positions start again at the task's separator."""

    @abstractmethod
    def build(self, vocabulary: Vocabulary, encodings: Sequence[PositionalEncoding]) -> Model:
        """The model with its initial weights, drawn from torch's generator.

        Args:
            encodings: one for each layer that ``dims`` counts.
        """

    def dims(self, vocab_size: int, train_len: int, max_len: int) -> Dims:
        """The sizes that the encodings depend on."""
        return Dims(self.d_model, 1, self.n_layers, vocab_size, train_len, max_len)

    def layers_without_encoding(self) -> frozenset[int]:
        """The layers without the encoding, numbered among those that ``dims`` counts."""
        return frozenset()

    def refuses(self, encoding: PositionalEncoding) -> str | None:
        """Why this model cannot use an encoding: the end of a sentence that begins with pe=NAME;
        None if it can use it."""
        return None

    def refuses_task(self, task: Task) -> str | None:
        """Why this model cannot learn a task: the end of a sentence that begins with task=NAME."""
        return None

    def null_values(self) -> dict[str, Any]:
        """The values of keys of its yaml that are null: key -> value."""
        return {}

    def weights(self) -> int:
        """Roughly the number of weights, to estimate memory before the model is built.

        A model built on torch's meta device would need no formula, but imports 800 modules at the
        start of every run (1.8 s).
        """
        return 12 * self.n_layers * self.d_model**2


Activation = Literal["relu", "gelu", "swiglu"]
MixerName = Literal["attention", "gated_deltanet", "kda", "mamba2", "conv", "lstm"]


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(AttentionConvKeys, ModelConfig):
    """The keys that all decoders have.

    ``logn: learned`` multiplies the logits, with what an encoding adds to them, by s_h log n: n
    is the number of keys that the query sees, s_h a parameter of each head and layer. Source:
    scalable softmax, Nakanishi 2025 (2501.19399). A number N multiplies them by 1 + 0.1 ln(1 +
    floor(n / N)) instead, in the layers without the encoding, or in all if each has it; n is
    then the number of tokens up to the query, whatever the window. N is the trained length in Llama
    4 (which does so without positions only) and in Ministral 3 (floor((n - 1) / N)): nothing
    changes before it.
    """

    dropout: Annotated[float, Field(ge=0, lt=1)]
    norm: Literal["layernorm", "rmsnorm"]
    norm_position: Literal["pre", "post"]
    tied_embeddings: bool
    window: PositiveInt | None = None
    logn: Literal["learned"] | PositiveInt | None = None

    def attention_layers(self) -> list[int]:
        """The numbers of the layers with attention."""
        return [*range(self.n_layers)]

    @abstractmethod
    def new_block(self, number: int, encoding: PositionalEncoding | None) -> nn.Module:
        """The layer of this number; without attention it has no encoding."""

    def new_normalizer(self, n_heads: int) -> nn.Module:
        """The normalizer of a layer's logits."""
        return self.scaled(Softmax(), n_heads)

    def scaled(self, normalizer: nn.Module, n_heads: int) -> nn.Module:
        """The normalizer of logits that are scaled by ``logn``."""
        if self.logn is None:
            return normalizer
        return LogN(n_heads, None if self.logn == "learned" else self.logn, normalizer)

    def replaces_softmax(self) -> str | None:
        """The keys by which weights are not softmax of the logits, None: they are."""
        apart = self.logn != "learned" and self.layers_without_encoding()
        return None if self.logn is None or apart else f"model.logn={self.logn}"

    def refuses(self, encoding: PositionalEncoding) -> str | None:
        own = self.replaces_softmax()
        if own is None or "normalize" not in encoding.hooks():
            return None
        return f"replaces softmax, and so does {own}: choose one that leaves softmax"

    def new_norm(self) -> nn.Module:
        return (nn.RMSNorm if self.norm == "rmsnorm" else nn.LayerNorm)(self.d_model)


@closed
class LayerConfig:
    """The sizes of one layer (``model.layers.<i>``); null: those of the model."""

    mixer: MixerName | None = None
    n_heads: PositiveInt | None = None
    d_ff: NonNegativeInt | None = None
    activation: Activation | None = None
    window: PositiveInt | None = None
    encoded: bool = True
    """False: the layer has no encoding."""


@dataclass(frozen=True, kw_only=True)
class TransformerSizes(DecoderConfig):
    """The keys of a transformer. ``d_ff: null`` is 4 d_model, 8/3 d_model for SwiGLU; with 0 there
    is no feed-forward.

    ``init: scaled`` is the initialisation of transformer.py; ``pytorch`` is that of nn.Linear:
    biases too are uniform in +-1/sqrt(fan in), and no projection is divided. ``hidden_dropout``
    also drops hidden units of the feed-forward.
    """

    n_heads: PositiveInt
    d_ff: NonNegativeInt | None
    activation: Activation
    init: Literal["scaled", "pytorch"] = "scaled"
    hidden_dropout: bool = False
    sink: bool = False
    output_gate: bool = False
    qk_norm: bool = False
    normalizer: Literal["entmax", "asentmax"] | None = None
    layers: dict[int, LayerConfig] = field(default_factory=dict)

    has_bias: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.normalizer is not None and self.sink:
            raise ValueError(
                f"sink=true adds to the denominator of softmax, and normalizer={self.normalizer} "
                "has none: set sink=false or normalizer=null"
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
        if self.logn != "learned" and self.layers_without_encoding() and layer.encoded:
            changed["logn"] = None
        return replace(self, **changed, layers={})

    def new_normalizer(self, n_heads: int) -> nn.Module:
        if self.normalizer == "asentmax":
            return self.scaled(ASEntmax(self.d_model, n_heads), n_heads)
        sparse = Entmax() if self.normalizer else Softmax()
        return self.scaled(Sink(n_heads) if self.sink else sparse, n_heads)

    def replaces_softmax(self) -> str | None:
        if self.normalizer is not None:
            return f"model.normalizer={self.normalizer}"
        return "model.sink=true" if self.sink else super().replaces_softmax()

    @property
    def ff_width(self) -> int:
        """Width of the feed-forward layer."""
        if self.d_ff is not None:
            return self.d_ff
        return round(8 * self.d_model / 3) if self.activation == "swiglu" else 4 * self.d_model

    def dims(self, vocab_size: int, train_len: int, max_len: int) -> Dims:
        layers = self.attention_layers()
        heads = [self._layer(number).n_heads or self.n_heads for number in layers]
        return Dims(
            self.d_model, self.n_heads, max(1, len(layers)), vocab_size, train_len, max_len,
            layer_heads=tuple(heads) if len({*heads, self.n_heads}) > 1 else None,
        )  # fmt: skip

    def layers_without_encoding(self) -> frozenset[int]:
        layers = enumerate(self.attention_layers())
        return frozenset(nth for nth, number in layers if not self._layer(number).encoded)

    def null_values(self) -> dict[str, Any]:
        return {"d_ff": self.ff_width}

    def weights(self) -> int:
        widths = [self.at_layer(number).ff_width for number in range(self.n_layers)]
        return sum(4 * self.d_model**2 + 2 * self.d_model * width for width in widths)
