"""Losses and steps from tensors of few shapes, as ``train.compile`` and ``train.cuda_graphs`` want
them: all that differs from step to step is in tensors, and positions do not.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from pe_lab.common.rng import generator
from pe_lab.models.base import Model
from pe_lab.training.batches import TrainData
from pe_lab.training.captured import Captured, room
from pe_lab.training.compiled_loss import LEAST, CompiledLoss
from pe_lab.training.loss import FixedLoss, Microbatch, Padded, first_counted
from pe_lab.training.optimizer import Adam
from pe_lab.training.plan import Plan

FIRSTS = 16
"""The first place that counts is known to so many: others would hardly be fewer to compute."""


class PaddedSteps:
    """Of one trainer. What a step computes follows from the configuration and its batch alone, so
    that a resumed run computes the same.

    Args:
        data: the trainer's.
    """

    def __init__(self, plan: Plan, model: Model, optimizer: Adam, data: TrainData) -> None:
        cfg, self.device = plan.config.train, model.device
        batch = data.batch(0)
        first = first_counted(plan.task.trained(batch))
        self.first = first - first % FIRSTS
        # They are not drawn (step_checks.py), so from no generator.
        rng = generator(plan.config.seed, "train positions", 0)
        positions = plan.positions.sample(rng, *batch.tokens.shape, training=True)
        pos, half = torch.from_numpy(positions).to(self.device), cfg.precision == "bfloat16"
        loss = CompiledLoss if cfg.compile else FixedLoss
        self.loss = loss(model, pos, half)
        self.captured = Captured(self.loss, optimizer, cfg.clip) if cfg.cuda_graphs else None

    def summed_loss(self, part: Microbatch) -> Tensor:
        """That of a part (loss.py)."""
        padded = Padded.of(part, self.first, lambda n: max(n, LEAST))
        return self.loss(padded.to(self.device))

    def step(self, parts: Sequence[Microbatch], total: int, rate: float) -> tuple[float, float]:
        """Take a whole step at this rate; its loss, and the norm of the gradient.

        Args:
            total: how many places count in all parts.
        """
        assert self.captured is not None
        return self.captured.step([Padded.of(p, self.first, room) for p in parts], total, rate)
