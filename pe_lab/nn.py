"""The encodings and the attention of pe-lab as modules for any PyTorch model.

Shape letters: B batch, T new tokens, S tokens including the cached ones, E width of the hidden
states.
"""

from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from pe_lab.config.compose import encoding_section, fill_parts
from pe_lab.core.config_dir import choices
from pe_lab.core.errors import UsageError, check_known
from pe_lab.core.files import read_yaml
from pe_lab.core.validation import instantiate
from pe_lab.models import attention
from pe_lab.models.base import refuse_whole_sequence
from pe_lab.models.encoder_decoder import FullAttention, both_ways
from pe_lab.models.kv_cache import LayerCache
from pe_lab.models.mixers import MIXERS, RecurrentMixer
from pe_lab.models.transformer import TransformerConfig, draw
from pe_lab.pe.base import Dims, PositionalEncoding
from pe_lab.pe.functional import first_true, refuse_where
from pe_lab.train.encodings import build_encodings, use_kernels

TRAIN_LEN = 1024
"""The default training length of ``MultiHeadAttention``."""
CACHE_IS_CAUSAL = "a key cache needs causal attention: set causal=True"


def encoding(pe: str | type, **sizes_and_keys: Any) -> PositionalEncoding:
    """The encoding of one layer; arguments as those of ``encodings``, without ``n_layers``."""
    return encodings(pe, 1, **sizes_and_keys)[0]


def encodings(
    pe: str | type,
    n_layers: int,
    *,
    d_model: int,
    n_heads: int,
    train_len: int,
    max_len: int | None = None,
    vocab_size: int | None = None,
    **keys: Any,
) -> list[PositionalEncoding]:
    """One encoding for each layer of a model; layers have in common what the source shares.

    Args:
        pe: the name of a yaml in conf/pe, or a class that derives from ``PositionalEncoding``.
        train_len: tokens of the longest sequence in training.
        max_len: tokens of the longest sequence at all; None: ``train_len``.
        vocab_size: for ``complex_order``, which has parameters for each token.
        keys: keys that differ from the yaml.

    Raises:
        UsageError: an unknown name or key, or a value out of its limits.
    """
    sizes = {"n_layers": n_layers, "d_model": d_model, "n_heads": n_heads}
    longest = longest_length(train_len, max_len)
    dims = _config(**sizes).dims(vocab_size or 1, train_len, longest)
    made = build_with_defaults(pe, dims, keys)
    if vocab_size is None and _sizes(made[0]) != _sizes(
        build_with_defaults(pe, _config(**sizes).dims(2, train_len, longest), keys)[0]
    ):
        raise UsageError(f"pe={pe} has parameters for each token: give vocab_size=")
    return made


def longest_length(train_len: int, max_len: int | None) -> int:
    """The tokens of the longest sequence at all."""
    longest = train_len if max_len is None else max_len
    whole = isinstance(train_len, Integral) and isinstance(longest, Integral)
    if not whole or not 1 <= train_len <= longest:
        raise UsageError(
            f"train_len={train_len!r} is not allowed with max_len={max_len!r}: set it to a whole "
            "number of at least 1, and max_len to one of at least train_len"
        )
    return longest


def build_with_defaults(
    pe: str | type, dims: Dims, keys: dict[str, Any]
) -> list[PositionalEncoding]:
    """``encodings`` for these sizes."""
    if isinstance(pe, type) and issubclass(pe, PositionalEncoding):
        section: dict[str, Any] = {"_target_": pe}
    elif isinstance(pe, str):
        section = {"_target_": pe} if "." in pe else encoding_section(pe)
    else:
        raise UsageError(f'pe={pe!r} is no encoding: give a name, such as "rope", or a class')
    return build_encodings(fill_parts(section | keys), dims)


def _sizes(encoding: PositionalEncoding) -> list[torch.Size]:
    return [parameter.shape for parameter in encoding.parameters()]


def _config(**keys: Any) -> TransformerConfig:
    """The default transformer with some keys changed."""
    section = read_yaml(choices("model")["transformer"])
    return instantiate({**section, **keys}, "model", TransformerConfig)


def mixer(name: str, d_model: int, n_heads: int, **keys: Any) -> RecurrentMixer:
    """A layer without attention, as in ``model.pattern``: ``y = mixer("kda", 64, 4).mix(x)`` with x
    and y (B, T, d_model). ``mix(x, cache)`` continues the sequence of ``cache = layer.cache()``.

    Args:
        name: gated_deltanet, kda, mamba2, conv or lstm.
        keys: those of ``MixerKeys`` that differ.

    Raises:
        UsageError: an unknown name or key, or a size that does not fit.
    """
    check_known("name={} is no layer without attention", [name], MIXERS)
    sizes = {"n_layers": 1, "d_model": d_model, "n_heads": n_heads}
    cfg = _config(**sizes, pattern=[name], mixers=keys)
    return MIXERS[name](d_model, n_heads, cfg.mixers)


