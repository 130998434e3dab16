"""The loss of a training step: cross-entropy over the places that count.

Shape letters: B batch, T tokens, N places, M batches taken at once.
"""

from collections.abc import Callable, Sequence
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


@dataclass(frozen=True)
class Padded:
    """A part as tensors, whose sizes need not follow from how many places count.

    Args:
        scored_3N: the places, what is to be answered there, and 1; or 0, where nothing counts.
        key: int64, of no dimension.
        first: a place t before which none of them is; None: they are all places, in order.
    """

    tokens_BT: Tensor
    scored_3N: Tensor
    key: Tensor
    first: int | None

    @classmethod
    def of(cls, part: Microbatch, first: int, size: Callable[[int], int]) -> "Padded":
        """
        Args:
            first: the place that is told where no earlier one counts; else 0 is.
            size: N of the number of places that count, at least as large.
        """
        counted, n = part.counted, int(part.counted.sum())
        whole = n == counted.size
        at_1N, counts_1N = padded_places([counted], n if whole else size(n))
        targets_N = torch.from_numpy(part.batch.targets).flatten()[at_1N[0]]
        told = first if first_counted(counted) >= first else 0
        return cls(
            torch.from_numpy(part.batch.tokens),
            torch.stack([at_1N[0], targets_N, counts_1N[0]]),
            torch.tensor(part.key),
            None if whole else told,
        )

    def to(self, device: torch.device) -> "Padded":
        """It on a device."""
        moved = self.tokens_BT.to(device), self.scored_3N.to(device), self.key.to(device)
        return Padded(*moved, self.first)


def first_counted(counted: Bools) -> int:
    """The first place t that counts in any row; the last one where none does."""
    return int(counted.any(0).argmax()) if counted.any() else counted.shape[1] - 1


def padded_loss(
    model: Model, tokens_BT: Tensor, pos: Tensor, scored_3N: Tensor, key: Tensor, first: int | None
) -> Tensor:
    """``summed_loss``; the tensors as in ``Padded``."""
    at_N, targets_N, counts_N = scored_3N.unbind()
    scored = None if first is None else ScoredPositions(at_N, first)
    hidden = model(tokens_BT, pos, scored=scored, key=key)
    logits = wide(model.unembed(hidden if scored is not None else hidden.flatten(0, 1)))
    return (F.cross_entropy(logits, targets_N, reduction="none") * counts_N).sum()


class FixedLoss:
    """``padded_loss`` of one model whose parts have the same positions.

    Args:
        pos: on the model's device.
        half: whether bfloat16 is used where it does.
    """

    def __init__(self, model: Model, pos: Tensor, half: bool) -> None:
        self.model, self.pos, self.half = model, pos, half

    def __call__(self, part: Padded) -> Tensor:
        """The loss of a part on the model's device."""
        with self.autocast():
            return padded_loss(
                self.model, part.tokens_BT, self.pos, part.scored_3N, part.key, part.first
            )

    def autocast(self) -> torch.autocast:
        """The context in which the model runs. What is cast is not kept: what is recorded or traced
        once would find nothing of it the next time."""
        kind = self.pos.device.type
        return torch.autocast(kind, torch.bfloat16, enabled=self.half, cache_enabled=False)


def padded_places(counted: Sequence[Bools], least: int = 0) -> tuple[Tensor, Tensor]:
    """The numbers of the places that count, and 1 for each, both (M, N), N as large as the most
    among them and at least ``least``. Where there are fewer, the last one comes again, with 0."""
    chosen: list[Ints] = [np.flatnonzero(places) for places in counted]
    most = max(least, *map(len, chosen))
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
