"""T5's learned bias for each bucket of distances."""

import math

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from pe_lab.pe.base import Dims, PositionalEncoding
from pe_lab.pe.functional import distances


class T5(PositionalEncoding):
    """Learned bias for each head and bucket of distances.

    logits_ij = q_i . k_j / sqrt(D) + table[bucket(i - j), h], table (buckets, H). Half of the
    buckets hold one distance each, the other half grow logarithmically up to
    ``max_distance``, the last one holds the rest: T5's unidirectional form. Source: Raffel 2020
    (1910.10683). T5 has one table for all layers; ``share_layers: false`` gives each its own.
    The table starts normal with deviation 1/sqrt(E), as published. Any length. Not absolute;
    causal.
    """

    shift_invariant = True
    bucket: Tensor

    def __init__(
        self,
        dims: Dims,
        buckets: PositiveInt,
        max_distance: PositiveInt,
        share_layers: bool,
    ) -> None:
        super().__init__()
        exact = buckets // 2
        if buckets < 2:
            raise ValueError(f"buckets={buckets} is too few: set buckets to 2 or more")
        if max_distance <= exact:
            raise ValueError(
                f"max_distance={max_distance} is not above buckets / 2 = {exact}, the distances "
                "that have a bucket of their own: raise max_distance or lower buckets"
            )
        self.share_layers = share_layers
        self.max_distance = max_distance
        rows = [_bucket(n, buckets, max_distance) for n in range(max_distance + 1)]
        self.register_buffer("bucket", torch.tensor(rows), persistent=False)
        self.table = nn.Parameter(torch.randn(buckets, dims.n_heads) / math.sqrt(dims.d_model))

    def bias(self, pos_q_BT: Tensor, pos_k_BS: Tensor) -> Tensor | None:
        row_BTS = distances(pos_q_BT, pos_k_BS).clamp(max=self.max_distance)
        # Columns of (H, distances): the backward of a row look-up would cost five times as much.
        scores_HR = self.table[self.bucket].T.contiguous()
        picked_HBTS = scores_HR.index_select(1, row_BTS.flatten()).reshape(-1, *row_BTS.shape)
        return picked_HBTS.transpose(0, 1)


def _bucket(distance: int, buckets: int, max_distance: int) -> int:
    exact = buckets // 2
    if distance < exact:
        return distance
    share = math.log(distance / exact) / math.log(max_distance / exact)
    # The tiny addend keeps a distance on a border (share * .. a whole number) above it.
    return min(exact + int(share * (buckets - exact) + 1e-9), buckets - 1)