class MultiHeadAttention(nn.Module):
    """Self-attention of several heads with a positional encoding.

    Weights are float32 or float64; half precision is by ``torch.autocast``.

    ``attention`` holds the projections and the encoding, with the names of pe-lab's models: its
    ``state_dict`` is that of ``run.model.blocks[i].attention``. Fused kernels compute it where they
    can, with equal values and gradients.

    Args:
        pe: as in ``encodings``, or one that these made, of which each layer takes its own.
        train_len: as in ``encodings``, if the encoding is made here; None: 1024.
        max_len: as in ``encodings``, if the encoding is made here.
        causal: a token sees itself and those before it; False: all tokens.
        dropout: of the attention weights.
        keys: keys of the encoding that differ from its yaml.

    Raises:
        UsageError: the encoding acts outside of attention, or cannot be used in both directions.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        pe: str | type | PositionalEncoding = "cope",
        *,
        train_len: int | None = None,
        max_len: int | None = None,
        causal: bool = True,
        dropout: float = 0.0,
        **keys: Any,
    ) -> None:
        super().__init__()
        cfg = _config(d_model=d_model, n_heads=n_heads, dropout=dropout)
        self.causal = causal
        lengths = {"train_len": train_len, "max_len": max_len}
        if is_made := isinstance(pe, PositionalEncoding):
            made, name = pe, type(pe).__name__
            fixed = [*keys, *(key for key, value in lengths.items() if value is not None)]
            if fixed:
                raise UsageError(
                    f"{fixed[0]} cannot be set for an encoding that is made already: "
                    "set it in pe_lab.nn.encodings, or give a name"
                )
            if made.built_for not in (None, (d_model, n_heads)):
                raise UsageError(
                    f"pe={name} was made for d_model, n_heads = {made.built_for}, not "
                    f"{(d_model, n_heads)}: make it for these"
                )
        else:
            lengths["train_len"] = TRAIN_LEN if train_len is None else train_len
            made = encoding(pe, d_model=d_model, n_heads=n_heads, **lengths, **keys)
            name = pe if isinstance(pe, str) else pe.__name__
        if reason := _reason_to_refuse(made, is_made, causal):
            raise UsageError(f"pe={name} {reason}")
        if causal:
            self.attention: Any = attention.MultiHeadAttention(cfg, made)
        else:
            self.attention = FullAttention(cfg, cross=False)
            self.attention.encoding = made
        with torch.no_grad():
            for linear in self.attention.children():
                if isinstance(linear, nn.Linear):
                    draw(linear)
        use_kernels(self)

    @property
    def encoding(self) -> PositionalEncoding:
        """The encoding of this layer."""
        return self.attention.encoding

    def empty_cache(self) -> LayerCache:
        """The key cache to start decoding a batch with, under ``torch.no_grad``."""
        refuse_where((not self.causal, CACHE_IS_CAUSAL), error=UsageError)
        refuse_whole_sequence([self.encoding])
        return LayerCache()

    def forward(
        self,
        x_BTE: Tensor,
        positions: Tensor | None = None,
        *,
        cache: LayerCache | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Attention of T tokens to each other and to those in the cache, (B, T, E).

        Args:
            positions: of all S tokens, (S,) or (B, S); None: 0, 1, .. They may lie between whole
                numbers if it ``reads_positions`` as ``float``. They may fall if it reads them in
                ``any_order``, or if attention is not causal.
            cache: from ``empty_cache``; the tokens are added to it.
            key_padding_mask: (B, S), True for padding, as in PyTorch. Causal attention takes none:
                pad at the end, where earlier tokens do not look.
        """
        self._refuse_inputs(x_BTE, cache, key_padding_mask)
        pos_BS = self._positions(x_BTE, positions, cache)
        if self.causal:
            return self.attention(x_BTE, pos_BS, None, cache)[0]
        seen_BS = None if key_padding_mask is None else ~key_padding_mask
        kv = self.attention.keys_and_values(x_BTE)
        return self.attention(x_BTE, kv, seen_BS, self.encoding, pos_BS)

    def _refuse_inputs(self, x_BTE: Tensor, cache: LayerCache | None, mask: Tensor | None) -> None:
        """UsageError for inputs of ``forward`` of other types, shapes or devices than it takes."""
        weight = self.attention.out.weight
        dtype, width = weight.dtype, weight.shape[0]
        refuse_where(
            (
                not isinstance(x_BTE, Tensor) or x_BTE.dim() != 3 or x_BTE.shape[2] != width,
                f"x is {_kind(x_BTE)}: give a tensor (batch, tokens, {width})",
            ),
            (
                not isinstance(cache, LayerCache | None),
                f"cache is {_kind(cache)}: give one of empty_cache()",
            ),
            (
                mask is not None and (not isinstance(mask, Tensor) or mask.dtype != torch.bool),
                f"key_padding_mask is {_kind(mask)}: give a tensor of True, for padding, and False",
            ),
            error=UsageError,
        )
        device = weight.device.type
        half = device != "meta" and torch.is_autocast_enabled(device)
        refuse_where(
            (
                mask is not None and mask.shape != x_BTE.shape[:2],
                f"key_padding_mask is {_kind(mask)} and x {_kind(x_BTE)}: give (batch, tokens)",
            ),
            (
                self.causal and mask is not None,
                "key_padding_mask is not allowed in causal attention: pad at the end and leave "
                "padding out of the loss",
            ),
            (cache is not None and not self.causal, CACHE_IS_CAUSAL),
            (
                dtype.itemsize < 4,
                f"weights in {dtype} are not supported: keep them in float32, and run the model "
                "under torch.autocast for half precision",
            ),
            (
                x_BTE.device != weight.device or (x_BTE.dtype != dtype and not half),
                f"x is {_kind(x_BTE)} on {x_BTE.device}, and the weights are {dtype} on "
                f"{weight.device}: move or cast one of them",
            ),
            error=UsageError,
        )

    def _positions(
        self, x_BTE: Tensor, positions: Tensor | None, cache: LayerCache | None
    ) -> Tensor:
        """The positions of all S tokens, (1 or B, S)."""
        s = x_BTE.shape[1] + (cache.keys.length if cache else 0)
        if positions is None:
            self.encoding.refuse_range(0, s - 1)
            return torch.arange(s, device=x_BTE.device)[None]
        is_real = isinstance(positions, Tensor) and not (
            positions.is_complex() or positions.dtype == torch.bool
        )
        refuse_where(
            (
                not is_real or positions.dim() not in (1, 2, 2 + (self.encoding.axes > 1)),
                f"positions are {_kind(positions)}: give numbers, a tensor ({s},) or (batch, {s})",
            ),
            error=UsageError,
        )
        pos_BS = positions[None] if positions.dim() == 1 else positions
        reads = self.encoding.reads_positions
        is_rounded = reads is int and pos_BS.is_floating_point()
        in_order = reads is not None and self.causal and not self.encoding.any_order
        refuse_where(
            (
                len(pos_BS) not in (1, len(x_BTE)) or pos_BS.device != x_BTE.device,
                f"positions are {_kind(pos_BS)} on {pos_BS.device}, and x {_kind(x_BTE)} on "
                f"{x_BTE.device}: give those of one sequence or of each, on one device",
            ),
            (
                pos_BS.shape[1] != s,
                f"there are positions of {pos_BS.shape[1]} tokens and {s} tokens, cached ones "
                "included: give one for each",
            ),
            (
                pos_BS.is_floating_point() and not bool(pos_BS.isfinite().all()),
                "positions are infinite or NaN: give finite numbers",
            ),
            (
                is_rounded and bool((pos_BS.long() != pos_BS).any()),
                "this encoding looks positions up: give whole numbers",
            ),
            (
                in_order and bool((pos_BS.diff(dim=1) < 0).any()),
                "this encoding reads distances: give positions that do not fall",
            ),
            error=UsageError,
        )
        pos_BS = pos_BS.long() if is_rounded else pos_BS
        self.encoding.refuse_positions(pos_BS)
        return pos_BS


def _kind(value: Any) -> str:
    """The type of a tensor and its shape, or that of another value."""
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"{value.dtype} {tuple(value.shape)}"


def _reason_to_refuse(encoding: PositionalEncoding, is_made: bool, causal: bool) -> str | None:
    """Why attention cannot have an encoding: the end of a sentence that begins with pe=NAME."""
    return first_true(
        (
            not is_made and "embed" in encoding.hooks(),
            "changes the token embeddings, not attention: call .embed(x, tokens, positions) of "
            'pe_lab.nn.encoding, and give pe="none" here',
        ),
        (
            not is_made and "block_input" in encoding.hooks(),
            "also changes the input of the block, before its residual: call "
            "encoding.block_input(x, positions) there, and give the encoding itself as pe=",
        ),
        (
            encoding.carries,
            "carries a state from layer to layer, which a single layer has not: use it in a whole "
            "model (pe-lab, pe_lab.hf), or choose another encoding",
        ),
        (
            not causal and not both_ways(encoding),
            "is defined for causal attention only: set causal=True, or choose another encoding "
            "(alibi, rope, ..)",
        ),
    )
