"""The hooks of a positional encoding. An encoding overrides only what its paper changes.

Shape letters, here and in every encoding:
B batch (1 where all examples share it), T queries, S keys (the T queries are the last of
them), E model width, H heads, D head width.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from pe_lab.core.errors import UsageError
from pe_lab.pe.functional import causal_mask

ATTENTION_HOOKS = ("rotate", "bias", "logits", "normalize", "values", "layer_state")
HOOKS = ("embed", "block_input", *ATTENTION_HOOKS, "update_state")
Hook = TypeVar("Hook", bound=Callable[..., Any])
Kind = type[int] | type[float] | None


@dataclass(frozen=True)
class Dims:
    """The sizes an encoding may depend on: passed when it is built, never repeated in its yaml."""

    d_model: int
    n_heads: int
    n_layers: int
    vocab_size: int
    train_len: int
    """Tokens the model reads in one training sequence (the longest, where lengths vary)."""
    max_len: int
    """One more than the largest position that training or any evaluated split can hold."""
    layer: int = 0
    """The layer of this instance; 0 for what acts at the input."""
    layer_heads: tuple[int, ...] | None = None
    """The heads of each layer, where they differ."""
    head_width: int | None = None
    """D, where it is not d_model / n_heads."""
    test_len: int | None = None
    """Tokens of a sequence, where a trained model is evaluated on sequences of one length."""

    @property
    def longest(self) -> int:
        """``test_len`` where it is set, else ``max_len``: encodings are stretched by this over the
        trained length."""
        return self.max_len if self.test_len is None else self.test_len

    @property
    def head_dim(self) -> int:
        return self.head_width or self.d_model // self.n_heads

    @property
    def head_width_reason(self) -> str:
        """Where the width of a head comes from, for messages."""
        if self.head_width is not None:
            return f"model.head_width={self.head_width} gives a head of width {self.head_width}"
        return (
            f"d_model={self.d_model} and n_heads={self.n_heads} give heads of width {self.head_dim}"
        )

    @property
    def heads_width(self) -> int:
        """H D: the width of a projection to the heads."""
        return self.n_heads * self.head_dim

    def at_layer(self, layer: int) -> "Dims":
        heads = self.n_heads if self.layer_heads is None else self.layer_heads[layer]
        return replace(self, layer=layer, n_heads=heads)


@dataclass(frozen=True)
class AttentionInputs:
    """What the hooks of attention may read.

    ``x_BSE`` is the attention's input at every key, ``q_BHTD``, ``k_BHSD`` and ``v_BHSD`` are
    queries, keys and values before any rotation (values may be of another width), ``pos_q_BT``
    and ``pos_k_BS`` their positions, and ``carried`` is what the layer below returned from
    ``layer_state`` (None in the first). A query sees itself and the ``window`` - 1 keys before
    it; None: all before it.
    """

    x_BSE: Tensor
    q_BHTD: Tensor
    k_BHSD: Tensor
    v_BHSD: Tensor
    pos_q_BT: Tensor
    pos_k_BS: Tensor
    carried: Any = None
    window: int | None = None

    @property
    def sees_all(self) -> bool:
        """Whether nothing is masked: the only query is the last token, as in decoding."""
        return self.q_BHTD.shape[2] == 1 and self.window is None

    @property
    def mask_TS(self) -> Tensor:  # noqa: N802
        """True where query t may see key s. Computed on demand: fused kernels do not need it."""
        # Not by cached_property, whose lock torch.compile cannot follow.
        if "mask" not in vars(self):
            vars(self)["mask"] = causal_mask(
                self.q_BHTD.shape[2], self.k_BHSD.shape[2], self.q_BHTD.device, self.window
            )
        return vars(self)["mask"]


def by_position(rotate: Hook) -> Hook:
    """Marks a ``rotate`` that depends on positions alone, so that rotated keys can be
    summed. An override must be marked again."""
    rotate.by_position = True  # type: ignore[attr-defined]
    return rotate


def replaces_content(logits: Hook) -> Hook:
    """Marks ``logits`` that are more than the content term and another one added to it."""
    logits.replaces_content = True  # type: ignore[attr-defined]
    return logits


def by_distance(bias: Hook) -> Hook:
    """Marks a ``bias`` that depends on the head and on i - j alone: fused kernels rely on it. An
    override must be marked again."""
    bias.by_distance = True  # type: ignore[attr-defined]
    return bias


class WithConstants(nn.Module):
    """A module whose buffers are constants where they are not persistent, as frequencies are.

    They follow the module to another device or a wider type. A cast to a narrower type and
    ``to_empty`` leave their values as they are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.constants: dict[str, Tensor] = {}

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        super().register_buffer(name, tensor, persistent)
        if tensor is not None and not persistent:
            self.constants[name] = tensor

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        for name, constant in self.constants.items():
            applied: Any = self._buffers[name]
            dtype = torch.promote_types(constant.dtype, applied.dtype)
            self._buffers[name] = constant.to(applied.device, dtype)
        return self


