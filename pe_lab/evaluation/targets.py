"""What an evaluation reads: a split at a length, and its sequences."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pe_lab.common.errors import UsageError
from pe_lab.common.suggest import did_you_mean
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.core.rng import generator
from pe_lab.core.task import Batch, Task
from pe_lab.experiment.load_run import LoadedRun
from pe_lab.training.batches import evaluation_set
from pe_lab.training.memory import min_bytes, refuse_beyond
from pe_lab.training.plan import Plan


@dataclass(frozen=True)
class Target:
    """A split at a length.

    Args:
        length: the requested length, or the configured one.
        task: the split's task at that length; its sequences have ``tokens``.
        unchanged: whether this is the split's configured length.
        sequences: how many are read.
        positions: one more than the largest position; None if they are out of range, see
            ``message``.
    """

    split: str
    length: int
    task: Task
    unchanged: bool
    sequences: int
    positions: int | None
    message: str = ""

    @property
    def tokens(self) -> int:
        return self.task.n_tokens


def targets(
    run: LoadedRun, splits: Sequence[str], lengths: Sequence[int] | None, sequences: int | None
) -> list[Target]:
    """Each split at each length, or at its configured one.

    Args:
        sequences: how many of the training length; None: the run's eval.sequences.

    Raises:
        UsageError: unknown split, impossible length, or more than the machine can hold.
    """
    return [
        _target(run, split, length, sequences)
        for split in splits
        for length in lengths or [_split_task(run, split).n_tokens]
    ]


def _split_task(run: LoadedRun, split: str) -> Task:
    splits = run.plan.task.evaluated()
    if split not in splits:
        raise UsageError(
            f"splits={split} is not a split of {run.path}: " + did_you_mean(split, splits)
        )
    return run.plan.task.split(split)


def _target(run: LoadedRun, split: str, length: int, sequences: int | None) -> Target:
    plan, task = run.plan, _split_task(run, split)
    configured = task.n_tokens
    try:
        at_length = task if length == configured else task.at_length(length)
    except ValueError as error:
        raise UsageError(f"lengths={length}: {error}") from None
    tokens = at_length.n_tokens
    unchanged = tokens == configured
    if not unchanged and split in plan.task.contents() and at_length.stored(split) is None:
        raise UsageError(
            f"lengths={length}: the split {split} of {run.path} is read from a file, "
            f"whose sequences have {configured} tokens: give that length, or another split"
        )
    limit = plan.config.eval.sequences if sequences is None else sequences
    n = max(1, limit * min(tokens, plan.dims.train_len) // tokens)
    refuse_beyond(
        f"lengths={length} is too large",
        min_bytes(tokens, n, plan.dims.d_model),
        "give shorter lengths or fewer sequences",
    )
    target = Target(split, length, task if unchanged else at_length, unchanged, n, None)
    try:
        return replace(target, positions=plan.positions.limit_for(target.task, training=False))
    except ValueError as error:
        return replace(target, message=str(error))


class EvaluationData:
    """The sequences that cells are measured on, each set drawn once."""

    def __init__(self) -> None:
        self.drawn: dict[str, Batch] = {}

    def of(self, plan: Plan, target: Target) -> Batch:
        """The sequences of a target.

        Raises:
            UsageError: none of their positions is scored.
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
        """In-domain sequences of the run, from which the task computes the error of guessing."""
        n = plan.sequences(IN_DOMAIN, plan.config.eval.sequences)
        task = plan.task.split(IN_DOMAIN)
        return self._set(plan, Target(IN_DOMAIN, task.n_tokens, task, True, n, None))

    def _set(self, plan: Plan, target: Target) -> Batch:
        identity = [plan.config.task, target.split, target.tokens, target.sequences]
        key = json.dumps(identity, sort_keys=True)
        if key not in self.drawn:
            self.drawn[key] = _draw(plan, target)
        return self.drawn[key]


def _draw(plan: Plan, target: Target) -> Batch:
    if target.unchanged:
        return evaluation_set(plan.task, target.split, target.sequences)
    stored = target.task.stored(target.split)
    if stored is not None:
        return stored.take(np.arange(min(target.sequences, len(stored))))
    rng = generator(0, "evaluation", target.split)
    return target.task.sample(rng, target.sequences)
