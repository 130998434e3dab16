"""The hooks of a positional encoding. An encoding overrides only what its paper changes.

Shape letters, here and in every encoding:
B batch (1 where all examples share it), T queries, S keys (the T queries are the last of
them), E model width, H heads, D head width.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn

from pe_lab.common.dropout import Drop
from pe_lab.kernels import dispatch
from pe_lab.kernels.rotary import Rotation
from pe_lab.pe.functional import consecutive

ATTENTION_HOOKS = ("rotate", "bias", "logits", "normalize", "values", "layer_state")
HOOKS = ("embed", "block_input", *ATTENTION_HOOKS, "update_state")


@dataclass(frozen=True)
class Dims:
    """The sizes an encoding may depend on. The build hands them over; yaml never repeats them."""

    d_model: int
    n_heads: int
    n_layers: int
    vocab_size: int
    train_len: int
    """Tokens the model reads in one training sequence (the longest, where lengths vary)."""
    max_len: int
    """One more than the largest position that training or any evaluated split can hold."""
    layer: int = 0
    """The layer this instance serves; an embedding serves layer 0."""
    layer_heads: tuple[int, ...] | None = None
    """The heads of each layer, where they differ."""
    head_width: int | None = None
    """D, where it is not d_model / n_heads."""
    test_len: int | None = None
    """Tokens of the sequences, where a trained model is evaluated on those of one length."""

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence: what is stretched is so by longest over trained length.
        The largest position says nothing of it where positions are drawn from one range at every
        length."""
        return self.max_len if self.test_len is None else self.test_len

    @property
    def head_dim(self) -> int:
        return self.head_width or self.d_model // self.n_heads

    @property
    def widths_told(self) -> str:
        """What makes heads as wide as they are, for messages."""
        if self.head_width is not None:
            return f"model.head_width={self.head_width} gives a head of width {self.head_width}"
        return (
            f"d_model={self.d_model} and n_heads={self.n_heads} give heads of width {self.head_dim}"
        )

    @property
    def heads_width(self) -> int:
        """H D: what a projection to the heads is wide."""
        return self.n_heads * self.head_dim

    def at_layer(self, layer: int) -> "Dims":
        heads = self.n_heads if self.layer_heads is None else self.layer_heads[layer]
        return replace(self, layer=layer, n_heads=heads)


@dataclass(frozen=True)
class AttentionInputs:
    """What attention can see besides q and k.

    ``x_BSE`` is the attention's own input at every key, ``q_BHTD``, ``k_BHSD`` and ``v_BHSD``
    queries, keys and values before any rotation (values may be of another width, see
    ``values_like_keys``), ``pos_q_BT`` and ``pos_k_BS`` integer positions, and ``carried``
    whatever the layer below returned from ``layer_state`` (None in the first). A query sees itself
    and the ``window`` - 1 keys before it; None: all before it.
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
        """Whether the mask leaves nothing out: the last token alone asks, as it is decoded."""
        return self.q_BHTD.shape[2] == 1 and self.window is None

    @cached_property
    def mask_TS(self) -> Tensor:  # noqa: N802
        """True where query t may see key s. Made when it is asked for: of a long sequence it is
        large, and fused kernels do without."""
        t, s = self.q_BHTD.shape[2], self.k_BHSD.shape[2]
        return causal_mask(t, s, self.q_BHTD.device, self.window)


def causal_mask(t: int, s: int, device: torch.device, window: int | None = None) -> Tensor:
    """(t, s), True where a query may see a key: the queries are the last t of s tokens, and each
    sees itself and the ``window`` - 1 before it."""
    if t == 1 and window is None:
        # As each decoded token asks, in every layer.
        return torch.ones(1, s, dtype=torch.bool, device=device)
    keys = torch.arange(s, device=device)
    queries = keys[s - t :, None]
    return keys <= queries if window is None else (keys <= queries) & (keys > queries - window)


def additive(mask_TS: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where the mask allows, -inf elsewhere: adding it is cheaper than filling (B, H, T, S)."""
    return torch.zeros_like(mask_TS, dtype=dtype).masked_fill(~mask_TS, -torch.inf)


