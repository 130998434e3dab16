"""The layers of the encoder-decoder transformer, and attention that is not causal.

Shape letters: B batch, T queries, S keys, P tokens of the input part and U of the output part,
E model width, H heads, D head width.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pe_lab.common.dropout import Drop, attention_rows
from pe_lab.kernels import dispatch
from pe_lab.kernels.cpu.add_norm import fused_add_norm, fused_norm
from pe_lab.kernels.dropout import dropout
from pe_lab.models.attention import MultiHeadAttention
from pe_lab.models.decoder import draw
from pe_lab.models.kv_cache import LayerCache
from pe_lab.models.transformer import FeedForward, TransformerConfig
from pe_lab.pe.base import AttentionInputs, PositionalEncoding, additive


class Everywhere(nn.Module):
    """Multi-head attention in which every query sees every key: the encoder's own, and that of
    the decoder to the encoder."""

    def __init__(self, cfg: TransformerConfig, fast: bool) -> None:
        super().__init__()
        self.n_heads, self.fast = cfg.n_heads, fast
        self.q = nn.Linear(cfg.d_model, cfg.d_model)
        self.kv = nn.Linear(cfg.d_model, 2 * cfg.d_model)
        self.out = nn.Linear(cfg.d_model, cfg.d_model)

    def known(self, x_BSE: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, each (B, H, S, D)."""
        k, v = self.kv(x_BSE).chunk(2, -1)
        return self._heads(k), self._heads(v)

    def forward(
        self,
        x_BTE: Tensor,
        known: tuple[Tensor, Tensor],
        seen_BS: Tensor | None,
        drop: Drop | None,
        encoding: PositionalEncoding | None = None,
        pos_BS: Tensor | None = None,
    ) -> Tensor:
        """The mixed values, (B, T, E), which ``out`` maps.

        Args:
            known: of ``known``.
            seen_BS: False where there is no key.
            encoding, pos_BS: where queries and keys are of the same tokens.
        """
        q, (k, v) = self._heads(self.q(x_BTE)), known
        mask = None if seen_BS is None else additive(seen_BS, q.dtype)[:, None, None]
        if encoding is not None:
            assert pos_BS is not None
            with dispatch.kernels_allowed(self.fast):
                q, k = encoding.rotate(q, k, AttentionInputs(x_BTE, q, k, v, pos_BS, pos_BS))
            bias = encoding.bias(pos_BS, pos_BS)
            if bias is not None:
                # What it makes of j - i stands at the query's and the key's places exchanged.
                bias = bias.tril() + bias.tril(-1).mT
                mask = bias if mask is None else bias + mask
        return self._mixed(q, k, v, mask, drop).transpose(1, 2).flatten(-2)

    def initialise(self, branches: int) -> None:
        draw(self.q)
        initialise(self.kv, self.out, branches)

    def _heads(self, x_BSE: Tensor) -> Tensor:
        # On a CPU, small products in half precision are slow.
        if self.fast and x_BSE.is_cpu:
            x_BSE = x_BSE.to(torch.promote_types(x_BSE.dtype, torch.float32))
        return x_BSE.view(*x_BSE.shape[:2], self.n_heads, -1).transpose(1, 2)

    def _mixed(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, drop: Drop | None
    ) -> Tensor:
        if self.fast and drop is None and self._fused(q, mask):
            return F.scaled_dot_product_attention(q, k, v, mask)
        logits = (q * q.shape[-1] ** -0.5) @ k.mT
        weights = (logits if mask is None else logits + mask).softmax(-1)
        if drop is not None:
            weights = dropout(weights, drop, attention_rows(weights), fast=self.fast)
        mixed: Tensor = weights.to(v.dtype) @ v
        return mixed

    def _fused(self, q: Tensor, mask: Tensor | None) -> bool:
        """Whether PyTorch's kernel serves, as in Attention: not for a bias that learns or that is
        not of half precision where q is, nor where its backward has to be ordered."""
        if q.is_cuda and torch.is_grad_enabled() and torch.are_deterministic_algorithms_enabled():
            return False
        return mask is None or not (mask.requires_grad or mask.dtype != q.dtype)


def initialise(into: nn.Linear, out: nn.Linear, branches: int) -> None:
    """The initial weights of a branch, one of so many that are added up."""
    draw(into)
    draw(out)
    out.weight.div_(math.sqrt(branches))


