"""Padding before sequences, the masks that tell it, and positions that do not count it.

Shape letters: B batch, S tokens including the cached ones.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import causal_mask_function, prepare_padding_mask, sdpa_mask

from pe_lab.core.errors import UsageError
from pe_lab.pe.functional import causal_mask

PACKED = (
    "packed sequences are not supported: give one sequence in each row, whose positions go up by "
    "one"
)


def without_padding(
    padding_B: Tensor | None, like: Tensor, s: int, part: Callable[[Any, int], Tensor]
) -> Tensor:
    """``part(rows, skipped)`` for the sequences with as much padding before them; 0 for padding.

    No encoding then sees padding, which would be counted, convolved or attended to otherwise.

    Args:
        like: has the shape of the result, whose last but one dimension is the T new tokens.
    """
    if padding_B is None:
        return part(slice(None), 0)
    out, t = torch.zeros_like(like), like.shape[-2]
    for skipped in padding_B.unique().tolist():
        rows = padding_B == skipped
        if skipped < s:
            out[rows, ..., -min(t, s - skipped) :, :] = part(rows, skipped)
    return out


def padding_of(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    config: Any = None,
    use_vmap: bool = False,
    device: Any = "cpu",
    **_: Any,
) -> Tensor | None:
    """``padding_B`` of ``bridge.Call``, as a function of transformers' ``AttentionMaskInterface``.

    Attention itself is causal, with the window of its layer; other masks are refused.
    """
    if mask_function is not causal_mask_function:
        mask: Any = sdpa_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function,
            allow_is_causal_skip=False, use_vmap=use_vmap, device=device,
        )  # fmt: skip
        windows = (None, getattr(config, "sliding_window", None))
        causal = [causal_mask(q_length, kv_length, mask.device, window) for window in windows]
        if not any(bool((mask == one).all()) for one in causal):
            raise UsageError(
                "a mask that is not causal is not supported: choose a model whose tokens see no "
                "later ones"
            )
    return left_padding(prepare_padding_mask(attention_mask, kv_length, kv_offset))


def left_padding(mask_BS: Tensor | None) -> Tensor | None:
    """The tokens of padding before each sequence, (B,). None if no sequence has any. Causal
    attention does not see padding after a sequence."""
    if mask_BS is None:
        return None
    seen, s = mask_BS.bool(), mask_BS.shape[1]
    first, after = (y.byte().argmax(1) for y in (seen, seen.flip(1)))
    if bool((seen.any(1) & (seen.sum(1) != s - first - after)).any()):
        raise UsageError("padding within a sequence is not supported: pad before or after it")
    padding_B = torch.where(seen.any(1), first, s)
    return padding_B if bool(padding_B.any()) else None


def mask_of(kwargs: dict[str, Any], s: int) -> Tensor | None:
    """The mask of padding, (B, S), among the arguments of a pass. None without such a mask."""
    if kwargs.get("cu_seq_lens_q") is not None:
        raise UsageError(f"cu_seq_lens_q is given, and {PACKED}")
    mask = kwargs.get("attention_mask")
    if not isinstance(mask, Tensor) or mask.dim() != 2:
        return None
    if mask.shape[1] != s:
        raise UsageError(
            f"attention_mask has {mask.shape[1]} numbers for {s} tokens, cached ones included: "
            "give one for each"
        )
    return mask


def default_positions(past: int, ids: Tensor, padding_B: Tensor | None) -> Tensor:
    """0, 1, .. from the first token of each sequence on, for new tokens after ``past`` ones."""
    pos = torch.arange(past, past + ids.shape[1], device=ids.device)[None]
    return pos if padding_B is None else (pos - padding_B[:, None]).clamp(min=0)


def refuse_jumps(pos_BS: Tensor, mask_BS: Tensor | None, given: bool) -> None:
    """UsageError for positions of a sequence that do not go up by one, padding excepted.

    Args:
        given: by the caller; else they are the default ones.
    """
    jumps_BS = pos_BS.diff(dim=1) != 1
    if mask_BS is not None:
        seen_BS = mask_BS.bool()
        jumps_BS &= seen_BS[:, 1:] & seen_BS[:, :-1]
    if bool(jumps_BS.any()):
        row, token = jumps_BS.nonzero()[0].tolist()
        before, after = pos_BS[row, token : token + 2].tolist()
        if not given:
            raise UsageError(
                f"positions jump from {before} to {after} after the cached tokens: give "
                "attention_mask for all tokens, with their padding"
            )
        raise UsageError(f"position_ids jump from {before} to {after}, and {PACKED}")
