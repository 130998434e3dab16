"""The loss of a training step: cross-entropy over the scored positions.

Shape letters: B batch, T tokens.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pe_lab.core.task import Batch, Bools
from pe_lab.models.base import Model, ScoredPositions


@dataclass(frozen=True)
class Microbatch:
    """One of the ``train.accumulate`` parts of a training step's batch.

    Args:
        counted: True at the positions of the loss, (B, T).
        pos: (1 or B, T).
        key: the key of the dropout masks.
    """

    batch: Batch
    counted: Bools
    pos: Tensor
    key: int


def summed_loss(
    model: Model, batch: Batch, counted: Bools, pos: Tensor, key: int | None = None
) -> Tensor:
    """Cross-entropy summed over the counted positions; the last layer and the logits are computed
    there only. ``key`` is that of the dropout masks."""
    device = model.device
    targets = torch.from_numpy(batch.targets[counted]).to(device)
    tokens = torch.from_numpy(batch.tokens).to(device)
    if counted.all():
        hidden = model(tokens, pos, key=key).flatten(0, 1)
    else:
        hidden = model(tokens, pos, scored=ScoredPositions.of(counted, device), key=key)
    return F.cross_entropy(wide(model.unembed(hidden)), targets, reduction="sum")


def wide(logits: Tensor) -> Tensor:
    """Logits in at least float32, as half precision is too narrow for a loss."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