class Residual(nn.Module):
    """What a branch makes is added to its input, with a norm before the branch or after the sum."""

    def __init__(self, cfg: TransformerConfig, fast: bool) -> None:
        super().__init__()
        self.pre, self.fast, self.norm = cfg.norm_position == "pre", fast, cfg.new_norm()

    def forward(
        self,
        x: Tensor,
        join: Callable[[Tensor, Tensor, nn.Module | None], tuple[Tensor, Tensor]],
    ) -> Tensor:
        """
        Args:
            join: of x, the branch's input and the norm after the sum: what ``joined`` returns.
        """
        x, seen = fused_norm(x, self.norm, fast=self.fast) if self.pre else (x, x)
        return join(x, seen, None if self.pre else self.norm)[1]


class EncoderLayer(nn.Module):
    def __init__(self, cfg: TransformerConfig, encoding: PositionalEncoding, fast: bool) -> None:
        super().__init__()
        self.encoding = encoding
        self.attention, self.ff = Everywhere(cfg, fast), FeedForward(cfg, fast)
        self.attended, self.fed = (Residual(cfg, fast) for _ in range(2))

    def forward(
        self, x_BPE: Tensor, pos_BP: Tensor, seen_BP: Tensor | None, drop: Drop | None
    ) -> Tensor:
        drops = [drop and drop.at(place) for place in (1, 2, 3)]
        x = self.encoding.block_input(x_BPE, pos_BP)

        def attended(x: Tensor, seen: Tensor, norm: nn.Module | None) -> tuple[Tensor, Tensor]:
            known = self.attention.known(seen)
            mixed = self.attention(seen, known, seen_BP, drops[0], self.encoding, pos_BP)
            return fused_add_norm(x, mixed, self.attention.out, norm, drops[1], fast=self.ff.fast)

        x = self.attended(x, attended)
        out: Tensor = self.fed(x, lambda x, h, norm: self.ff.join(x, h, norm, drops[2]))
        return out

    def initialise(self, n_layers: int) -> None:
        self.attention.initialise(2 * n_layers)
        initialise(self.ff.up, self.ff.out, 2 * n_layers)


class DecoderLayer(nn.Module):
    def __init__(self, cfg: TransformerConfig, encoding: PositionalEncoding, fast: bool) -> None:
        super().__init__()
        self.attention, self.cross = MultiHeadAttention(cfg, encoding, fast), Everywhere(cfg, fast)
        self.ff = FeedForward(cfg, fast)
        self.attended, self.crossed, self.fed = (Residual(cfg, fast) for _ in range(3))

    def forward(
        self,
        y_BUE: Tensor,
        pos_BS: Tensor,
        known: tuple[Tensor, Tensor],
        seen_BP: Tensor | None,
        drop: Drop | None,
        cache: LayerCache | None,
    ) -> Tensor:
        """
        Args:
            known: keys and values of the encoder's output, of ``cross.known``.
        """
        u = y_BUE.shape[1]
        drops = [drop and drop.at(place) for place in (1, 2, 3, 4, 5)]
        y = self.attention.encoding.block_input(y_BUE, pos_BS[:, -u:])

        def attended(y: Tensor, seen: Tensor, norm: nn.Module | None) -> tuple[Tensor, Tensor]:
            mixed, _ = self.attention(seen, pos_BS, u, None, cache, drop=drops[0], out=False)
            return fused_add_norm(y, mixed, self.attention.out, norm, drops[1], fast=self.ff.fast)

        def crossed(y: Tensor, seen: Tensor, norm: nn.Module | None) -> tuple[Tensor, Tensor]:
            mixed = self.cross(seen, known, seen_BP, drops[2])
            return fused_add_norm(y, mixed, self.cross.out, norm, drops[3], fast=self.ff.fast)

        y = self.crossed(self.attended(y, attended), crossed)
        out: Tensor = self.fed(y, lambda y, h, norm: self.ff.join(y, h, norm, drops[4]))
        return out

    def initialise(self, n_layers: int) -> None:
        initialise(self.attention.qkv, self.attention.out, 3 * n_layers)
        self.cross.initialise(3 * n_layers)
        initialise(self.ff.up, self.ff.out, 3 * n_layers)
