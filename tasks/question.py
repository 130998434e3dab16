"""What the tasks have in common that read a text of some length and answer with one word."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from pydantic import PositiveInt

from pe_lab.core.task import Batch, Bools, Ints, Task


@dataclass(frozen=True, kw_only=True)
class Question(Task):
    """A text, then =, at which the answer is scored. A shorter text is padded on the right.

    Its length is uniform from min_length to max_length, among the lengths that the rule has:
    ``remainder`` modulo ``step``. A limit that is not one of them stands for the next below.
    """

    min_length: PositiveInt
    max_length: PositiveInt

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_above("min_length", "max_length")
        if self.min_length < self.least:
            raise ValueError(
                f"task.min_length is {self.min_length}, too short for this task: give at least "
                f"{self.least}"
            )

    @property
    def step(self) -> int:
        return 1

    @property
    def least(self) -> int:
        """The shortest text."""
        return 1

    @property
    @abstractmethod
    def words(self) -> tuple[str, ...]:
        """The vocabulary without = and <pad>, which follow."""

    @abstractmethod
    def texts(self, rng: np.random.Generator, lengths: Ints) -> tuple[Ints, Ints]:
        """(n, longest) texts, with any word behind their ends, and (n,) answers."""

    @property
    def vocab(self) -> tuple[str, ...]:
        return (*self.words, "=", "<pad>")

    @property
    def n_tokens(self) -> int:
        return self._limits[1] + 1

    @property
    def _limits(self) -> tuple[int, int]:
        """The shortest and the longest text that is drawn."""
        low, high = (x - (x - self.least) % self.step for x in (self.min_length, self.max_length))
        return low, high

    def at_length(self, length: int) -> Self:
        """With min_length and max_length in the same proportion."""
        if length < self.least + 1:
            raise ValueError(
                f"a length of {length} is too short for this task: give at least {self.least + 1}"
            )
        low, high = self._limits
        most = length - 1 - (length - 1 - self.least) % self.step
        fewest = max(self.least, low * most // high)
        return replace(self, min_length=fewest, max_length=most, splits={})

    def sample(self, rng: np.random.Generator, n: int) -> Batch:
        low, high = self._limits
        lengths = low + self.step * rng.integers(0, (high - low) // self.step + 1, n)
        text, answers = self.texts(rng, lengths)
        equals, padding = len(self.words), len(self.words) + 1
        sequences = np.full((n, high + 2), padding)
        inside = np.arange(text.shape[1]) < lengths[:, None]
        sequences[:, : text.shape[1]][inside] = text[inside]
        row = np.arange(n)
        sequences[row, lengths] = equals
        tokens = sequences[:, :-1].copy()  # no answer is read
        sequences[row, lengths + 1] = answers
        scored = np.zeros(tokens.shape, dtype=bool)
        scored[row, lengths] = True
        return Batch(tokens, sequences[:, 1:], scored, None if low == high else lengths + 1)

    def holds_answer(self, batch: Batch, row: Ints, place: Ints) -> Bools:
        """The whole text, where a task does not know better."""
        return np.arange(batch.tokens.shape[1]) < place[:, None]
