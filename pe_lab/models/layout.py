"""Reshaping between features and heads, and slicing the last tokens. Shape letters as in
pe/base.py."""

from typing import Any

from torch import Tensor


def features_to_heads(x_BTE: Tensor, n_heads: int) -> Tensor:
    """(B, T, H D) to (B, H, T, D)."""
    return x_BTE.view(*x_BTE.shape[:2], n_heads, -1).transpose(1, 2)


def heads_to_features(x_BHTD: Tensor) -> Tensor:
    """(B, H, T, D) to (B, T, H D)."""
    return x_BHTD.transpose(1, 2).flatten(-2)


def last_positions(pos_BS: Tensor, t: int) -> Tensor:
    """Positions of the last t tokens. The same tensor if these are all: encodings cache what they
    computed from a tensor of positions."""
    return pos_BS if t == pos_BS.shape[1] else pos_BS[:, -t:]


def last_tokens(carried: Any, t: int) -> Any:
    """An encoding's state for the last t tokens; with a cache it may hold previous ones too."""
    return carried[:, -t:] if isinstance(carried, Tensor) else carried
