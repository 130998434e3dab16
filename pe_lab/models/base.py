"""The base classes of models: a configuration, whose fields are the yaml's keys, and a network;
and the keys of decoders.

Adding a model takes one file with a class of each kind and one yaml in conf/model/.

Shape letters: B batch, T new tokens, S tokens including the cached ones, E width of the hidden
states, N scored tokens, V vocabulary.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from pe_lab.core.dropout import Drop
from pe_lab.core.task import Bools, Task
from pe_lab.core.validation import closed
from pe_lab.models.conv import AttentionConvKeys, CausalConv
from pe_lab.models.kv_cache import TokenCache
from pe_lab.pe.base import Dims, PositionalEncoding
from pe_lab.pe.functional import widened

MAX_LAYERS = 1024
"""Each layer is built for itself: thousands would take minutes before the first step."""


@dataclass(frozen=True)
class Vocabulary:
    """The vocabulary of a task, and the lengths of its sequences.

    Args:
        size: the number of tokens in it.
        separator: the token that ends the input part, where the task has an input and an output
            part.
        train_len, max_len: tokens of the training sequences, and of the longest measured ones.
    """

    size: int
    separator: int | None = None
    train_len: int = 1
    max_len: int = 1


@dataclass(frozen=True)
class ScoredPositions:
    """The tokens whose hidden states a loss or an evaluation needs, of sequences of T tokens.

    Args:
        at_N: their indices b T + t, ascending.
        first: the smallest t among them.
    """

    at_N: Tensor
    first: int

    @classmethod
    def of(cls, chosen: Bools, device: torch.device) -> "ScoredPositions":
        """The tokens where ``chosen`` (B, T) is true."""
        first = int(chosen.any(0).argmax())
        return cls(torch.from_numpy(np.flatnonzero(chosen)).to(device), first)

    def pick(self, states: Tensor, t: int | None = None) -> Tensor:
        """The states at these positions, (N, E).

        Args:
            states: (B, T, E), or of the last tokens only, (B, n, E).
            t: T, if ``states`` may hold fewer tokens.
        """
        rows, n = self.at_N, states.shape[1]
        if t is not None and n < t:
            rows = rows - (torch.div(rows, t, rounding_mode="floor") + 1) * (t - n)
        return states.flatten(0, 1).index_select(0, rows)


class Model(nn.Module, ABC):
    """Tokens to hidden states (``forward``), hidden states to logits (``unembed``)."""

    tokens: nn.Embedding
    head: nn.Linear
    tied: bool = False
    """Whether ``head`` has the weights of ``tokens``."""
    p: float = 0.0
    """The dropout probability."""
    dropout_type: type[Drop] = Drop
    """The implementation of dropout; ``kernels.apply.accelerate`` sets a faster one."""
    conv: CausalConv | None
    """The convolution of the token embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = None

    @property
    @abstractmethod
    def encodings(self) -> list[PositionalEncoding]:
        """One encoding for each layer that has one; layers may share an instance."""

    @abstractmethod
    def forward(
        self,
        tokens_BT: Tensor,
        pos_BS: Tensor,
        cache: Any = None,
        *,
        scored: ScoredPositions | None = None,
        key: int | None = None,
    ) -> Tensor:
        """(B, T) tokens and the positions of all S tokens so far to hidden states (B, T, E).

        Args:
            cache: from ``empty_cache``; holds the S - T previous tokens.
            scored: return only the states of these tokens, (N, E); without a cache.
            key: the key of the dropout masks (see dropout.py); None: drawn from torch's generator.
        """

    def unembed(self, hidden: Tensor) -> Tensor:
        """(.., E) hidden states to (.., V) logits."""
        return self.head(hidden)

    def embed(self, tokens_BT: Tensor, pos_BS: Tensor, cache: TokenCache | None) -> Tensor:
        """Token embeddings (B, T, E) after ``conv`` and ``embed`` of the first layer's encoding,
        which may read the previous tokens."""
        tokens_BS, t = tokens_BT, tokens_BT.shape[1]
        whole = "embed" in self.encodings[0].hooks()
        if cache is not None and (whole or self.conv is not None):
            tokens_BS = cache.tokens_BS.extend(tokens_BT)
            if not whole and self.conv is not None:
                tokens_BS = tokens_BS[:, -(t + self.conv.reach) :]
        x_BSE = self.tokens(tokens_BS)
        if self.tied:
            x_BSE = x_BSE * math.sqrt(x_BSE.shape[-1])
        if self.conv is not None:
            x_BSE = self.conv(x_BSE)
        return self.encodings[0].embed(x_BSE, tokens_BS, pos_BS)[:, -t:]

    @torch.no_grad()
    def initialise_embeddings(self) -> None:
        """Draw the initial weights of ``tokens`` and ``head`` from torch's generator, and tie
        them."""
        self.tokens.weight.normal_(0, self.tokens.embedding_dim**-0.5 if self.tied else 1)
        bound = self.head.in_features**-0.5
        self.head.weight.uniform_(-bound, bound)
        if self.tied:
            self.head.weight = self.tokens.weight

    @abstractmethod
    def empty_cache(self) -> Any:
        """The cache to start decoding with.

        Raises:
            ValueError: an encoding needs the whole sequence at once.
        """

    def drop(self, key: int | None) -> Drop | None:
        """The dropout of a forward pass with this ``key``; None outside of training."""
        if not (self.training and self.p):
            return None
        return self.dropout_type(self.p, int(torch.randint(2**62, ())) if key is None else key)

    def autocast(self, precision: str) -> torch.autocast:
        """The context of ``train.precision`` on the model's device."""
        half = precision == "bfloat16"
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=half)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device


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

    def without(self) -> frozenset[int]:
        """The layers without the encoding."""
        return frozenset()

    def refuses(self, encoding: PositionalEncoding) -> str | None:
        """Why this model cannot use an encoding, and which ones it can: the end of a sentence that
        begins with pe=NAME; None if it can use it. ``{fitting}`` in the sentence is replaced by
        the names of the encodings that are not refused."""
        return None

    def refuses_task(self, task: Task) -> str | None:
        """Why this model cannot learn a task: the end of a sentence that begins with task=NAME."""
        return None

    def null_values(self) -> dict[str, Any]:
        """The values of keys of its yaml that are null: key -> value."""
        return {}

    def entry(self) -> str | None:
        """What runs are called in place of their encoding; None: by their encoding."""
        return None

    def weights(self) -> int:
        """Roughly the number of weights, to estimate memory before the model is built."""
        return 12 * self.n_layers * self.d_model**2


