"""Adam and AdamW, the optimizer of a configuration, and its learning rate."""

import math
from collections.abc import Iterable
from typing import Annotated, ClassVar

import torch
from pydantic import Field, NonNegativeFloat
from torch import nn
from torch.optim.adam import adam

from pe_lab.config.schema import TrainConfig
from pe_lab.core.optimizer import Optimizer

Beta = Annotated[float, Field(ge=0, lt=1)]
EPS = 1e-8


class Adam(Optimizer):
    """Adam (Kingma 2015), fused. Weight decay, here as an L2 penalty, is on matrices only, those
    of an encoding included."""

    decoupled: ClassVar[bool] = False
    """Whether weight decay is decoupled from the gradient."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        betas: tuple[Beta, Beta],
        weight_decay: NonNegativeFloat,
    ) -> None:
        super().__init__(parameters)
        self.betas = betas
        self.parts = [(self.matrices, weight_decay), (slice(self.matrices.stop, None), 0.0)]
        self.state = {
            "exp_avg": torch.zeros_like(self.values),
            "exp_avg_sq": torch.zeros_like(self.values),
            "step": torch.zeros(len(self.parts), device=self.values.device),
        }

    def step(self, lr: float) -> None:
        for (part, decay), step in zip(self.parts, self.state["step"].unbind(), strict=True):
            adam(
                [self.values[part]],
                [self.gradient[part]],
                [self.state["exp_avg"][part]],
                [self.state["exp_avg_sq"][part]],
                [],
                [step],
                fused=True,
                amsgrad=False,
                beta1=self.betas[0],
                beta2=self.betas[1],
                lr=lr,
                weight_decay=decay,
                eps=EPS,
                maximize=False,
                decoupled_weight_decay=self.decoupled,
            )


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov 2019)."""

    decoupled = True


def make_optimizer(train: TrainConfig, parameters: Iterable[nn.Parameter]) -> Optimizer:
    kind = AdamW if train.optimizer == "adamw" else Adam
    return kind(parameters, train.betas, train.weight_decay)


def learning_rate(cfg: TrainConfig, step: int) -> float:
    """The learning rate of a step, counted from 0: linear warm-up over ``cfg.warmup`` steps, then
    ``cfg.schedule``, which would reach zero at step ``cfg.steps``."""
    if step < cfg.warmup:
        return cfg.lr * (step + 1) / cfg.warmup
    progress = (step - cfg.warmup) / max(1, cfg.steps - cfg.warmup)
    if cfg.schedule == "cosine":
        return cfg.lr * (1 + math.cos(math.pi * progress)) / 2
    return cfg.lr * (1 - progress) if cfg.schedule == "linear" else cfg.lr
