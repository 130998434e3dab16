"""Decoder-only models: token embeddings, layers, and a linear map to the logits. A layer is a
mixer of tokens, attention or another, and a feed-forward.

Shape letters: B batch, T new tokens (queries), S tokens so far (keys), E model width, N scored
tokens.

Initialisation: linear weights uniform in +-1/sqrt(fan in), biases zero; the projections that
write into the residual stream are divided by the square root of how many there are (GPT-2);
token embeddings normal with standard deviation 1, or, tied to the output, 1/sqrt(E) and
multiplied by sqrt(E) at the input (Vaswani 2017).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_lab.models.attention import MultiHeadAttention, last_positions
from pe_lab.models.base import Mixer, Model, pick_scored, refuse_whole_sequence
from pe_lab.models.config import DecoderConfig, Vocabulary
from pe_lab.models.kv_cache import Cache, LayerCache
from pe_lab.models.mixers import MIXERS, LayerPattern
from pe_lab.pe.base import PositionalEncoding

Sizes = Any
"""``TransformerSizes``, or the ``LinearRecurrentConfig`` of a module that imports this one."""


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(LayerPattern):
    """Decoder-only transformer: in every layer a mixer, multi-head attention if ``pattern`` and
    ``layers`` name no other, then a feed-forward.

    ``sink`` adds exp of a learned logit of each head to the denominator of softmax, so that a query
    may attend to nothing: gpt-oss (2508.10925) and DeepSeek-V4; it starts at 0. ``output_gate``
    multiplies the averaged values by sigmoid(W x), x the input of attention, before the output
    projection: Qiu 2025 (2505.06708). ``qk_norm`` normalises each head's queries and keys by
    RMSNorm before any rotation: Henry 2020 (2010.04245), in the form of Qwen3 and Gemma 3.
    ``normalizer`` replaces softmax by 1.5-entmax, whose weights can be exactly 0; ``asentmax``
    first multiplies the logits by a factor that grows with the keys seen.
    ``pattern`` names the mixer of each layer, attention or one of ``mixers.py``, and is repeated;
    empty, every layer has attention. ``layers.<i>.mixer`` names that of one layer, and ``mixers``
    has their sizes. Encodings act in the layers with attention, in their order, and at the input.
    """

    def build(
        self, vocabulary: Vocabulary, encodings: Sequence[PositionalEncoding]
    ) -> "Transformer":
        return Transformer(self, vocabulary.size, encodings)

    def new_block(self, number: int, encoding: PositionalEncoding | None) -> nn.Module:
        cfg = self.at_layer(number)
        if encoding is None:
            mixer = MIXERS[self.mixer(number)]
            return Block(cfg, mixer(cfg.d_model, cfg.n_heads, cfg.mixers))
        return Block(cfg, self.new_attention(cfg, encoding))

    def new_attention(self, cfg: Self, encoding: PositionalEncoding) -> MultiHeadAttention:
        """The attention of a layer with these sizes."""
        return MultiHeadAttention(cfg, encoding)


class FeedForward(nn.Module):
    """linear, activation, linear; SwiGLU (Shazeer 2020) multiplies two linears."""

    def __init__(self, cfg: Sizes) -> None:
        super().__init__()
        self.activation = cfg.activation
        width = (2 if cfg.activation == "swiglu" else 1) * cfg.ff_width
        self.up = nn.Linear(cfg.d_model, width, bias=cfg.has_bias)
        self.out = nn.Linear(cfg.ff_width, cfg.d_model, bias=cfg.has_bias)
        self.drop = nn.Dropout(cfg.dropout if cfg.hidden_dropout else 0)

    def forward(self, h: Tensor) -> Tensor:
        up = self.up(h)
        if self.activation == "swiglu":
            gate, value = up.chunk(2, -1)
            return self.out(self.drop(F.silu(gate) * value))
        return self.out(self.drop(F.relu(up) if self.activation == "relu" else F.gelu(up)))


class Block(nn.Module):
    """A mixer and a feed-forward, each in a residual branch, normalised before or after.

    pre     x = x + mixer(norm(x)),    x = x + ff(norm(x))
    post    x = norm(x + mixer(x)),    x = norm(x + ff(x))

    ``attention`` is the mixer, attention or another. With a width of 0 there is no feed-forward.
    """

    def __init__(self, cfg: Sizes, mixer: Mixer) -> None:
        super().__init__()
        self.pre, self.scaled = cfg.norm_position == "pre", cfg.init == "scaled"
        self.attention, self.drop = mixer, nn.Dropout(cfg.dropout)
        self.norm_attention = cfg.new_norm()
        self.ff: FeedForward | None = None
        if cfg.ff_width:
            self.ff, self.norm_ff = FeedForward(cfg), cfg.new_norm()

    def forward(
        self,
        x: Tensor,
        pos_BS: Tensor,
        carried: Any = None,
        cache: LayerCache | None = None,
        scored: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        """Hidden states (B, T, E), and the state that the encoding passes to the next layer
        (``AttentionInputs.carried``). With ``scored``, in the last layer, the states of these
        tokens alone, (N, E)."""
        encoding = self.attention.encoding
        x = encoding.block_input(x, last_positions(pos_BS, x.shape[1]))
        h = self.norm_attention(x) if self.pre else x
        a, carried = self.attention(h, pos_BS, carried, cache)
        x = pick_scored(x, scored) + self.drop(pick_scored(a, scored))
        x = x if self.pre else self.norm_attention(x)
        if self.ff is None:
            return x, carried
        h = self.norm_ff(x) if self.pre else x
        x = x + self.drop(self.ff(h))
        if scored is None:
            carried = encoding.update_state(carried, h)
        return (x if self.pre else self.norm_ff(x)), carried

    @property
    def branches(self) -> int:
        """How often it writes into the residual stream."""
        return 1 if self.ff is None else 2

    def initialise(self, branches: int) -> None:
        """Draw the initial weights from torch's generator.

        Args:
            branches: those of all blocks.
        """
        first, last = self.attention.initial_linears()
        ff = [] if self.ff is None else [self.ff.up, self.ff.out]
        for linear in (*first, *ff):
            draw(linear, biases=not self.scaled)
        for linear in last:
            draw(linear)
        if self.scaled:
            for linear in (self.attention.out, *ff[1:]):
                linear.weight.div_(math.sqrt(branches))


def draw(linear: nn.Linear, biases: bool = False) -> None:
    """Draw the initial weights of a linear map; its biases too, or zero."""
    bound = linear.in_features**-0.5
    linear.weight.uniform_(-bound, bound)
    if biases:
        linear.bias.uniform_(-bound, bound)
    elif linear.bias is not None:
        linear.bias.zero_()


class Transformer(Model):
    """Token embeddings, blocks, and a final norm if the blocks normalise their input.

    Args:
        encodings: one for each block with attention; blocks may share an instance. Without any
            attention the first one acts at the input.
    """

    def __init__(
        self,
        cfg: DecoderConfig | Sizes,
        vocab_size: int,
        encodings: Sequence[PositionalEncoding],
    ) -> None:
        super().__init__()
        self.tied, self.drop = cfg.tied_embeddings, nn.Dropout(cfg.dropout)
        self.tokens = nn.Embedding(vocab_size, cfg.d_model)
        self.attention_layers = cfg.attention_layers()
        if not self.attention_layers:
            self.encoding = encodings[0]
        of_layer = dict(zip(self.attention_layers, encodings, strict=False))
        blocks: list[Any] = [cfg.new_block(n, of_layer.get(n)) for n in range(cfg.n_layers)]
        self.blocks: Any = nn.ModuleList(blocks)
        self.conv = cfg.new_conv("embedding", cfg.d_model)
        self.norm = cfg.new_norm() if cfg.norm_position == "pre" else nn.Identity()
        self.head = nn.Linear(cfg.d_model, vocab_size, bias=False)
        self.initialise_embeddings()
        branches = sum(block.branches for block in blocks)
        with torch.no_grad():
            for block in blocks:
                block.initialise(branches)

    @property
    def encodings(self) -> list[PositionalEncoding]:
        attention = [self.blocks[number].attention for number in self.attention_layers]
        return [layer.encoding for layer in attention] or [self.encoding]

    def empty_cache(self) -> Cache:
        refuse_whole_sequence(self.encodings)
        return Cache([block.attention.cache() for block in self.blocks])

    def forward(
        self,
        tokens_BT: Tensor,
        pos_BS: Tensor,
        cache: Cache | None = None,
        *,
        scored: Tensor | None = None,
    ) -> Tensor:
        x, carried = self.drop(self.embed(tokens_BT, pos_BS, cache)), None
        for i, block in enumerate(self.blocks):
            chosen = scored if i == len(self.blocks) - 1 else None
            x, carried = block(x, pos_BS, carried, cache and cache.layers[i], chosen)
        return self.norm(x)
