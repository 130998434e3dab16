"""Position ids that follow from the tokens, or that the task gives with its sequences."""

from copy import copy
from typing import Annotated, Self

import numpy as np
from pydantic import Field, PositiveInt

from pe_lab.core.errors import UsageError
from pe_lab.core.task import Batch, Ints, Task
from pe_lab.pe.positions import Positions

MAX_SHIFT = 10**6


class Abacus(Positions):
    """The place of each digit in its number, 1 for the first, shifted in training.

        tokens   1 2 3 + 4 5 = 8 6 1
        ids      1 2 3 0 1 2 0 1 2 3

    A number is a run of digits, the one-letter words 0 .. 9 of the task's vocabulary. A token that
    is no digit has the id 0. In training all ids above 0 are shifted by one k, uniform in 0 ..
    k_max. It is drawn for each batch, as in the published code. In evaluation k is 0. Digits of
    equal weight have equal ids where numbers are reversed, as the paper's are.

    Source: McLeish 2024 (2405.17399), whose embedding is ``pe=learned`` and whose k_max is 99.
    """

    increasing = False
    digits: Ints

    def __init__(self, k_max: Annotated[int, Field(ge=0, le=MAX_SHIFT)]) -> None:
        self.k_max = k_max

    def bind(self, task: Task) -> Self:
        bound = copy(self)
        words = enumerate(task.vocab)
        bound.digits = np.array([n for n, word in words if word in tuple("0123456789")], np.int64)
        if not len(bound.digits):
            raise ValueError(
                "positions=abacus numbers the digits of numbers, and this task's vocabulary has "
                "no word 0 .. 9: choose a task with numbers, or other positions"
            )
        return bound

    def of_batch(self, rng: np.random.Generator, batch: Batch, *, training: bool) -> Ints:
        ids = self.of_tokens(batch.tokens)
        return shifted(ids, int(rng.integers(0, self.k_max, endpoint=True))) if training else ids

    def of_tokens(self, tokens: Ints) -> Ints:
        is_digit = np.isin(tokens, self.digits)
        place = np.arange(tokens.shape[1])
        before = np.maximum.accumulate(np.where(is_digit, -1, place), axis=1)
        return np.where(is_digit, place - before, 0)

    def limit(self, length: int, *, training: bool) -> int:
        return length + 1 + (self.k_max if training else 0)


class Coupled(Positions):
    """The position ids that the task gives: equal ids for tokens that belong together.

        training:     ids + shift where ids > 0,   shift uniform in 0 .. max - 1 - largest id
        evaluation:   ids

    0, a token without an id, stays 0. Each sequence has its own shift. A task with several axes
    gives a token an id on each, shifted apart.

    Source: position coupling, Cho 2024 (2405.20671), whose ids start at 1 and whose
    ``max_position`` is max - 1. ``task=addition`` has a key for the two versions of its ids
    (``units_id``).
    """

    increasing = False
    names: tuple[str, ...]

    def __init__(self, max: PositiveInt) -> None:
        self.max = max

    def bind(self, task: Task) -> Self:
        if not task.position_axes:
            raise ValueError(
                "positions=coupled reads position ids that the task gives, and this one gives "
                "none: choose a task that does, or other positions"
            )
        bound = copy(self)
        bound.names = tuple(task.position_axes)
        bound.axes = bound.names if len(bound.names) > 1 else ()
        return bound

    def of_batch(self, rng: np.random.Generator, batch: Batch, *, training: bool) -> Ints:
        if missing := [name for name in self.names if name not in batch.positions]:
            raise UsageError(
                f"positions=coupled: these sequences hold no position ids for {missing[0]}: let "
                "the task draw them, write the file with pe-lab show, or choose other positions"
            )
        columns = [batch.positions[name] for name in self.names]
        if training:
            columns = [self._shifted(rng, ids) for ids in columns]
        return np.stack(columns, axis=-1) if self.axes else columns[0]

    def _shifted(self, rng: np.random.Generator, ids: Ints) -> Ints:
        room = np.maximum(self.max - 1 - ids.max(axis=1, keepdims=True), 0)
        return shifted(ids, rng.integers(0, room, endpoint=True))

    def limit(self, length: int, *, training: bool) -> int:
        raise ValueError("positions=coupled knows the ids of a task's sequences only")

    def limit_for(self, task: Task, *, training: bool) -> int:
        most = max(task.position_axes.values())
        if not training:
            return most
        if most > self.max:
            raise ValueError(
                f"the task's ids go up to {most - 1}, which is not below positions.max={self.max}: "
                f"set positions.max to {most} or more"
            )
        return self.max


class Rows(Positions):
    """Row and column of each token, where a separator begins a row.

        tokens   a b c | a b c
        row      0 0 0 1 1 1 1
        column   0 1 2 0 1 2 3

    The separator has column 0, and tokens before the first one are in row 0. ``separator`` is a
    word of the task's vocabulary; null: the one that ends its input part. The two ids of a token
    are the same in training and evaluation.

    Source: Wen 2026 (2607.16072), for ``rope_2d``.
    """

    increasing = False
    is_random = False
    axes = ("row", "column")
    token: int

    def __init__(self, separator: str | None) -> None:
        self.separator = separator

    def bind(self, task: Task) -> Self:
        word = task.separator if self.separator is None else self.separator
        if word is None or word not in task.vocab:
            what = "this task has no separator" if word is None else f"{word} is not in it"
            raise ValueError(
                f"positions=rows needs a word that begins a row, and {what}: set "
                f"positions.separator to a word of the vocabulary ({' '.join(task.vocab[:40])})"
            )
        bound = copy(self)
        bound.token = task.vocab.index(word)
        return bound

    def of_batch(self, rng: np.random.Generator, batch: Batch, *, training: bool) -> Ints:
        return self.of_tokens(batch.tokens)

    def of_tokens(self, tokens: Ints) -> Ints:
        begins, place = tokens == self.token, np.arange(tokens.shape[1])
        first = np.maximum.accumulate(np.where(begins, place, 0), axis=1)
        return np.stack([begins.cumsum(1), place - first], axis=-1)

    def limit(self, length: int, *, training: bool) -> int:
        return length + 1


def shifted(ids: Ints, by: Ints | int) -> Ints:
    """The ids above 0 shifted; a token without an id keeps its 0."""
    return np.where(ids > 0, ids + by, 0)
