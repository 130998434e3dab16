import math
from bisect import bisect_left
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from pe_lab.pe.base import Dims, PositionalEncoding, by_distance
from pe_lab.pe.functional import distances


class T5(PositionalEncoding):
    """Learned bias for each head and bucket of distances.

        bias[h, i, j] = table[bucket(i - j), h]                       table (buckets, H)

    Half of the buckets hold one distance each. The other half grow logarithmically up to
    ``max_distance``, and the last one holds the rest. All layers share the table; ``share_layers:
    false`` gives each its own. It starts normal with deviation 1/sqrt(E), as published. Any length.
    Not absolute; causal.

    Source: Raffel 2020 (1910.10683), the unidirectional form.
    """

    shift_invariant = True

    def __init__(
        self,
        dims: Dims,
        buckets: Annotated[int, Field(ge=2, le=2**14)],
        max_distance: Annotated[int, Field(gt=0, lt=2**62)],
        share_layers: bool,
    ) -> None:
        super().__init__()
        if max_distance <= buckets // 2:
            raise ValueError(
                f"max_distance={max_distance} is not above buckets / 2 = {buckets // 2}, the "
                "distances that have separate buckets: raise max_distance or lower buckets"
            )
        self.share_layers = share_layers
        self.borders = nn.Buffer(torch.tensor(_borders(buckets, max_distance)), persistent=False)
        self.table = nn.Parameter(torch.randn(buckets, dims.n_heads) / math.sqrt(dims.d_model))

    @by_distance
    def bias(self, pos_q_BT: Tensor, pos_k_BS: Tensor) -> Tensor:
        row_BTS = torch.bucketize(distances(pos_q_BT, pos_k_BS), self.borders, right=True)
        # Columns of (H, buckets): the backward of a row look-up would cost five times as much.
        scores_HR = self.table.T.contiguous()
        picked_HBTS = scores_HR.index_select(1, row_BTS.flatten()).reshape(-1, *row_BTS.shape)
        return picked_HBTS.transpose(0, 1)


def _borders(buckets: int, max_distance: int) -> list[int]:
    """The smallest distance of each bucket but the first; an empty one has its successor's."""
    far = range(max_distance + 1)
    return [
        bisect_left(far, bucket, key=lambda n: _bucket(n, buckets, max_distance))
        for bucket in range(1, buckets)
    ]


def _bucket(distance: int, buckets: int, max_distance: int) -> int:
    exact = buckets // 2
    if distance < exact:
        return distance
    share = math.log(distance / exact) / math.log(max_distance / exact)
    # The tiny addend keeps a distance on a border (share * .. a whole number) above it.
    return min(exact + int(share * (buckets - exact) + 1e-9), buckets - 1)
