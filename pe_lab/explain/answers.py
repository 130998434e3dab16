"""The answers that are diagnosed: where each is asked, and which tokens hold it.

Shape letters: n answers, N sequences, T tokens, V words.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from pe_lab.core.rng import generator
from pe_lab.core.task import Batch, Bools, Ints, Task
from pe_lab.experiment.signals import raise_interrupt
from pe_lab.explain.hook import Intervention, Reading, apply_intervention
from pe_lab.models.base import Model
from pe_lab.pe.positions import Numbers

TOKENS = 24_000
"""Tokens read of a split: a few hundred answers, in seconds."""
ANSWERS = 1_500
"""Answers of a split from which no more sequences are read."""
FEWEST, MOST = 40, 400
"""Sequences of a split."""
CHUNK = 6_000
"""Tokens of a forward pass."""


@dataclass(frozen=True, eq=False)
class Questions:
    """Scored answers of some sequences.

    Args:
        positions: of the tokens, (1 or N, T).
        row, place: where each answer is predicted, (n,).
        target: the right answers, (n,).
        held: the tokens that hold it, (n, T).
        wrong: the tokens that hold another answer, ``wrong_target``, to force attention onto,
            (n, T); none where the sequence has no such answer.
    """

    task: Task
    batch: Batch
    positions: Numbers
    row: Ints
    place: Ints
    target: Ints
    held: Bools
    wrong: Bools
    wrong_target: Ints

    @property
    def distance(self) -> Numbers:
        """How far back the last of the tokens that hold the answer is, in positions, (n,)."""
        at, row, last = self.positions, self.row % len(self.positions), _last(self.held)
        last = np.where(last < 0, self.place, last)
        return distance_between(at[row, self.place], at[row, last], at.ndim - 2)

    def __len__(self) -> int:
        return len(self.row)

    def chunks(self) -> Iterator["Questions"]:
        """The same answers, some sequences at a time."""
        size = max(1, CHUNK // self.batch.tokens.shape[1])
        for start in range(0, len(self.batch), size):
            rows = slice(start, start + size)
            some = self.only((self.row >= start) & (self.row < start + size))
            positions = self.positions if len(self.positions) == 1 else self.positions[rows]
            yield replace(
                some, batch=self.batch.take(rows), positions=positions, row=some.row - start
            )

    def only(self, chosen: Bools | Ints) -> "Questions":
        """Some of the answers, of the same sequences."""
        return Questions(
            self.task, self.batch, self.positions, self.row[chosen], self.place[chosen],
            self.target[chosen], self.held[chosen], self.wrong[chosen], self.wrong_target[chosen],
        )  # fmt: skip


def find_questions(task: Task, split: str, batch: Batch, positions: Numbers) -> Questions | None:
    """All scored answers of the first sequences of a split; None: the task does not say which
    tokens hold them."""
    enough = round(ANSWERS / max(float(batch.scored.sum(1).mean()), 1))
    n = min(max(min(TOKENS // batch.tokens.shape[1], enough), FEWEST), MOST, len(batch))
    batch = batch.take(slice(0, n))
    row, place = np.nonzero(batch.scored)
    held = task.holds_answer(batch, row, place)
    if held is None:
        return None
    target = batch.targets[row, place]
    wrong, wrong_target = np.zeros_like(held), np.full(len(row), -1)
    # Another answer of the sequence, whose tokens the query sees; none of them holds its own.
    last = _last(held)
    rng = generator(0, "diagnosis", split)
    for answer in range(len(row)):
        others = np.flatnonzero(
            (row == row[answer]) & (target != target[answer]) & (last < place[answer])
        )
        others = others[~(held[others] & held[answer]).any(axis=1) & held[others].any(axis=1)]
        if len(others):
            other = others[rng.integers(len(others))]
            wrong[answer], wrong_target[answer] = held[other], target[other]
    return Questions(task, batch, positions[:n], row, place, target, held, wrong, wrong_target)


def distance_between(one: Numbers, other: Numbers, axes: int) -> Numbers:
    """How far positions differ, the largest of several ids.

    Args:
        axes: 1 if the last axis is of ids, else 0.
    """
    apart: Numbers = np.abs(one - other)
    return apart.max(-1) if axes else apart


def _last(held: Bools) -> Ints:
    """The last token of each row, (n,); -1: none."""
    found: Ints = np.where(held, np.arange(held.shape[1]), -1).max(axis=1, initial=-1)
    return found


MakeIntervention = Callable[[Questions], Intervention]
"""An intervention on some sequences."""


@torch.no_grad()
def predict(
    model: Model,
    questions: Questions,
    make: MakeIntervention = lambda part: Intervention(),
    read: Callable[[Questions], Reading] | None = None,
) -> Tensor:
    """The logits (n, V) of the answers under an intervention; a signal ends it at the next chunk
    of sequences."""
    found = []
    for part in questions.chunks():
        raise_interrupt()
        with apply_intervention(model, make(part), read and read(part)):
            hidden = model(torch.from_numpy(part.batch.tokens), torch.from_numpy(part.positions))
        found.append(model.unembed(hidden[part.row, part.place]).float())
    return torch.cat(found)


def mark_wrong(task: Task, logits: Tensor, targets: Ints) -> Bools:
    """Which answers are wrong, (n,), by their logits (n, V); an answer with a nan is."""
    right = task.correct(logits, torch.from_numpy(targets))
    return (~(right & ~logits.isnan().any(-1))).numpy()


def find_wrong(
    model: Model, questions: Questions, make: MakeIntervention = lambda part: Intervention()
) -> Bools:
    """Which answers are wrong under an intervention, (n,)."""
    return mark_wrong(questions.task, predict(model, questions, make), questions.target)
