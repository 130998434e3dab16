"""What an encoding needs of a transformers model: its attention, and hooks before its modules.

Shape letters: B batch, T tokens, E model width, H heads, D head width.
"""

import inspect
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from pe_lab.core.errors import UsageError
from pe_lab.models.attention import Attention
from pe_lab.pe.base import AttentionInputs, PositionalEncoding
from pe_lab.pe.functional import widened
from pe_lab.train.encodings import use_kernels

# Of the attention function, of the key of config.json, and of what a layer of attention gets.
NAME = "pe_lab"


class EncodedAttention(nn.Module):
    """What ``attach`` adds to the attention of one layer: the encoding, and pe-lab's attention."""

    def __init__(self, encoding: PositionalEncoding, window: int | None) -> None:
        super().__init__()
        self.attention = Attention(encoding, window)
        self.layer_input: Any = None
        # Of all layers in one pass: the ``layer_state`` of the layer below.
        self.carried: list[Any] = [None]
        use_kernels(self)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moves follow the model, to half precision excepted: angles would be wrong in it."""

        def moved(tensor: Tensor) -> Tensor:
            changed = fn(tensor)
            return tensor.to(changed.device) if changed.dtype.itemsize < 4 else changed

        return super()._apply(moved, recurse)

    # Hooks; a copy of a model has those of its own modules, as they are bound methods.

    def enter_block(self, _: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Before a layer: the encoding of its input."""
        x_BTE, *rest = args
        changed = self.attention.encoding.block_input(widened(x_BTE), kwargs["position_ids"])
        return (changed.to(x_BTE.dtype), *rest), kwargs

    def enter_attention(self, _: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Before the attention of a layer: keep its input."""
        self.layer_input = args[0] if args else kwargs["hidden_states"]

    def enter_feed_forward(self, _: Any, args: Any) -> None:
        """Before a layer's feed-forward: update what the encoding carries."""
        update = self.attention.encoding.update_state
        self.carried[0] = update(self.carried[0], widened(args[0]))


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float,
    position_ids: Tensor,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """pe-lab's attention, as a function of transformers' ``AttentionInterface``.

    Args:
        query, key, value: after the model's projections, (B, H, T, D), fewer heads of keys where
            they are grouped; not rotated.
        scaling: what the model multiplies q . k by.
    """
    if attention_mask is not None or softcap is not None or not module.is_causal:
        raise UsageError(
            "attention is causal here, without masks of pairs and attn_logit_softcapping: leave "
            "them out of the call and of the config"
        )
    added: EncodedAttention = module.pe_lab
    x_BTE, added.layer_input = widened(added.layer_input), None
    pos_BT = position_ids.expand(x_BTE.shape[:2])
    # The hooks divide by the root of D themselves.
    q = widened(query) * (scaling * query.shape[-1] ** 0.5)
    k, v = (widened(y).repeat_interleave(q.shape[1] // y.shape[1], 1) for y in (key, value))
    attention = added.attention
    attention.p = dropout
    inputs = AttentionInputs(x_BTE, q, k, v, pos_BT, pos_BT, added.carried[0], attention.window)
    mixed, added.carried[0] = attention.attend(inputs)
    return mixed.to(query.dtype).transpose(1, 2).contiguous(), None


class NoPositions(nn.Module):
    """In the place of the model's own positions: a rotation by nothing; of GPT-2's table, which
    gets the positions alone, zeros."""

    def forward(self, x: Tensor, position_ids: Tensor | None = None, *_: Any, **__: Any) -> Any:
        if position_ids is None:
            # Of whole numbers, so that the sum keeps the type of the embeddings.
            return x.new_zeros(*x.shape, 1)
        one = torch.ones(*position_ids.shape, 1, dtype=x.dtype, device=x.device)
        return one, torch.zeros_like(one)


def add_encoding(layer: Any, encoding: PositionalEncoding, config: Any) -> None:
    """Put an encoding into a layer, with hooks where it acts."""
    attention = attention_of(layer)
    window = getattr(attention, "sliding_window", getattr(config, "sliding_window", None))
    added = EncodedAttention(encoding, window).train(attention.training)
    attention.pe_lab = added.to(next(attention.parameters()).device)
    layer.register_forward_pre_hook(added.enter_block, with_kwargs=True)
    attention.register_forward_pre_hook(added.enter_attention, with_kwargs=True)
    layer.mlp.register_forward_pre_hook(added.enter_feed_forward)


def begin_pass(base: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Before a pass of the model: positions, and the encoding of the token embeddings."""
    kwargs = {**dict(zip(inspect.signature(base.forward).parameters, args, strict=False)), **kwargs}
    layers = [attention_of(layer).pe_lab for layer in decoder_layers(base)]
    encoding = layers[0].attention.encoding
    ids: Any = kwargs.get("input_ids")
    given = kwargs.get("inputs_embeds") if ids is None else ids
    if given is None:
        return (), kwargs  # transformers says so
    pos_BT = kwargs.get("position_ids")
    refuse_call(base, encoding, kwargs)
    for layer in layers:
        if pos_BT is None:
            layer.attention.encoding.refuse_range(0, given.shape[1] - 1)
        else:
            layer.attention.encoding.refuse_positions(pos_BT)
    if pos_BT is None:
        pos_BT = torch.arange(given.shape[1], device=base.device)[None]
    kwargs["position_ids"], carried = pos_BT, [None]
    for layer in layers:
        layer.carried = carried
    if "embed" in encoding.hooks():
        x_BTE = base.get_input_embeddings()(ids)
        changed = encoding.embed(widened(x_BTE), ids, pos_BT).to(x_BTE.dtype)
        kwargs |= {"input_ids": None, "inputs_embeds": changed}
    return (), kwargs


def refuse_call(base: Any, encoding: PositionalEncoding, kwargs: dict[str, Any]) -> None:
    """UsageError where a call would silently be one of another model."""
    pos_BT = kwargs.get("position_ids")
    mask, packed = kwargs.get("attention_mask"), kwargs.get("cu_seq_lens_q") is not None
    padded = isinstance(mask, Tensor) and mask.dim() == 2 and bool((mask.int().diff() > 0).any())
    checkpointing = base.training and getattr(base, "gradient_checkpointing", False)
    for message, refused in (
        (
            "another attn_implementation leaves the encoding out: set it to pe_lab",
            base.config._attn_implementation != NAME,
        ),
        (
            "there is no key cache with an encoding of pe-lab: set use_cache=False",
            any(kwargs.get(key) for key in ("use_cache", "past_key_values", "cache")),
        ),
        (
            "gradient checkpointing loses what this encoding carries: disable it",
            encoding.carries and checkpointing,
        ),
        (
            "packed sequences and padding before a sequence are not supported: give each row one "
            "sequence, and pad at its end",
            packed or padded or (pos_BT is not None and bool((pos_BT.diff() != 1).any())),
        ),
        (
            "this encoding changes token embeddings: give input_ids",
            "embed" in encoding.hooks() and kwargs.get("input_ids") is None,
        ),
    ):
        if refused:
            raise UsageError(message)


def end_pass(base: Any, *_: Any) -> None:
    """After a pass of the model: no tensor with a gradient is kept."""
    attention_of(decoder_layers(base)[0]).pe_lab.carried[0] = None


def decoder_layers(base: Any) -> list[Any]:
    return list(base.h if hasattr(base, "h") else base.layers)


def attention_of(layer: Any) -> Any:
    return layer.attn if hasattr(layer, "attn") else layer.self_attn
