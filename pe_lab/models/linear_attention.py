"""A transformer whose attention is linear in the length: sums over keys instead of a softmax.

Shape letters as in transformer.py; D head width, N chunks, C tokens of a chunk.
"""

from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from pe_lab.models.attention import MultiHeadAttention
from pe_lab.models.conv import Place
from pe_lab.models.kv_cache import LayerCache
from pe_lab.models.transformer import TransformerConfig
from pe_lab.pe.base import AttentionInputs, PositionalEncoding
from pe_lab.pe.functional import widened


@dataclass(frozen=True, kw_only=True)
class LinearAttentionConfig(TransformerConfig):
    """Transformer with linear attention.

    Head by head, with phi(x) = elu(x) + 1 of every feature and R_i the rotation of an encoding,

        out_i = (R_i phi(q_i))^T S_i / (phi(q_i) . z_i)                  (D,)
        S_i   = sum over j <= i of (R_j phi(k_j)) v_j^T                  (D, D)
        z_i   = sum over j <= i of phi(k_j)                              (D,)

    in chunks of 64 tokens, so that time and memory grow with the length and not with its square;
    decoding keeps S and z, of constant size. q and k are not scaled by sqrt(D).
    Source: Katharopoulos 2020 (2006.16236); rotation in the numerator only: Su 2021 (2104.09864,
    section 3.3), as a sum of rotated keys may be zero.

    Everything else, and the keys, as in ``transformer``, except ``window``: a sum forgets
    nothing. ``dropout`` has no attention weights to act on. There are no logits: an encoding can
    change the input, or rotate each query and key by its position. A factor of the logits
    (``logn``, YaRN's temperature) would scale the output instead of sharpening weights; the angles
    of ``selective_rope`` are sums over the input, and the factors of ``xpos`` grow without bound in
    S.
    """

    window: None = None
    logn: None = None
    normalizer: None = None
    sink: Literal[False] = False
    output_gate: Literal[False] = False
    qk_norm: Literal[False] = False
    conv_at: Place = "qkv"

    def __post_init__(self) -> None:
        super().__post_init__()
        for number, layer in self.layers.items():
            if layer.window is not None:
                raise ValueError(
                    f"layers.{number}.window={layer.window} is not allowed: linear "
                    "attention sums over all previous keys, leave it out"
                )

    def refuses(self, encoding: PositionalEncoding) -> str | None:
        alone = encoding.rotates_by_position or "rotate" not in encoding.hooks()
        inside = encoding.hooks() <= {"embed", "block_input", "rotate"}
        if inside and alone and encoding.window is None:
            return super().refuses(encoding)
        return (
            "cannot be used with linear attention, which keeps sums over keys: choose an encoding "
            "that can"
        )

    def new_attention(self, cfg: Self, encoding: PositionalEncoding) -> "LinearAttention":
        return LinearAttention(cfg, encoding)


@dataclass
class Sums(LayerCache):
    """Sums over the previous tokens, whose size does not depend on their number.

    ``kv_BHDD`` sums rotated keys times values, ``k_BHD`` keys before rotation.
    """

    kv_BHDD: Tensor | None = None
    k_BHD: Tensor | None = None


class LinearAttention(MultiHeadAttention):
    """``project`` returns phi(q) and phi(k)."""

    cache = Sums
    chunk: int = 64
    """The number of tokens in a chunk, see ``linear_attention``."""

    def project(self, x_BTE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(x_BTE)
        # Half precision is too narrow for sums over a sequence.
        return phi(widened(q)), phi(widened(k)), widened(v)

    def forward(
        self, x_BTE: Tensor, pos_BS: Tensor, carried: Any = None, cache: LayerCache | None = None
    ) -> tuple[Tensor, Any]:
        assert cache is None or isinstance(cache, Sums)
        inputs = self.inputs(x_BTE, pos_BS, carried, cache)
        q, k = self.encoding.rotate(inputs.q_BHTD, inputs.k_BHSD, inputs)
        with torch.autocast(q.device.type, enabled=False):
            mixed = linear_attention(q, k, inputs, self.chunk, cache)
        return self.out(mixed.transpose(1, 2).flatten(-2)), carried


def phi(x: Tensor) -> Tensor:
    """elu(x) + 1, computed so that it does not round to 0 below x = -17."""
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def linear_attention(
    rotated_q: Tensor,
    rotated_k: Tensor,
    inputs: AttentionInputs,
    chunk: int,
    before: Sums | None,
) -> Tensor:
    """The output (B, H, T, D) from rotated queries and keys; ``inputs`` has them before rotation.

    Args:
        chunk: the number of tokens within which queries and keys are multiplied directly; keys of
            earlier chunks enter as sums.
        before: the sums over the previous tokens, updated in place.
    """
    t = rotated_q.shape[2]
    chunk = min(chunk, t)
    pad = -t % chunk
    q, k, v = (
        F.pad(part, (0, 0, 0, pad)).view(*part.shape[:2], -1, chunk, part.shape[-1])
        for part in (rotated_q, rotated_k, inputs.v_BHSD)
    )
    near_BHNCD = (q @ k.transpose(-1, -2)).tril() @ v
    kv_BHNDD = (k.transpose(-1, -2) @ v).cumsum(2)
    z_BHTD = inputs.k_BHSD.cumsum(2)
    if before is not None and before.kv_BHDD is not None and before.k_BHD is not None:
        kv_BHNDD, z_BHTD = kv_BHNDD + before.kv_BHDD[:, :, None], z_BHTD + before.k_BHD[:, :, None]
        first = before.kv_BHDD[:, :, None]
    else:
        first = torch.zeros_like(kv_BHNDD[:, :, :1])
    if before is not None:
        before.kv_BHDD, before.k_BHD = kv_BHNDD[:, :, -1], z_BHTD[:, :, -1]
    far_BHNCD = q @ torch.cat((first, kv_BHNDD[:, :, :-1]), 2)
    above: Tensor = (near_BHNCD + far_BHNCD).flatten(2, 3)[:, :, :t]
    return above / (inputs.q_BHTD * z_BHTD).sum(-1, keepdim=True)
