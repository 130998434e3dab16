"""What an encoding needs of a transformers model: its attention, its mask, its cache and hooks.

Shape letters: B batch, T new tokens, S tokens including the cached ones, E model width, H heads,
D head width, N layers.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from pe_lab.core.errors import UsageError
from pe_lab.hf.padding import (
    default_positions,
    left_padding,
    mask_of,
    refuse_jumps,
    without_padding,
)
from pe_lab.models.attention import Attention
from pe_lab.nn import refuse_beyond
from pe_lab.pe.base import AttentionInputs, PositionalEncoding
from pe_lab.pe.functional import widened
from pe_lab.train.kernels import use_kernels

NAME = "pe_lab"
"""Of the attention function, of the key of config.json, and of what a layer of attention gets."""


@dataclass
class Call:
    """What one pass of the model has in common for all layers.

    ``tokens_BS`` and ``pos_BS`` include the cached tokens, ``padding_B`` counts the tokens of
    padding before each sequence (None: there are none), and ``carried`` is the ``layer_state`` of
    the layer below.
    """

    tokens_BS: Tensor
    pos_BS: Tensor
    padding_B: Tensor | None
    carried: Any = None
    embedding: bool = True
    """Whether the next call of the token embeddings is the model's own."""


class EncodedAttention(nn.Module):
    """What ``attach`` adds to the attention of one layer: the encoding, and pe-lab's attention."""

    def __init__(self, encoding: PositionalEncoding, window: int | None, layer: int) -> None:
        super().__init__()
        self.attention, self.layer = Attention(encoding, window), layer
        self.call: Call | None = None
        self.seen: tuple[Tensor, Tensor, Any, int] | None = None
        use_kernels(self)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moves follow the model, to half precision excepted: angles would be wrong in it."""

        def kept(tensor: Tensor) -> Tensor:
            changed = fn(tensor)
            narrowed = changed.is_floating_point() and changed.dtype.itemsize < 4
            return tensor.to(changed.device) if narrowed else changed

        return super()._apply(kept, recurse)

    @property
    def encoding(self) -> PositionalEncoding:
        return self.attention.encoding

    @property
    def carries(self) -> bool:
        """Whether the encoding passes a state from layer to layer."""
        return self.encoding.carries

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, padding_B: Tensor | None, scaling: float, p: float
    ) -> Tensor:
        """The averaged values, (B, H, T, D).

        Args:
            q, k, v: after the model's projections, (B, H, T, D) and (B, H, S, D), fewer heads of
                keys where they are grouped; not rotated.
            scaling: what the model multiplies q . k by.
            p: dropout of the attention weights.
        """
        assert self.call is not None
        assert self.seen is not None
        (x_BTE, pos_BS, cache, n_layers), self.seen = self.seen, None
        t, s, call = q.shape[2], k.shape[2], self.call
        x_BSE, carried = self._extended(cache, n_layers, widened(x_BTE), call.carried)
        k, v = (widened(y).repeat_interleave(q.shape[1] // k.shape[1], 1) for y in (k, v))
        # The hooks divide by the root of D themselves.
        q = widened(q) * (scaling * q.shape[-1] ** 0.5)
        self.attention.p = p

        def part(rows: Any, skipped: int) -> Tensor:
            new, keys = slice(-min(t, s - skipped), None), slice(skipped, None)
            inputs = AttentionInputs(
                x_BSE[rows, keys], q[rows, :, new], k[rows, :, keys], v[rows, :, keys],
                pos_BS[rows, keys][:, new], pos_BS[rows, keys], carried, self.attention.window,
            )  # fmt: skip
            mixed, state = self.attention.attend(inputs)
            call.carried = state[:, -t:] if isinstance(state, Tensor) else state
            return mixed

        if padding_B is not None and self.carries:
            raise UsageError(
                "this encoding carries a state from layer to layer, which takes no padding before "
                "a sequence: pad at the end, or run one sequence at a time"
            )
        return without_padding(padding_B, q, s, part)

    def _extended(
        self, cache: Any, n_layers: int, x_BTE: Tensor, carried: Any
    ) -> tuple[Tensor, Any]:
        """The inputs of all tokens and the state of the layer below, cached ones first."""
        b, t = x_BTE.shape[:2]
        state = (
            x_BTE.new_empty(b, t, 0) if carried is None else carried.expand(b, *carried.shape[1:])
        )
        x, states = extended(
            cache, n_layers + self.layer, x_BTE[:, None], state.flatten(2)[:, None]
        )
        whole = states[:, 0].unflatten(2, state.shape[2:])
        return x[:, 0], None if carried is None else whole


def extended(cache: Any, index: int, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """These rows (B, 1, T, ..) after the cached ones.

    They are further layers of the model's own cache, so that beam search and cropping treat them
    as keys and values.
    """
    if cache is None:
        return first, second
    while len(cache.layers) <= index:
        cache.layers.append(DynamicLayer())
    return cache.layers[index].update(first, second)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """pe-lab's attention, as a function of transformers' ``AttentionInterface``."""
    if attention_mask is not None and attention_mask.dim() != 1:
        raise UsageError(
            "a mask of pairs of tokens is not supported: give an attention_mask of one number for "
            "each token, or none"
        )
    if softcap is not None:
        raise UsageError(
            f"attn_logit_softcapping={softcap} is not supported: set it to None in the config"
        )
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    mixed = module.pe_lab(query, key, value, attention_mask, scaling, dropout)
    return mixed.to(query.dtype).transpose(1, 2).contiguous(), None


class Nothing(nn.Module):
    """The model's own positions, gone: a rotation by nothing, or a position of zero."""

    def __init__(self, added: bool) -> None:
        super().__init__()
        self.added = added

    def forward(self, x: Tensor, position_ids: Tensor | None = None, *_: Any, **__: Any) -> Any:
        if self.added:
            # Of whole numbers, so that the sum keeps the type of the embeddings.
            return torch.zeros(*x.shape, 1, dtype=torch.long, device=x.device)
        assert position_ids is not None
        one = torch.ones(*position_ids.shape, 1, dtype=x.dtype, device=x.device)
        return one, torch.zeros_like(one)


