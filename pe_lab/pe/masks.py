"""Which keys a query sees. Shape letters as in base.py."""

import torch
from torch import Tensor


def causal_mask(t: int, s: int, device: torch.device, window: int | None = None) -> Tensor:
    """(t, s), True where a query may see a key; the queries are the last t of s tokens."""
    if t == 1 and window is None:  # decoding: saves time in every layer
        return torch.ones(1, s, dtype=torch.bool, device=device)
    keys = torch.arange(s, device=device)
    queries = keys[s - t :, None]
    return keys <= queries if window is None else (keys <= queries) & (keys > queries - window)


def additive(mask_TS: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where the mask allows, -inf elsewhere: adding it is cheaper than filling (B, H, T, S)."""
    return torch.zeros_like(mask_TS, dtype=dtype).masked_fill(~mask_TS, -torch.inf)
