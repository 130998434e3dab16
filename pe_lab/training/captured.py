"""Training steps as CUDA graphs (``train.cuda_graphs``): a step of one shape is recorded once and
replayed, so that a small model does not wait for its launches.

A replayed step reads and writes the same memory each time. What differs from step to step, tokens,
places and targets, dropout keys, the rate, is copied into tensors that stay; how many places count
is rounded up (``room``), and which graph serves follows from the batch alone, so that a resumed run
takes the same.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pe_lab.common.errors import RunError
from pe_lab.training.loss import Padded
from pe_lab.training.optimizer import Adam

Loss = Callable[[Padded], Tensor]
Shape = tuple[tuple[torch.Size, torch.Size, int | None], ...]

MOST = 12
"""Shapes that are recorded, each with memory of its own; steps of others run as they are."""
WARM_UP = 3
"""Steps before one is recorded, in which libraries choose algorithms and take memory."""


def room(n: int) -> int:
    """How many places n of them are padded to: 16, 24, 32, 48, .., each 3/2 or 4/3 of the last."""
    size = 16
    while size < n:
        size = size * 3 // 2 if size.bit_count() == 1 else size * 4 // 3
    return size


class FixedStep:
    """A training step on memory that stays where it is.

    Args:
        parts: of the shapes that it is for; what they hold is not read.

    Attributes:
        told: the loss and the norm of the gradient after ``run``.
    """

    def __init__(
        self,
        parts: Sequence[Padded],
        loss: Loss,
        optimizer: Adam,
        clip: float | None,
    ) -> None:
        self.loss, self.optimizer, self.clip = loss, optimizer, clip
        device = optimizer.values.device
        self.numbers = torch.zeros(len(parts) + 1, dtype=torch.int64, device=device)
        self.total = self.numbers[-1]
        self.read = [
            Padded(
                torch.zeros_like(part.tokens_BT, device=device),
                torch.zeros_like(part.scored_3N, device=device),
                self.numbers[i],
                part.first,
            )
            for i, part in enumerate(parts)
        ]
        # A GPU's fused Adam reads no other type.
        kind = torch.float64 if device.type == "cpu" else torch.float32
        self.rate = torch.zeros((), dtype=kind, device=device)
        self.told = torch.zeros(2, dtype=torch.float64, device=device)

    def load(self, parts: Sequence[Padded], total: int, rate: float) -> None:
        """Put what the next step reads into its place."""
        for own, part in zip(self.read, parts, strict=True):
            own.tokens_BT.copy_(part.tokens_BT)
            own.scored_3N.copy_(part.scored_3N)
        self.numbers.copy_(torch.stack([*(part.key for part in parts), torch.tensor(total)]))
        self.rate.fill_(rate)

    def run(self) -> None:
        """Forward, loss, backward, clipping, Adam."""
        loss = torch.zeros_like(self.told[0])
        for part in self.read:
            part_loss = self.loss(part) / self.total
            torch.autograd.backward(part_loss)
            loss = loss + part_loss.detach()
        norm = self.optimizer.clip(self.clip)
        self.optimizer.lr = self.rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.told.copy_(torch.stack([loss, norm.double()]))


class Captured:
    """The steps of one trainer, each kind recorded when it first comes."""

    def __init__(self, loss: Loss, optimizer: Adam, clip: float | None) -> None:
        self.loss, self.optimizer, self.clip = loss, optimizer, clip
        self.steps: dict[Shape, tuple[FixedStep, Callable[[], None]]] = {}
        # Of the memory of all: no two run at once.
        self.pool: Any = None

    def step(self, parts: Sequence[Padded], total: int, rate: float) -> tuple[float, float]:
        """The loss and the norm of the gradient of a step that is taken.

        Args:
            total: how many places count in all parts.

        Raises:
            RunError: it cannot be recorded.
        """
        shape = tuple((p.tokens_BT.shape, p.scored_3N.shape, p.first) for p in parts)
        known = self.steps.get(shape)
        if known is None:
            fixed = FixedStep(parts, self.loss, self.optimizer, self.clip)
            fixed.load(parts, total, rate)
            run = self.capture(fixed) if len(self.steps) < MOST else fixed.run
            known = self.steps[shape] = fixed, run
        fixed, run = known
        fixed.load(parts, total, rate)
        run()
        loss, norm = fixed.told.tolist()
        return loss, norm

    def capture(self, fixed: FixedStep) -> Callable[[], None]:
        """Record the step; what is returned takes it. The model is as it was."""
        optimizer = self.optimizer
        state = optimizer.values, optimizer.mean, optimizer.square, optimizer.steps
        before = [x.clone() for x in state]
        graph = torch.cuda.CUDAGraph()
        try:
            beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            now = torch.cuda.current_stream()
            beside.wait_stream(now)
            with torch.cuda.stream(beside):
                for _ in range(WARM_UP):
                    fixed.run()
            now.wait_stream(beside)
            for x, was in zip(state, before, strict=True):
                x.copy_(was)
            with torch.cuda.graph(graph, pool=self.pool):
                fixed.run()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise RunError(
                "train.cuda_graphs=true is not possible here, the step could not be recorded "
                f"({str(error).splitlines()[0]}): set train.cuda_graphs=false"
            ) from error
        self.pool = graph.pool()
        return graph.replay
