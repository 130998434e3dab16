"""Adam and AdamW on flat vectors.

``torch.optim`` walks over the parameters in Python, 0.6 ms a step for a small model, and imports
torch's compiler, which takes as long as torch itself. Its functional form does neither.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from pe_lab.config.schema import TrainConfig

# A parameter starts at a whole cache line, as one with a memory of its own does.
LINE = 16

EPS = 1e-8


class Adam:
    """Fused Adam or AdamW (Loshchilov 2019). Weight decay on matrices only (two dimensions or
    more), those of an encoding too.

    Parameters and their gradients become views of two vectors, the matrices first: convert or move
    a model before, never after.
    """

    def __init__(self, cfg: TrainConfig, parameters: Iterable[nn.Parameter]) -> None:
        self.decoupled, self.betas = cfg.optimizer == "adamw", cfg.betas
        known = list(parameters)
        matrices = [p for p in known if p.dim() >= 2]
        self.parameters = [*matrices, *(p for p in known if p.dim() < 2)]
        self.sizes = [math.ceil(p.numel() / LINE) * LINE for p in self.parameters]
        decayed = sum(self.sizes[: len(matrices)])
        self.values = known[0].new_zeros(sum(self.sizes))
        self.gradient, self.mean, self.square = (torch.zeros_like(self.values) for _ in range(3))
        self.steps = torch.zeros(2, device=self.values.device)
        self.parts = [(slice(decayed), cfg.weight_decay), (slice(decayed, None), 0.0)]
        for p, own in self._places():
            self.values[own] = p.detach().flatten()
            p.data, p.grad = self.values[own].view(p.shape), self.gradient[own].view(p.shape)

    def _places(self) -> Iterator[tuple[nn.Parameter, slice]]:
        """Where each parameter lies in the vectors."""
        start = 0
        for p, size in zip(self.parameters, self.sizes, strict=True):
            yield p, slice(start, start + p.numel())
            start += size

    def clip(self, most: float | None) -> Tensor:
        """Scale the gradient down to the norm ``most``; the norm that it had."""
        norm: Tensor = torch.linalg.vector_norm(self.gradient)
        if most is not None:
            self.gradient.mul_((most / (norm + 1e-6)).clamp(max=1))
        return norm

    def step(self, lr: float) -> None:
        """One step at this learning rate."""
        for (part, decay), steps in zip(self.parts, self.steps.unbind(), strict=True):
            adam(
                [self.values[part]],
                [self.gradient[part]],
                [self.mean[part]],
                [self.square[part]],
                [],
                [steps],
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

    def zero_grad(self) -> None:
        """Forget the gradient."""
        self.gradient.zero_()

    def state_dict(self) -> dict[str, Any]:
        """``state`` as ``torch.optim`` has it, each parameter's by itself, the matrices first: how
        the vectors are laid out may change, and a run begun with torch's own goes on."""
        views = (
            {
                "step": self.steps[0 if p.dim() >= 2 else 1],
                "exp_avg": self.mean[own].view(p.shape),
                "exp_avg_sq": self.square[own].view(p.shape),
            }
            for p, own in self._places()
        )
        return {"state": dict(enumerate(views))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where another stood.

        Raises:
            ValueError: it stood with other parameters.
        """
        own, given = self.state_dict()["state"], state["state"]
        # torch.optim has nothing for a parameter that never had a gradient.
        if not given.keys() <= own.keys():
            raise ValueError(f"the optimizer knew {len(given)} parameters, there are {len(own)}")
        for number, values in given.items():
            for name, value in own[number].items():
                if values[name].shape != value.shape:
                    raise ValueError(f"parameter {number} of the optimizer has another shape")
                value.copy_(values[name])
