"""The loss of a training step: cross-entropy over the places that count.

Shape letters: B batch, T tokens, N places, M batches taken at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pe_lab.common.task import Batch, Bools, Ints
from pe_lab.models.base import Model
from pe_lab.models.scored_positions import ScoredPositions


@dataclass(frozen=True)
class Microbatch:
    """What a training step reads at once; a step has ``train.accumulate`` of them.

    Args:
        counted: the places that the loss is taken over, (B, T).
        pos: (1 or B, T).
        key: of the dropout masks.
    """

    batch: Batch
    counted: Bools
    pos: Tensor
    key: int


def summed_loss(
    model: Model, batch: Batch, counted: Bools, pos: Tensor, key: int | None = None
) -> Tensor:
    """Cross-entropy summed over the counted places; the last layer and the logits are computed
    there only. ``key`` is that of the dropout masks."""
    device = model.device
    targets = torch.from_numpy(batch.targets[counted]).to(device)
    tokens = torch.from_numpy(batch.tokens).to(device)
    if counted.all():
        hidden = model(tokens, pos, key=key).flatten(0, 1)
    else:
        hidden = model(tokens, pos, scored=ScoredPositions.of(counted, device), key=key)
    return F.cross_entropy(wide(model.unembed(hidden)), targets, reduction="sum")


def first_counted(counted: Bools) -> int:
    """The first place t that counts in any row; the last one where none does."""
    return int(counted.any(0).argmax()) if counted.any() else counted.shape[1] - 1


def padded_places(counted: Sequence[Bools]) -> tuple[Tensor, Tensor]:
    """The numbers of the places that count, and 1 for each, both (M, N), N as large as the most
    among them. Where there are fewer, the last one comes again, with 0."""
    chosen: list[Ints] = [np.flatnonzero(places) for places in counted]
    most = max(map(len, chosen))
    at, counts = torch.empty(2, len(chosen), most, dtype=torch.int64)
    for i, places in enumerate(chosen):
        # A part of a batch may have none.
        at[i] = int(places[-1]) if len(places) else counted[i].size - 1
        at[i, : len(places)] = torch.from_numpy(places)
        counts[i] = torch.arange(most) < len(places)
    return at, counts


def wide(logits: Tensor) -> Tensor:
    """What a loss is taken of: half precision is too narrow for it."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