class PositionalEncoding(WithConstants):
    """NoPE, and the base of every encoding: each hook returns its input unchanged.

    Positions are always passed in, separately for queries and keys: decoding with a key cache
    needs nothing else, because the cache holds keys before ``rotate``. Each layer has an instance,
    unless ``share_layers`` is set: then all layers have the same one.

    A subclass takes a ``Dims`` first and its yaml keys after it.
    """

    max_len: int | None = None
    """How many positions it has, from 0 on, or distances if ``shift_invariant``; None: any."""
    window: int | None = None
    """Keys that a query sees in this layer, itself and those before it; None: all."""
    share_layers: bool = False
    """True: all layers have one instance, so one set of parameters."""
    shift_invariant: bool = False
    """True: adding a constant to all positions changes nothing."""
    reads_positions: Kind = int
    """What a position may be: a whole number, which it looks up or counts, or any real one. None:
    positions change nothing."""
    axes: int = 1
    """How many ids of a token it can read: with more than one, positions may be (B, S, axes)."""
    whole_sequence: bool = False
    """True: a token's encoding depends on the length of the sequence, so there is no key cache."""
    causal: bool = False
    """True: it is defined only for keys up to the query."""
    at_test_time: bool = False
    """True: a change of a trained encoding at test time, not meant for training from scratch."""

    def __init__(self, dims: Dims | None = None) -> None:
        super().__init__()
        self.built_for: tuple[int, int] | None = None
        self.unused: set[str] = set()
        """Hooks that its class overrides, but that this instance does not use."""

    def share(self, lower: Self) -> None:
        """Use the modules of ``lower``, the encoding of a layer below, that the source shares among
        layers; called for each of these layers, from the lowest up. Share modules, not bare
        parameters."""

    def embed(self, x_BSE: Tensor, tokens_BS: Tensor, pos_BS: Tensor) -> Tensor:
        """The token embeddings of the whole sequence so far, position added. Called once."""
        return x_BSE

    def block_input(self, x_BTE: Tensor, pos_q_BT: Tensor) -> Tensor:
        """The input of this layer's block."""
        return x_BTE

    def rotate(
        self, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys, rotated by their positions."""
        return q_BHTD, k_BHSD

    def bias(self, pos_q_BT: Tensor, pos_k_BS: Tensor) -> Tensor | None:
        """(1 or B, H, T, S), added to the logits; finite everywhere, the mask comes later."""
        return None

    def logits(
        self, content_BHTS: Tensor, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> Tensor:
        """The whole logits, from the content term q.k / sqrt(D) and other inputs."""
        return content_BHTS

    def normalize(self, logits_BHTS: Tensor, mask_TS: Tensor) -> Tensor | None:
        """Attention weights from logits; None: the model's normalizer computes them."""
        return None

    def values(self, weights_BHTS: Tensor, inputs: AttentionInputs) -> Tensor | None:
        """(B, H, T, D), added to weights @ v."""
        return None

    def layer_state(self, weights_BHTS: Tensor, inputs: AttentionInputs) -> Any:
        """``carried`` of the next layer, after this layer's attention."""
        return inputs.carried

    def update_state(self, carried: Any, x_BTE: Tensor) -> Any:
        """``layer_state`` after the feed-forward's input ``x_BTE``."""
        return carried

    def trace(self, logits_BHTS: Tensor, inputs: AttentionInputs) -> dict[str, Tensor]:
        """Intermediate values of interest to a reader: name -> (B, H, T, S), or what broadcasts to
        it. Called by ``pe-lab inspect``, never in training.

        Args:
            logits_BHTS: the logits of the layer, those of other encodings included.
        """
        return {}

    def refuse_positions(self, pos_BS: Tensor) -> None:
        """UsageError for positions that it does not have."""
        if self.reads_positions is None or not pos_BS.numel():
            return
        # One of distances may begin anywhere.
        start = pos_BS.amin(1, keepdim=True) if self.shift_invariant else 0
        self.refuse_range(*(number.item() for number in (pos_BS - start).aminmax()))

    def refuse_range(self, first: float, last: float) -> None:
        """UsageError if it does not have all positions from the first to the last."""
        if first < 0:
            raise UsageError(f"position {first:g} is negative: this encoding has those from 0 on")
        if self.max_len is not None and last >= self.max_len:
            raise UsageError(
                f"position {last:g} is beyond the {self.max_len} of this encoding: raise max_len, "
                "or the keys that limit it"
            )

    def null_values(self) -> dict[str, Any]:
        """What null stands for in its yaml: the attribute of the key's name. It is recorded with a
        run, and is part of its identity."""
        keys = inspect.signature(type(self).__init__).parameters
        return {key: vars(self)[key] for key in keys if key in vars(self)}

    def hooks(self) -> frozenset[str]:
        """The hooks that change something in this instance."""
        cls, base = type(self), PositionalEncoding
        own = (hook for hook in HOOKS if getattr(cls, hook) is not getattr(base, hook))
        return frozenset(own) - self.unused

    @property
    def any_order(self) -> bool:
        """Whether it reads each position by itself. Then positions may fall and repeat, as the ids
        do that a task gives. An encoding of distances puts a key ahead of the query at 0."""
        alone = self.hooks() <= {"embed", "block_input", "rotate"}
        return alone and not self.whole_sequence

    @property
    def carries(self) -> bool:
        """Whether it passes a state from layer to layer, in this layer or another."""
        return "layer_state" in self.hooks() | self.unused

    @property
    def rotates_by_position(self) -> bool:
        """See ``by_position``."""
        alone = self.reads_positions is not None and not self.whole_sequence
        return alone and getattr(type(self).rotate, "by_position", False)

    @property
    def bias_by_distance(self) -> bool:
        """See ``by_distance``. False where it reads no positions: it then counts tokens, whose
        distance need not be that of their positions."""
        marked = getattr(type(self).bias, "by_distance", False)
        return marked and self.reads_positions is not None

    @property
    def replaces_content(self) -> bool:
        """See the mark of this name."""
        return getattr(type(self).logits, "replaces_content", False)


def make_encoding(make: Callable[[Dims], PositionalEncoding], dims: Dims) -> PositionalEncoding:
    """An encoding that is made on the CPU, where its constants have values, and then moved to
    torch's default device, which may be the meta device."""
    with torch.device("cpu"):
        made = make(dims)
    made.built_for = dims.d_model, dims.n_heads
    return made.to(torch.get_default_device())
