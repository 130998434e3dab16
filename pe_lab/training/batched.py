"""Several models of one shape, trained as one.

Shape letters, beside the model's own: M models, P numbers that an optimiser holds of one.
"""

import math
import time
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from pe_lab.models.attention import Attention
from pe_lab.models.base import Model
from pe_lab.models.scored_positions import ScoredPositions
from pe_lab.training.loss import Microbatch, first_counted, padded_places, wide
from pe_lab.training.optimizer import EPS
from pe_lab.training.trainer import Taken, Trainer, learning_rate


class Batched:
    """The steps of trainers whose configurations differ in seed and rate alone.

    All weights lie in one (M, P) tensor, and so do their gradients and moments; what a trainer
    holds becomes a view of its row, so that it measures and writes checkpoints as ever. The model
    runs under ``vmap`` and without fused kernels, one backward pass serves all; the norm that is
    clipped, the rate and the number of the step are each model's own.
    """

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        self.trainers, self.config = list(trainers), trainers[0].config
        self.device = trainers[0].device
        first, m = trainers[0].optimizer, len(trainers)
        self.values_MP, self.gradient_MP, self.mean_MP, self.square_MP = (
            first.values.new_zeros(m, len(first.values)) for _ in range(4)
        )
        self.steps_M2 = first.steps.new_zeros(m, len(first.steps))
        for i, trainer in enumerate(trainers):
            trainer.optimizer.lie_in(
                values=self.values_MP[i], gradient=self.gradient_MP[i], mean=self.mean_MP[i],
                square=self.square_MP[i], steps=self.steps_M2[i],
            )  # fmt: skip
        self.decay_P = torch.zeros_like(first.values)
        for part, decay in first.parts:
            self.decay_P[part] = decay
        self.model = _Logits(trainers[0].plan.model().to(self.device).train())
        self.leaves, self.gradients = (
            self._stacked(rows_MP) for rows_MP in (self.values_MP, self.gradient_MP)
        )
        names = trainers[0].model.names_of_parameters()
        self.parameters = {
            f"model.{name}": leaf.requires_grad_()
            for p, leaf in zip(first.parameters, self.leaves, strict=True)
            for name in names[id(p)]
        }
        self.buffers, self.buffer_dims = self._stacked_buffers()

    def _stacked(self, rows_MP: Tensor) -> list[Tensor]:
        """Of each parameter what ``rows_MP`` holds of it, (M, ..)."""
        optimizer = self.trainers[0].optimizer
        return [
            piece[:, : p.numel()].view(-1, *p.shape).detach()
            for p, piece in zip(
                optimizer.parameters, torch.split(rows_MP, optimizer.sizes, 1), strict=True
            )
        ]

    def _stacked_buffers(self) -> tuple[dict[str, Tensor], dict[str, int | None]]:
        """The buffers, and along which dimension they are many; tables of slopes or angles, the
        same in all models, are one."""
        found: dict[str, Tensor] = {}
        dims: dict[str, int | None] = {}
        for name, one in self.trainers[0].model.named_buffers():
            each = torch.stack([t.model.get_buffer(name) for t in self.trainers])
            same = bool((each == one).all())
            found[f"model.{name}"], dims[f"model.{name}"] = (one, None) if same else (each, 0)
        return found, dims

    def step(self, read: Sequence[Sequence[Microbatch]]) -> list[Taken]:
        """One step of each model.

        Args:
            read: what each trainer's ``parts`` returned; all of one shape.
        """
        began = time.perf_counter()
        totals = [sum(int(part.counted.sum()) for part in parts) for parts in read]
        totals_M = torch.tensor(totals, device=self.device)
        loss_M = torch.zeros(len(read), dtype=torch.float64, device=self.device)
        for together in zip(*read, strict=True):
            part_loss_M = self._summed_losses(together) / totals_M
            found = torch.autograd.grad(part_loss_M.sum(), self.leaves, allow_unused=True)
            for own, gradient in zip(self.gradients, found, strict=True):
                if gradient is not None:
                    own.add_(gradient)
            loss_M += part_loss_M.detach()
        norm_M = torch.linalg.vector_norm(self.gradient_MP, dim=1)
        if self.config.clip is not None:
            self.gradient_MP.mul_((self.config.clip / (norm_M + 1e-6)).clamp(max=1)[:, None])
        self._update()
        # As a trainer leaves it, which may take its next step alone.
        self.gradient_MP.zero_()
        told = torch.stack([loss_M, norm_M.double()], 1).tolist()
        seconds = (time.perf_counter() - began) / len(read)
        return [Taken(loss, norm, seconds) for loss, norm in told]

    def _summed_losses(self, parts: Sequence[Microbatch]) -> Tensor:
        """(M,), each model's cross-entropy summed over its counted places."""
        tokens, targets = (
            torch.from_numpy(np.stack([getattr(part.batch, name) for part in parts]))
            for name in ("tokens", "targets")
        )
        shared = all(torch.equal(part.pos, parts[0].pos) for part in parts)
        pos = parts[0].pos if shared else torch.stack([part.pos for part in parts])
        places, counts = padded_places([part.counted for part in parts])
        first = min(first_counted(part.counted) for part in parts)
        keys = torch.tensor([part.key for part in parts])
        asked = [t.to(self.device) for t in (tokens, targets.flatten(1), pos, places, counts, keys)]

        def one(parameters, buffers, tokens_BT, targets_N, pos, at_N, counts_N, key):  # type: ignore[no-untyped-def]
            scored = ScoredPositions(at_N, first)
            logits = functional_call(
                self.model, (parameters, buffers), (tokens_BT, pos, scored, key), tie_weights=False
            )
            losses = F.cross_entropy(
                wide(logits), targets_N.index_select(0, at_N), reduction="none"
            )
            return (losses * counts_N).sum()

        dims = (0, self.buffer_dims, 0, 0, None if shared else 0, 0, 0, 0)
        losses: Tensor = vmap(one, dims)(self.parameters, self.buffers, *asked)
        return losses

    def _update(self) -> None:
        """Adam's step, as optimizer.py has it, each model at its own rate and number."""
        cfg, (beta1, beta2) = self.config, self.config.betas
        numbers = []
        for trainer in self.trainers:
            n, rate = trainer.step + 1, learning_rate(trainer.config, trainer.step)
            trainer.optimizer.lr = rate
            numbers.append((rate, rate / (1 - beta1**n), math.sqrt(1 - beta2**n)))
        rate_M1, pace_M1, spread_M1 = (
            torch.tensor(numbers, dtype=self.values_MP.dtype).to(self.device).T.unsqueeze(-1)
        )
        values, gradient = self.values_MP, self.gradient_MP
        if cfg.optimizer == "adamw":
            values.mul_(1 - rate_M1 * self.decay_P)
        else:
            gradient.addcmul_(values, self.decay_P)
        self.mean_MP.lerp_(gradient, 1 - beta1)
        self.square_MP.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        values.addcdiv_(
            self.mean_MP * pace_M1, (self.square_MP.sqrt() / spread_M1).add_(EPS), value=-1
        )
        self.steps_M2.add_(1)


class _Logits(nn.Module):
    """The model's logits at the scored places, as one function of weights and tokens; the fused
    kernels know nothing of many models."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        for module in model.modules():
            if isinstance(module, Attention):
                module.fast = False

    def forward(
        self, tokens_BT: Tensor, pos_BT: Tensor, scored: ScoredPositions, key: Tensor
    ) -> Tensor:
        return self.model.unembed(self.model(tokens_BT, pos_BT, scored=scored, key=key))
