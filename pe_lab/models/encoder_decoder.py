"""The encoder-decoder transformer.

Shape letters: B batch, P tokens of the input part, U new tokens of the output part and S tokens of
it so far, E model width, H heads, D head width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from pe_lab.core.dropout import Drop
from pe_lab.models.base import Vocabulary, dropout
from pe_lab.models.encoder_decoder_layers import DecoderLayer, EncoderLayer
from pe_lab.models.input_output import InputOutput, InputOutputConfig
from pe_lab.models.kv_cache import Cache, LayerCache
from pe_lab.models.transformer import TransformerConfig
from pe_lab.models.transformer_config import Activation
from pe_lab.pe.base import Dims, PositionalEncoding


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig(InputOutputConfig):
    """Encoder-decoder transformer: a bidirectional encoder, and a causal decoder that attends to
    it.

    The encoder reads x_1 .. x_P, the input part and its separator, the decoder the output part
    from the separator on, which is its start token; with Att(q, k, v) = softmax(q k^T / sqrt(D))
    v in H heads,

        encoder layer   x = x + Att(x, x, x),  x = x + FF(x)              each i sees all of 1 .. P
        decoder layer   y = y + Att(y, y, y)                              i sees 1 .. i
                        y = y + Att(y, x, x),  y = y + FF(y)              x: of the last layer

    with a norm before each branch and at both ends (``norm_position: pre``), or after each sum,
    as in the paper. Token embeddings are shared by encoder and decoder, as in the paper (which also
    shares them with the output layer). The paper adds sinusoids to both inputs: ``pe=sinusoidal``,
    dropout 0.1 and label smoothing 0.1, which is not implemented. Weights start as the
    transformer's; the output of a branch is divided by the square root of the number of branches in
    its stack. Source: Vaswani 2017 (1706.03762).

    Positions of the output part start again from the first position of the sequence. An encoding
    of the input acts on both inputs with the same parameters; inside, the layers 0 .. n-1 are the
    encoder's and n .. 2n-1 the decoder's, each with separate parameters unless the encoding
    shares them. A bias by distance uses |i - j| in the encoder. Attention to the encoder
    has no encoding. Without an encoding the encoder does not depend on the order of its tokens.
    """

    n_heads: PositiveInt
    d_ff: PositiveInt | None
    dropout: Annotated[float, Field(ge=0, lt=1)]
    norm: Literal["layernorm", "rmsnorm"]
    norm_position: Literal["pre", "post"]
    activation: Activation
    tied_embeddings: bool

    def __post_init__(self) -> None:
        # Building it checks that the sizes fit together.
        assert self.stack.window is None

    @property
    def stack(self) -> TransformerConfig:
        """The transformer whose layers have these sizes."""
        return TransformerConfig(**vars(self))

    def dims(self, vocab_size: int, train_len: int, max_len: int) -> Dims:
        return replace(self.stack.dims(vocab_size, train_len, max_len), n_layers=2 * self.n_layers)

    def refuses(self, encoding: PositionalEncoding) -> str | None:
        if _both_ways(encoding):
            return None
        return (
            "is defined for causal attention only, and the encoder is bidirectional: choose "
            "one that is defined there ({fitting})"
        )

    def null_values(self) -> dict[str, Any]:
        return self.stack.null_values()

    def weights(self) -> int:
        ff = 2 * self.d_model * self.stack.ff_width
        return self.n_layers * (12 * self.d_model**2 + 2 * ff)

    def build(
        self, vocabulary: Vocabulary, encodings: Sequence[PositionalEncoding]
    ) -> "EncoderDecoder":
        assert vocabulary.separator is not None
        return EncoderDecoder(self, vocabulary.size, vocabulary.separator, encodings)


def _both_ways(encoding: PositionalEncoding) -> bool:
    inside = encoding.hooks() - {"embed", "block_input"}
    return encoding.window is None and (
        not inside or (encoding.both_ways and inside <= {"rotate", "bias"})
    )


@dataclass(frozen=True)
class Memory:
    """The encoded input: keys and values for each layer of the decoder, and which are not
    padding."""

    kv: list[tuple[Tensor, Tensor]]
    seen_BP: Tensor | None


class EncoderDecoder(InputOutput):
    """``encodings`` has one for each layer, the encoder's first; ``embed`` of the first is called
    on both inputs."""

    def __init__(
        self,
        config: EncoderDecoderConfig,
        vocab_size: int,
        separator: int,
        encodings: Sequence[PositionalEncoding],
    ) -> None:
        super().__init__()
        cfg, n = config.stack, config.n_layers
        self.separator, self.tied, self.p = separator, cfg.tied_embeddings, cfg.dropout
        self.tokens = nn.Embedding(vocab_size, cfg.d_model)
        self.encoder = nn.ModuleList(EncoderLayer(cfg, e) for e in encodings[:n])
        self.decoder = nn.ModuleList(DecoderLayer(cfg, e) for e in encodings[n:])
        pre = cfg.norm_position == "pre"
        self.encoded, self.decoded = (cfg.new_norm() if pre else nn.Identity() for _ in range(2))
        self.head = nn.Linear(cfg.d_model, vocab_size, bias=False)
        self.initialise_embeddings()
        with torch.no_grad():
            for stack in (self.readers, self.writers):
                for layer in stack:
                    layer.initialise(n)

    @property
    def readers(self) -> list[EncoderLayer]:
        return list(self.encoder)  # type: ignore[arg-type]

    @property
    def writers(self) -> list[DecoderLayer]:
        return list(self.decoder)  # type: ignore[arg-type]

    @property
    def encodings(self) -> list[PositionalEncoding]:
        read = [layer.encoding for layer in self.readers]
        return read + [layer.attention.encoding for layer in self.writers]

    def encode(
        self, tokens_BP: Tensor, pos_BP: Tensor, seen_BP: Tensor | None, drop: Drop | None
    ) -> Memory:
        x = dropout(self.embed(tokens_BP, pos_BP, None), drop)
        for i, layer in enumerate(self.readers, 1):
            x = layer(x, pos_BP, seen_BP, drop and drop.at(8 * i))
        x = self.encoded(x)
        return Memory([layer.cross.keys_and_values(x) for layer in self.writers], seen_BP)

    def decode(
        self,
        tokens_BU: Tensor,
        pos_BS: Tensor,
        memory: Memory,
        drop: Drop | None,
        cache: Cache | None,
    ) -> Tensor:
        first = len(self.encoder) + 1
        y = dropout(self.embed(tokens_BU, pos_BS, cache), drop and drop.at(8 * first))
        for i, layer in enumerate(self.writers):
            layer_drop = drop and drop.at(8 * (first + 1 + i))
            layer_cache = cache and cache.layers[i]
            y = layer(y, pos_BS, memory.kv[i], memory.seen_BP, layer_drop, layer_cache)
        decoded: Tensor = self.decoded(y)
        return decoded

    def empty_output_cache(self) -> Cache:
        return Cache([LayerCache() for _ in self.decoder])
