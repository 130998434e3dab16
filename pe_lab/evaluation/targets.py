"""What an evaluation reads: a split at a length, and its sequences."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from pe_lab.common.errors import UsageError
from pe_lab.common.metrics import IN_DOMAIN
from pe_lab.common.rng import generator
from pe_lab.common.suggest import did_you_mean
from pe_lab.common.task import Batch, Task
from pe_lab.evaluation.memory import least_bytes, refuse_beyond
from pe_lab.experiment.load_run import Trained
from pe_lab.training.batches import evaluation_set
from pe_lab.training.plan import Plan


@dataclass(frozen=True)
class Target:
    """A split at a length.

    Args:
        length: as asked for, or the split's own.
        task: the split's, at that length; its sequences have ``tokens``.
        own: whether that is the split's own length.
        sequences: how many are read.
        positions: one more than the largest; None: they are out of range, see ``message``.
    """

    split: str
    length: int
    task: Task
    own: bool
    sequences: int
    positions: int | None
    message: str = ""

    @property
    def tokens(self) -> int:
        return self.task.n_tokens


def targets(
    trained: Trained, splits: Sequence[str], lengths: Sequence[int] | None, sequences: int | None
) -> list[Target]:
    """Each split at each length, or at its own.

    Args:
        sequences: how many of the training length; None: the run's eval.sequences.

    Raises:
        UsageError: there is no such split or length, or the machine cannot hold it.
    """
    plan = trained.plan
    most = plan.config.eval.sequences if sequences is None else sequences
    found = []
    for split in splits:
        if split not in plan.task.evaluated():
            raise UsageError(
                f"splits={split} is no split of {trained.path}: "
                + did_you_mean(split, plan.task.evaluated())
            )
        whole = plan.task.split(split)
        for length in lengths or [whole.n_tokens]:
            try:
                task = whole if length == whole.n_tokens else whole.at_length(length)
            except ValueError as error:
                raise UsageError(f"lengths={length}: {error}") from None
            own = task.n_tokens == whole.n_tokens
            if not own and split in plan.task.contents() and task.stored(split) is None:
                raise UsageError(
                    f"lengths={length}: the split {split} of {trained.path} is read from a file, "
                    f"whose sequences have {whole.n_tokens} tokens: give that length, or "
                    "another split"
                )
            tokens = task.n_tokens
            n = max(1, most * min(tokens, plan.dims.train_len) // tokens)
            least = least_bytes(tokens, n, plan.dims.d_model)
            refuse_beyond(f"lengths={length}", least, "at the least", torch.device("cpu"))
            target = Target(split, length, whole if own else task, own, n, None)
            try:
                limit = plan.positions.limit(tokens, training=False)
                found.append(replace(target, positions=limit))
            except ValueError as error:
                found.append(replace(target, message=str(error)))
    return found


class Sequences:
    """What the cells are measured on, each set drawn once."""

    def __init__(self) -> None:
        self.drawn: dict[str, Batch] = {}

    def of(self, plan: Plan, target: Target) -> Batch:
        """The sequences of a target.

        Raises:
            UsageError: nothing in them is scored.
        """
        data = self._set(plan, target)
        if not data.scored.any():
            raise UsageError(
                f"the split {target.split} has nothing to score in its first "
                f"{target.sequences} sequences of {target.tokens} tokens: raise "
                "sequences=, or give other lengths"
            )
        return data

    def reference(self, plan: Plan) -> Batch:
        """In-domain sequences of the run: what guessing knows."""
        n = plan.sequences(IN_DOMAIN, plan.config.eval.sequences)
        whole = plan.task.split(IN_DOMAIN)
        return self._set(plan, Target(IN_DOMAIN, whole.n_tokens, whole, True, n, None))

    def _set(self, plan: Plan, target: Target) -> Batch:
        what = [plan.config.task, target.split, target.tokens, target.sequences]
        key = json.dumps(what, sort_keys=True)
        if key not in self.drawn:
            self.drawn[key] = _drawn(plan, target)
        return self.drawn[key]


def _drawn(plan: Plan, target: Target) -> Batch:
    if target.own:
        return evaluation_set(plan.task, target.split, target.sequences)
    stored = target.task.stored(target.split)
    if stored is not None:
        return stored.take(np.arange(min(target.sequences, len(stored))))
    rng = generator(0, "evaluation", target.split)
    return target.task.sample(rng, target.sequences)
