"""What an encoding needs of a transformers model: its attention, and hooks before its modules.

Shape letters: B batch, T new tokens, S tokens including the cached ones, E model width, H heads,
D head width.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from pe_lab.core.errors import UsageError
from pe_lab.models.attention import Attention
from pe_lab.models.base import refuse_whole_sequence
from pe_lab.pe.base import AttentionInputs, PositionalEncoding
from pe_lab.pe.functional import consecutive, widened
from pe_lab.train.encodings import use_kernels

# Of the attention function, of the key of config.json, and of what a layer of attention gets.
NAME = "pe_lab"
ONE_SEQUENCE = (
    "packed sequences and padding before a sequence are not supported: give each row one sequence, "
    "and pad at its end"
)


class EncodedAttention(nn.Module):
    """What ``attach`` adds to the attention of one layer: the encoding, and pe-lab's attention."""

    def __init__(self, encoding: PositionalEncoding, window: int | None) -> None:
        super().__init__()
        self.attention = Attention(encoding, window)
        self.layer_input: Any = None
        # Of all layers in one pass: the key cache, and ``carried``, from the layer below.
        self.shared: dict[str, Any] = {}
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
        self.shared["carried"] = update(self.shared.get("carried"), widened(args[0]))


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
        query, key, value: after the model's projections, (B, H, T or S, D), fewer heads of keys
            where they are grouped; not rotated.
        scaling: what the model multiplies q . k by.
    """
    if attention_mask is not None or softcap is not None or not module.is_causal:
        raise UsageError(
            "attention is causal here, without masks of pairs and attn_logit_softcapping: leave "
            "them out of the call and of the config"
        )
    added: EncodedAttention = module.pe_lab
    x_BSE, added.layer_input = widened(added.layer_input), None
    pos_BS, t = position_ids, query.shape[2]
    carried, cache = added.shared.get("carried"), added.shared.get("cache")
    if cache is not None:
        layers = module.config.num_hidden_layers
        x_BSE, carried = extend(cache, layers + module.layer_idx, x_BSE, carried)
        pos_BS = cache.layers[2 * layers].values[:, 0, :, 0]
    pos_BS = pos_BS.expand(x_BSE.shape[:2])
    # The hooks divide by the root of D themselves.
    q = widened(query) * (scaling * query.shape[-1] ** 0.5)
    k, v = (widened(y).repeat_interleave(q.shape[1] // y.shape[1], 1) for y in (key, value))
    attention = added.attention
    attention.p = dropout
    inputs = AttentionInputs(x_BSE, q, k, v, pos_BS[:, -t:], pos_BS, carried, attention.window)
    mixed, carried = attention.attend(inputs)
    added.shared["carried"] = carried[:, -t:] if isinstance(carried, Tensor) else carried
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
    encodings = [layer.attention.encoding for layer in layers]
    ids: Any = kwargs.get("input_ids")
    given = kwargs.get("inputs_embeds") if ids is None else ids
    if given is None:
        return (), kwargs  # transformers says so
    pos_BT = kwargs.get("position_ids")
    shapes = [(1, *given.shape[1:2]), given.shape[:2]]
    if given.dim() < 2 or not (pos_BT is None or getattr(pos_BT, "shape", None) in shapes):
        raise UsageError("give tokens (batch, tokens), and position_ids alike or (1, tokens)")
    refuse_call(base, encodings[0], kwargs)
    cache = open_cache(base, encodings, kwargs)
    begin, t = 0 if cache is None else cache.get_seq_length(), given.shape[1]
    if pos_BT is None:
        pos_BT = torch.arange(begin, begin + t, device=base.device)[None]
    # Without a look at the values of positions that begin here, which torch.compile cannot follow.
    from_0 = kwargs.get("position_ids") is None and not begin
    kwargs["position_ids"] = pos_BT
    ids_BS, pos_BS = ids, pos_BT
    if cache is not None:
        pos_BS = pos_BT.expand(given.shape[:2])
        ids_BS, pos_BS = extend(cache, 2 * len(layers), pos_BS if ids is None else ids, pos_BS)
    if not from_0 and not consecutive(pos_BS):
        raise UsageError(ONE_SEQUENCE)
    shared = {"cache": cache}
    for layer, encoding in zip(layers, encodings, strict=True):
        layer.shared = shared
        if from_0:
            encoding.refuse_range(0, t - 1)
        else:
            encoding.refuse_positions(pos_BS)
    if "embed" in encodings[0].hooks():
        x_BSE = base.get_input_embeddings()(ids_BS)
        changed = encodings[0].embed(widened(x_BSE), ids_BS, pos_BS)[:, -t:].to(x_BSE.dtype)
        kwargs |= {"input_ids": None, "inputs_embeds": changed}
    return (), kwargs


def open_cache(
    base: Any, encodings: Sequence[PositionalEncoding], kwargs: dict[str, Any]
) -> DynamicCache | None:
    """The key cache of a pass, which is added to ``kwargs`` where the pass begins one.

    It holds keys before rotation. After those of the layers, it holds for each layer the input of
    attention and what the encoding carries, and at its end tokens and positions (``extend``). A
    layer with a window has all keys, too.
    """
    cache, uses = kwargs.get("cache"), kwargs.get("use_cache")
    uses = base.config.use_cache if uses is None else uses
    # transformers then leaves the cache out.
    checkpointing = base.training and getattr(base, "gradient_checkpointing", False)
    whole = any(encoding.whole_sequence for encoding in encodings)
    if checkpointing or (not uses and (cache is None or whole)):
        kwargs["cache"] = None
        return None
    refuse_whole_sequence(encodings)
    if cache is None:
        cache = kwargs["cache"] = DynamicCache()
    serves = type(cache) is DynamicCache and not cache.offloading
    filled = serves and cache.get_seq_length() > 0
    if not serves or (filled and len(cache) != 2 * len(encodings) + 1):
        raise UsageError(
            "with an encoding of pe-lab, a key cache is a DynamicCache without offloading that is "
            "empty or from this model: leave cache and cache_implementation out"
        )
    pos_BT = kwargs.get("position_ids")
    # generate(use_cache=None) gives the whole sequence again.
    if not filled or (pos_BT is not None and bool((pos_BT[:, 0] == 0).all())):
        cache.layers, cache.layer_class_to_replicate = [], DynamicLayer
    return cache


def extend(cache: DynamicCache, place: int, first: Tensor, second: Any) -> tuple[Tensor, Any]:
    """Two tensors (B, T, ..) after the rows of them that a place of the cache holds. What is no
    tensor, as a state that nothing carries, stays as it is."""
    both = first, (second if isinstance(second, Tensor) else first[..., :0])
    # As keys and values of one head.
    new = [y.unsqueeze(2).flatten(2)[:, None] for y in both]
    rows = cache.update(new[0], new[1], place)
    a, b = (
        y.view(len(y), -1, *one.shape[2:]) if y.numel() else y
        for y, one in zip(rows, both, strict=True)
    )
    return a, (b if isinstance(second, Tensor) else second)


def refuse_call(base: Any, encoding: PositionalEncoding, kwargs: dict[str, Any]) -> None:
    """UsageError where a call would silently be one of another model."""
    mask, packed = kwargs.get("attention_mask"), kwargs.get("cu_seq_lens_q") is not None
    padded = isinstance(mask, Tensor) and mask.dim() == 2 and bool((mask.int().diff() > 0).any())
    checkpointing = base.training and getattr(base, "gradient_checkpointing", False)
    for message, refused in (
        (
            "another attn_implementation leaves the encoding out: set it to pe_lab",
            base.config._attn_implementation != NAME,
        ),
        (
            "gradient checkpointing loses what this encoding carries: disable it",
            encoding.carries and checkpointing,
        ),
        ("give a key cache as cache=", kwargs.get("past_key_values") is not None),
        (ONE_SEQUENCE, packed or padded),
        (
            "this encoding changes token embeddings: give input_ids",
            "embed" in encoding.hooks() and kwargs.get("input_ids") is None,
        ),
    ):
        if refused:
            raise UsageError(message)


def end_pass(base: Any, *_: Any) -> None:
    """After a pass of the model: no tensor with a gradient is kept, nor a cache."""
    attention_of(decoder_layers(base)[0]).pe_lab.shared.clear()


def decoder_layers(base: Any) -> list[Any]:
    return list(base.h if hasattr(base, "h") else base.layers)


def attention_of(layer: Any) -> Any:
    return layer.attn if hasattr(layer, "attn") else layer.self_attn
