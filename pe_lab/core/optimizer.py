"""The base of optimizers, on flat vectors.

``torch.optim`` loops over the parameters in Python, 0.6 ms a step for a small model, and imports
torch's compiler, which takes as long as torch itself.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from pe_lab.core.errors import UsageError

NAMES = {
    "adamw": "pe_lab.train.optimizer.AdamW",
    "adam": "pe_lab.train.optimizer.Adam",
}
"""What ``train.optimizer`` may be besides the dotted path of a class."""

ALIGNMENT = 16
"""Parameters start at multiples of this many numbers, a cache line, like separate tensors."""


class Optimizer(ABC):
    """Updates parameters in place from their gradients.

    The first argument of a subclass is the parameters; the others are keys of ``train`` that its
    yaml in ``conf/train/optimizer/`` sets. Parameters and gradients become views of two vectors:
    move or convert a model before, never after.

    Attributes:
        values, gradient: the vectors, matrices (two dimensions or more) first.
        matrices: the part of them that holds matrices.
        state: further tensors, which checkpoints keep.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        ordered = sorted(parameters, key=lambda p: p.dim() < 2)
        sizes = [math.ceil(p.numel() / ALIGNMENT) * ALIGNMENT for p in ordered]
        self.values = ordered[0].new_zeros(sum(sizes))
        self.gradient = torch.zeros_like(self.values)
        self.matrices = slice(sum(n for p, n in zip(ordered, sizes, strict=True) if p.dim() >= 2))
        self.state: dict[str, Tensor] = {}
        start = 0
        for p, size in zip(ordered, sizes, strict=True):
            place = slice(start, start + p.numel())
            self.values[place] = p.detach().flatten()
            p.data, p.grad = self.values[place].view(p.shape), self.gradient[place].view(p.shape)
            start += size

    @abstractmethod
    def step(self, lr: float) -> None:
        """Update ``values`` from ``gradient`` at this learning rate."""

    def clip(self, max_norm: float | None) -> Tensor:
        """Scale the gradient down to the norm ``max_norm``; returns the norm before."""
        norm: Tensor = torch.linalg.vector_norm(self.gradient)
        if max_norm is not None:
            self.gradient.mul_((max_norm / (norm + 1e-6)).clamp(max=1))
        return norm

    def zero_grad(self) -> None:
        self.gradient.zero_()

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the state.

        Raises:
            ValueError: it belongs to other parameters or another optimizer.
        """
        ours, theirs = ({k: v.shape for k, v in s.items()} for s in (self.state, state))
        if ours != theirs:
            raise ValueError(f"the optimizer's state has shapes {theirs}, not {ours}")
        for name, tensor in self.state.items():
            tensor.copy_(state[name])


def optimizer_section(name: str, keys: dict[str, Any]) -> dict[str, Any]:
    """``train.optimizer`` and its arguments as a section with a ``_target_``."""
    if "." not in name and name not in NAMES:
        raise UsageError(
            f"train.optimizer={name} is not allowed: set it to {', '.join(NAMES)} or the dotted "
            "path of a class, package.module.Class, or choose a yaml, train/optimizer=NAME"
        )
    return {"_target_": NAMES.get(name, name), **keys}
