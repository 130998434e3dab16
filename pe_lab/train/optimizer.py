"""Adam and AdamW on flat vectors, and the learning rate of a step.

``torch.optim`` loops over the parameters in Python, 0.6 ms a step for a small model, and imports
torch's compiler, which takes as long as torch itself.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from pe_lab.config.schema import TrainConfig

ALIGNMENT = 16
"""Parameters start at multiples of this many numbers, a cache line, like separate tensors."""
EPS = 1e-8


class Adam:
    """Adam (Kingma 2015) or AdamW (Loshchilov 2019), by torch's fused kernel.

    Weight decay is on matrices only, those of an encoding included; with AdamW it is decoupled
    from the gradient. Parameters and gradients become views of two vectors: move or convert a
    model before, never after.
    """

    def __init__(self, train: TrainConfig, parameters: Iterable[nn.Parameter]) -> None:
        self.train = train
        # Matrices first.
        ordered = sorted(parameters, key=lambda p: p.dim() < 2)
        sizes = [math.ceil(p.numel() / ALIGNMENT) * ALIGNMENT for p in ordered]
        self.values = ordered[0].new_zeros(sum(sizes))
        self.gradient = torch.zeros_like(self.values)
        start = 0
        for p, size in zip(ordered, sizes, strict=True):
            place = slice(start, start + p.numel())
            self.values[place] = p.detach().flatten()
            p.data, p.grad = self.values[place].view(p.shape), self.gradient[place].view(p.shape)
            start += size
        matrices = sum(size for p, size in zip(ordered, sizes, strict=True) if p.dim() >= 2)
        self.parts = [(slice(matrices), train.weight_decay), (slice(matrices, None), 0.0)]
        self.state = {
            "exp_avg": torch.zeros_like(self.values),
            "exp_avg_sq": torch.zeros_like(self.values),
            "step": torch.zeros(len(self.parts), device=self.values.device),
        }

    def clip(self) -> Tensor:
        """Scale the gradient down to the norm ``train.clip``; returns the norm before."""
        norm: Tensor = torch.linalg.vector_norm(self.gradient)
        if self.train.clip is not None:
            self.gradient.mul_((self.train.clip / (norm + 1e-6)).clamp(max=1))
        return norm

    def step(self, lr: float) -> None:
        """Update the parameters at this learning rate, and zero the gradient."""
        for (part, decay), step in zip(self.parts, self.state["step"].unbind(), strict=True):
            adam(
                [self.values[part]], [self.gradient[part]],
                [self.state["exp_avg"][part]], [self.state["exp_avg_sq"][part]], [], [step],
                fused=True, amsgrad=False, maximize=False,
                beta1=self.train.betas[0], beta2=self.train.betas[1], eps=EPS,
                lr=lr, weight_decay=decay,
                decoupled_weight_decay=self.train.optimizer == "adamw",
            )  # fmt: skip
        self.gradient.zero_()

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore ``state``; KeyError or RuntimeError if it belongs to other parameters."""
        for name, tensor in self.state.items():
            tensor.copy_(state[name])


def learning_rate(cfg: TrainConfig, step: int) -> float:
    """Return the learning rate of a step, counted from 0: linear warm-up over ``cfg.warmup`` steps,
    then ``cfg.schedule``. Linear and cosine schedules reach zero at step ``cfg.steps``."""
    if step < cfg.warmup:
        return cfg.lr * (step + 1) / cfg.warmup
    progress = (step - cfg.warmup) / max(1, cfg.steps - cfg.warmup)
    if cfg.schedule == "cosine":
        return cfg.lr * (1 + math.cos(math.pi * progress)) / 2
    return cfg.lr * (1 - progress) if cfg.schedule == "linear" else cfg.lr
