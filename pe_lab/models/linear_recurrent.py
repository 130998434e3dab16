"""Models of one recurrent mixer in every layer, without attention. Shape letters as in
transformer.py."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt
from torch import nn

from pe_lab.models.config import Vocabulary
from pe_lab.models.mixers import (
    EPSILON,
    GatedDelta,
    MixerKeys,
    RecurrentMixer,
    StateSpace,
    state_space_heads,
)
from pe_lab.models.recurrent import InputEncodedConfig
from pe_lab.models.transformer import Block, Transformer
from pe_lab.pe.base import PositionalEncoding


@dataclass(frozen=True, kw_only=True)
class LinearRecurrentConfig(InputEncodedConfig):
    """The keys that the linear recurrent networks have in common.

    Token embeddings of width d_model, n_layers blocks, an RMSNorm and a linear map to the logits. A
    block adds mixer(RMSNorm(x)) to x, and a SwiGLU feed-forward likewise if the model has one.
    ``dropout`` acts on the embeddings and on what a block adds.

    ``short_conv`` is the kernel size of the mixer's own convolution, of queries, keys and values of
    every layer, which ends in SiLU and has no residual. null leaves SiLU alone. ``conv`` is another
    one, as in every model: of the token embeddings, once, with a residual and no activation.

    Linear weights start uniform in +-1/sqrt(fan in), those that write into the residual stream
    divided by the square root of how many there are; embeddings as in transformer.py.
    """

    short_conv: Annotated[int, Field(ge=2)] | None

    norm_position: ClassVar[Literal["pre"]] = "pre"
    init: ClassVar[Literal["scaled"]] = "scaled"
    activation: ClassVar[Literal["swiglu"]] = "swiglu"
    hidden_dropout: ClassVar[bool] = False
    has_bias: ClassVar[bool] = False

    @property
    def ff_width(self) -> int:
        """Width of the feed-forward, 0 without one."""
        return 0

    @property
    def mixer_keys(self) -> MixerKeys:
        """Its keys that are those of ``MixerKeys``."""
        return MixerKeys(**{k: v for k, v in vars(self).items() if k in MixerKeys.__annotations__})

    @abstractmethod
    def new_mixer(self) -> RecurrentMixer:
        """The mixer of a layer."""

    def attention_layers(self) -> list[int]:
        return []

    def new_norm(self) -> nn.Module:
        return nn.RMSNorm(self.d_model, eps=EPSILON)

    def new_block(self, number: int, encoding: PositionalEncoding | None) -> Block:
        return Block(self, self.new_mixer())

    def build(self, vocabulary: Vocabulary, encodings: Sequence[PositionalEncoding]) -> Transformer:
        return Transformer(self, vocabulary.size, encodings)


@dataclass(frozen=True, kw_only=True)
class GatedDeltaNetConfig(LinearRecurrentConfig):
    """Gated DeltaNet: a linear RNN that overwrites what a key held, and forgets: ``GatedDelta``.

    A SwiGLU feed-forward of width ``d_ff`` (null: 8/3 d_model) follows. The other keys are those of
    ``MixerKeys`` and of LinearRecurrentConfig. There is no attention: an encoding can only change
    the input.
    """

    n_heads: PositiveInt
    head_width: PositiveInt
    expansion: PositiveInt
    negative_eigenvalues: bool
    d_ff: PositiveInt | None

    @property
    def ff_width(self) -> int:
        return round(8 * self.d_model / 3) if self.d_ff is None else self.d_ff

    def weights(self) -> int:
        mixing = self.n_heads * self.head_width * (2 + 3 * self.expansion)
        return self.n_layers * self.d_model * (mixing + 3 * self.ff_width)

    def new_mixer(self) -> GatedDelta:
        return GatedDelta(self.d_model, self.n_heads, self.mixer_keys)


@dataclass(frozen=True, kw_only=True)
class Mamba2Config(LinearRecurrentConfig):
    """Mamba-2: a state-space model whose decay is one number for each head and token:
    ``StateSpace``.

    There is no feed-forward: two layers have about the weights of one of a transformer. The other
    keys are those of ``MixerKeys`` and of LinearRecurrentConfig. There is no attention: an encoding
    can only change the input.
    """

    expansion: PositiveInt
    head_width: PositiveInt
    state_width: PositiveInt

    def __post_init__(self) -> None:
        state_space_heads(self.d_model, 1, self.mixer_keys)

    def weights(self) -> int:
        inner = self.expansion * self.d_model
        return self.n_layers * self.d_model * (3 * inner + 2 * self.state_width)

    def new_mixer(self) -> StateSpace:
        return StateSpace(self.d_model, 1, self.mixer_keys)