class PositionalEncoding(nn.Module):
    """NoPE, and the base of every encoding: each hook leaves its input alone.

    Positions are always passed in, and queries and keys have their own: decoding with a key
    cache needs nothing else, because the cache holds keys before ``rotate``. One instance
    serves one layer, unless ``share_layers`` is set: then one instance serves all.

    A subclass takes a ``Dims`` first and its yaml keys after it.
    """

    max_len: int | None = None
    """Longest sequence it can encode; None: any."""
    active: bool = True
    """False: this layer goes without (the build puts NoPE in its place)."""
    share_layers: bool = False
    """True: one instance, so one set of parameters, serves every layer."""
    shift_invariant: bool = False
    """True: adding a constant to all positions changes nothing."""
    reads_positions: bool = True
    """False: the positions given to it change nothing, so a run with others than 0, 1, .. warns."""
    whole_sequence: str | None = None
    """The choice, key=value, by which what a token gets depends on how long its sequence is, so
    that a key cache is refused; None: it does not."""
    replaces_content: bool = False
    """True: ``logits`` is more than the content term and another one added to it."""
    window: int | None = None
    """Keys that a query sees in this layer, itself and those before it; None: all."""
    needs_softmax: str | None = None
    """What makes its logits logarithms of factors of the weights, or changes their temperature (a
    choice, key=value, where it is one): nothing where weights are no exponentials; None: nothing
    does."""
    values_like_keys: str | None = None
    """The choice, key=value, by which it wants values as wide as keys; None: it does not."""
    both_ways: bool = False
    """True: its rotation, or its bias, which then is one by |i - j|, holds for keys ahead of the
    query too, in attention that is not causal."""
    turns_alone: bool = False
    """True: ``rotate`` turns each query and key by its own position alone, so that turned keys can
    be kept, and sums of them in the place of keys."""
    bias_by_distance: bool = False
    """True: ``bias`` depends on the head and on i - j alone: a fused kernel reads it so."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """What a class says of a hook does not hold for one that changes it: a fused kernel of
        CoPE must not stand for a variant of it that writes ``logits`` anew."""
        super().__init_subclass__(**kwargs)

        def changed_since(said: str, hooks: tuple[str, ...]) -> bool:
            newer = takewhile(lambda c: said not in vars(c), cls.__mro__)
            return any(vars(c).keys() & set(hooks) for c in newer)

        if changed_since("attend", ATTENTION_HOOKS):
            cls.attend = PositionalEncoding.attend  # type: ignore[method-assign]
        if changed_since("bias_by_distance", ("bias",)):
            cls.bias_by_distance = False
        if changed_since("turns_alone", ("rotate",)):
            cls.turns_alone = False
        if changed_since("rotation", ("rotate",)):
            cls.rotation = PositionalEncoding.rotation  # type: ignore[method-assign]

    def share(self, lower: "PositionalEncoding") -> None:
        """Take over the modules that the source shares among layers from ``lower``, which serves a
        layer below; called with each of these, from the lowest up. Share modules, not bare
        parameters: a copy of the model under ``torch.func`` finds a module once, whoever holds
        it."""

    def size_for(self, positions: int) -> tuple[str, float]:
        """The key that ``max_len`` follows from, and the value with which it is enough: what a
        message tells where it is too short."""
        return "max_len", positions

    def embed(self, x_BSE: Tensor, tokens_BS: Tensor, pos_BS: Tensor) -> Tensor:
        """The token embeddings of the whole sequence so far, position added. Called once."""
        return x_BSE

    def block_input(self, x_BTE: Tensor, pos_q_BT: Tensor) -> Tensor:
        """The input of this layer's block."""
        return x_BTE

    def rotate(
        self, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys, turned by their positions."""
        return q_BHTD, k_BHSD

    def rotation(self, inputs: AttentionInputs) -> Rotation | None:
        """What ``rotate`` multiplies queries and keys by, where it does no more than that: a fused
        kernel turns them on its way; None where it does."""
        return None

    def bias(self, pos_q_BT: Tensor, pos_k_BS: Tensor) -> Tensor | None:
        """(1 or B, H, T, S), added to the logits; finite everywhere, the mask comes later."""
        return None

    def logits(
        self, content_BHTS: Tensor, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> Tensor:
        """The whole logits, from the content term q.k / sqrt(D) and whatever else it needs."""
        return content_BHTS

    def normalize(self, logits_BHTS: Tensor, mask_TS: Tensor) -> Tensor:
        """Attention weights from logits; the default is softmax over what the mask allows."""
        return (logits_BHTS + additive(mask_TS, logits_BHTS.dtype)).softmax(-1)

    def values(self, weights_BHTS: Tensor, pos_q_BT: Tensor, pos_k_BS: Tensor) -> Tensor | None:
        """(B, H, T, D), added to weights @ v."""
        return None

    def layer_state(self, weights_BHTS: Tensor, inputs: AttentionInputs) -> Any:
        """``carried`` of the next layer, as far as attention decides it."""
        return inputs.carried

    def update_state(self, carried: Any, x_BTE: Tensor) -> Any:
        """``layer_state`` after the feed-forward's input ``x_BTE``."""
        return carried

    def trace(self, logits_BHTS: Tensor, inputs: AttentionInputs) -> dict[str, Tensor]:
        """What this encoding makes on its way to the logits that a reader would want to see: name
        -> (B, H, T, S), or what broadcasts to it. Called by ``pe-lab inspect``, never in training.

        Args:
            logits_BHTS: the whole logits of the layer, other encodings' part in them too.
        """
        return {}

    def attend(
        self, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs, drop: Drop | None
    ) -> Tensor | None:
        """All that attention does from ``rotate`` to weights @ v in one fused kernel, equal to the
        hooks in value and gradient; None where there is none for these tensors. An encoding that
        changes more than the input, q and k and a bias has one only if it brings it.

        Args:
            q_BHTD, k_BHSD: as ``rotate`` returned them.
            drop: what is dropped of the weights.
        """
        if not self._by_distance(inputs):
            return None
        bias_HN = self.bias_at_distances(k_BHSD.shape[2], k_BHSD.device)
        return dispatch.distance(q_BHTD, k_BHSD, inputs.v_BHSD, bias_HN, drop)

    def attend_turning(self, inputs: AttentionInputs, drop: Drop | None) -> Tensor | None:
        """``rotate`` and ``attend`` in one; None where there is no kernel for it."""
        if "rotate" not in self.hooks() or not self._by_distance(inputs):
            return None
        if not dispatch.fuses_rotation(inputs.q_BHTD):
            return None
        turns = self.rotation(inputs)
        if turns is None:
            return None
        q, k, v = inputs.q_BHTD, inputs.k_BHSD, inputs.v_BHSD
        bias_HN = self.bias_at_distances(k.shape[2], k.device)
        return dispatch.rotary_distance(q, k, v, bias_HN, turns, drop)

    def _by_distance(self, inputs: AttentionInputs) -> bool:
        """Whether attention to the turned keys is by their heads and distances alone."""
        if not self.fused() or "bias" not in self.hooks():
            return self.fused()
        return self.bias_by_distance and consecutive(inputs.pos_k_BS)

    def bias_at_distances(self, n: int, device: torch.device) -> Tensor | None:
        """(H, n): ``bias`` at the distances 0 .. n - 1, where ``bias_by_distance``."""
        if "bias" not in self.hooks():
            return None
        pos_BS = torch.arange(n, device=device)[None]
        bias_BHTS = self.bias(pos_BS[:, -1:], pos_BS)
        return None if bias_BHTS is None else bias_BHTS[0, :, 0].flip(-1)

    def null_values(self) -> dict[str, Any]:
        """What keys of its yaml stand for where they are null: key -> value, or None where null
        means none. It is recorded with a run, and is part of its identity."""
        return {}

    def hooks(self) -> frozenset[str]:
        """The hooks that this instance changes."""
        cls, base = type(self), PositionalEncoding
        return frozenset(hook for hook in HOOKS if getattr(cls, hook) is not getattr(base, hook))

    def fused(self) -> bool:
        """Whether nothing changes between q.k and weights @ v, so that fused attention serves."""
        return self.hooks() <= {"embed", "block_input", "rotate", "bias"}
