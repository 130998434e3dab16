"""Evaluation of a model on the fixed evaluation sets of its plan."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch

from pe_lab.core.task import Batch, Ints
from pe_lab.models.base import Model
from pe_lab.training.generate import generated_answers
from pe_lab.training.measure import Answers, answer, fixed_positions
from pe_lab.training.plan import Plan


def autocast(plan: Plan, model: Model) -> AbstractContextManager[Any]:
    """The autocast context of ``train.precision`` on the model's device."""
    half = plan.config.train.precision == "bfloat16"
    return torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=half)


class Evaluator:
    """Evaluates a model on the splits of a plan.

    Args:
        sets: the evaluation set of each split.
        poll: called between batches; may raise to stop.
        batch_tokens: tokens evaluated at once; None: ``eval.batch_tokens``.
    """

    def __init__(
        self,
        plan: Plan,
        model: Model,
        sets: Mapping[str, Batch],
        poll: Callable[[], None] = lambda: None,
        batch_tokens: int | None = None,
    ) -> None:
        self.plan, self.model, self.sets = plan, model, sets
        self._options: dict[str, Any] = {
            "batch_tokens": batch_tokens or plan.config.eval.batch_tokens,
            "autocast": partial(autocast, plan, model),
            "poll": poll,
        }

    def answers(self, split: str, n: int | None = None) -> Answers:
        """The teacher-forced answers to a split, or to its first ``n`` sequences."""
        data, positions = self._sequences(split, n)
        task = self.plan.task.split(split)
        return answer(self.model, task, data, positions, **self._options)

    def generated(self, split: str) -> Answers:
        """The answers that the model generates greedily."""
        data, positions = self._sequences(split, None)
        source = self.plan.positions
        of_tokens = source.of_tokens if source.from_tokens else None
        return generated_answers(self.model, data, positions, of_tokens, **self._options)

    def _sequences(self, split: str, n: int | None) -> tuple[Batch, Ints]:
        data = self.sets[split]
        positions = fixed_positions(self.plan.positions, split, data)
        if n is None:
            return data, positions
        first = slice(0, n)
        return data.take(first), positions if len(positions) == 1 else positions[first]