Activation = Literal["relu", "gelu", "swiglu"]


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

    def scaled_heads(self, n_heads: int) -> int | None:
        """The heads with a learned factor of the logits. None if no head has one."""
        return n_heads if self.logn == "learned" else None

    @property
    def logn_every(self) -> int | None:
        """The N of ``logn``; None: it is no number."""
        return self.logn if isinstance(self.logn, int) else None

    def refuses_scaling(self, encoding: PositionalEncoding) -> str | None:
        """Why the logits of an encoding cannot be scaled by ``logn``, as ``refuses`` says it."""
        apart = self.logn_every is not None and self.without()
        if self.logn is None or apart:
            return None
        if "normalize" in encoding.hooks():
            return (
                f"replaces softmax, whose logits model.logn={self.logn} scales: set "
                "model.logn=null, or choose one that leaves softmax ({fitting})"
            )
        if encoding.scales_logits is not None:
            on, off = encoding.scales_logits
            return (
                f"with {on} scales logits with the length, as model.logn={self.logn} does: set "
                f"pe.{off} or model.logn=null"
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
    sink: bool = False
    output_gate: bool = False
    qk_norm: bool = False
    normalizer: Literal["entmax", "asentmax"] | None = None
    layers: dict[int, LayerConfig] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
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
        if self.logn_every is not None and self.without() and number not in self.without():
            changed["logn"] = None
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


def dropout(x: Tensor, drop: Drop | None, rows: Tensor | None = None) -> Tensor:
    """``drop(x, rows)``, at least in float32; None: x unchanged."""
    return x if drop is None else drop(widened(x), rows)


def add_dropout(
    residual: Tensor, x: Tensor, drop: Drop | None, rows: Tensor | None = None
) -> Tensor:
    """``residual + drop(x, rows)``; None: without dropout."""
    return residual + x if drop is None else drop.add(residual, x.to(residual.dtype), rows)


def refuse_whole_sequence(encodings: Sequence[PositionalEncoding]) -> None:
    """ValueError if one of them cannot be used with a key cache."""
    if any(encoding.whole_sequence for encoding in encodings):
        raise ValueError(
            "a key cache cannot be used with an encoding that depends on the sequence's length"
        )