# Hooks are functions of their module alone, so that copies of a model have hooks of their own.


def begin(base: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Before a pass of the model: positions, padding and the cache."""
    kwargs = {**dict(zip(inspect.signature(base.forward).parameters, args, strict=False)), **kwargs}
    layers: list[EncodedAttention] = [encoded(layer) for layer in decoder_layers(base)]
    if base.training and getattr(base, "gradient_checkpointing", False) and layers[0].carries:
        raise UsageError(
            "this encoding carries a state from layer to layer, which gradient checkpointing would "
            "lose: call model.gradient_checkpointing_disable()"
        )
    ids: Any = kwargs.get("input_ids")
    embedded: Any = kwargs.get("inputs_embeds")
    if ids is None and embedded is None:
        return (), kwargs  # transformers says so
    if ids is None and "embed" in layers[0].encoding.hooks():
        raise UsageError(
            "this encoding changes token embeddings: give input_ids, not inputs_embeds"
        )
    if ids is None:
        ids = torch.zeros(embedded.shape[:2], dtype=torch.long, device=embedded.device)
    older = kwargs.pop("past_key_values", None)
    cache = kwargs.get("cache") if older is None else older
    wanted = kwargs.get("use_cache")
    if cache is None and (
        base.config.use_cache and not base.training if wanted is None else wanted
    ):
        cache = DynamicCache()
    if wanted is None:
        kwargs["use_cache"] = cache is not None
    kwargs["cache"] = cache
    past = _check_cache(cache, layers)
    mask, given = mask_of(kwargs, past + ids.shape[1]), kwargs.get("position_ids") is not None
    padding_B = left_padding(mask)
    pos = kwargs["position_ids"] if given else default_positions(past, ids, padding_B)
    kwargs["position_ids"] = pos
    tokens, positions = extended(
        cache, 2 * len(layers), ids[:, None, :, None], pos.expand(ids.shape)[:, None, :, None]
    )
    call = Call(tokens[:, 0, :, 0], positions[:, 0, :, 0], padding_B)
    if given or past:
        refuse_jumps(call.pos_BS, mask, given)
    for layer in layers:
        refuse_beyond(layer.encoding, call.pos_BS)
        layer.call = call
    # Here, because the model may have got another table since the pass before.
    table = base.get_input_embeddings()
    if not hasattr(table, NAME):
        table.register_forward_hook(embed)
    table.pe_lab = (layers[0],)
    return (), kwargs


def _check_cache(cache: Any, layers: list[EncodedAttention]) -> int:
    """The number of tokens in the cache; refuses caches that do not keep all of them."""
    if cache is None:
        return 0
    whole = any(one.encoding.whole_sequence for one in layers)
    past: int = cache.get_seq_length()
    if past and whole:
        raise UsageError(
            "this encoding reads the length of the whole sequence: a key cache cannot be used, "
            "call generate with use_cache=False"
        )
    for i, layer in enumerate(cache.layers):
        if type(layer) is DynamicSlidingWindowLayer and not layer.is_initialized:
            # It would forget keys, which encodings may read beyond the window.
            cache.layers[i] = DynamicLayer()
        elif type(layer) is not DynamicLayer:
            raise UsageError(
                f"a cache of {type(layer).__name__} is not supported: use transformers' "
                "DynamicCache, the default of generate"
            )
    return past


def ended(base: Any, *_: Any) -> None:
    """After a pass of the model: no tensor with a gradient is kept."""
    for layer in decoder_layers(base):
        if (call := encoded(layer).call) is not None:
            call.carried, call.embedding = None, False


def embed(module: Any, args: Any, out: Tensor) -> Tensor:
    """After the token embeddings: the encoding at the input."""
    layer: EncodedAttention = module.pe_lab[0]
    call = layer.call
    if call is None or not call.embedding:
        return out
    call.embedding = False
    s = call.tokens_BS.shape[1]
    x_BSE = out if s == out.shape[1] else module.forward(call.tokens_BS)

    def part(rows: Any, skipped: int) -> Tensor:
        keys, new = slice(skipped, None), slice(-min(out.shape[1], s - skipped), None)
        tokens, pos = call.tokens_BS[rows, keys], call.pos_BS[rows, keys]
        return layer.encoding.embed(x_BSE[rows, keys], tokens, pos)[:, new].to(out.dtype)

    return without_padding(call.padding_B, out, s, part)


def enter_block(block: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Before a layer: the encoding of its input."""
    x, *rest = args or (kwargs["hidden_states"],)
    changed = block.pe_lab[0].encoding.block_input(x, kwargs["position_ids"]).to(x.dtype)
    return ((changed, *rest), kwargs) if args else ((), {**kwargs, "hidden_states": changed})


def enter_attention(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Before the attention of a layer: keep its input."""
    layer: EncodedAttention = module.pe_lab
    if module.config._attn_implementation != NAME:
        raise UsageError(
            f"attn_implementation={module.config._attn_implementation} would leave the encoding "
            "out: call model.set_attn_implementation('pe_lab')"
        )
    assert layer.call is not None
    cache = kwargs.get("cache")
    x = args[0] if args else kwargs["hidden_states"]
    # When gradient checkpointing comes back to a pass, ``call`` may be that of another one.
    pos = kwargs["position_ids"].expand(x.shape[:2]) if cache is None else layer.call.pos_BS
    layer.seen = (x, pos, cache, module.config.num_hidden_layers)


def enter_feed_forward(module: Any, args: Any) -> None:
    """Before a layer's feed-forward: update what the encoding carries."""
    layer: EncodedAttention = module.pe_lab[0]
    assert layer.call is not None
    layer.call.carried = layer.encoding.update_state(layer.call.carried, widened(args[0]))


def decoder_layers(base: Any) -> list[Any]:
    return list(base.h if hasattr(base, "h") else base.layers)


def attention_of(layer: Any) -> Any:
    return layer.attn if hasattr(layer, "attn") else layer.self_attn


def encoded(layer: Any) -> EncodedAttention:
    """What ``attach`` added to a layer."""
    made: EncodedAttention = attention_of(layer).pe_lab
    return made
