"""Where positions come from: an axis of its own (config group ``positions``), no encoding."""

from abc import ABC, abstractmethod

import numpy as np
from pydantic import PositiveInt

from pe_lab.task import Ints


class Positions(ABC):
    """Gives every token of a batch its integer position, increasing from left to right."""

    @abstractmethod
    def sample(self, rng: np.random.Generator, n: int, length: int, *, training: bool) -> Ints:
        """(1, length) where all n sequences share them, else (n, length)."""

    @abstractmethod
    def limit(self, length: int, *, training: bool) -> int:
        """One more than the largest position that ``length`` tokens can get.

        Raises ValueError where ``length`` tokens do not fit.
        """


class Sequential(Positions):
    """0, 1, .. T-1."""

    def sample(self, rng: np.random.Generator, n: int, length: int, *, training: bool) -> Ints:
        return np.arange(length)[None, :]

    def limit(self, length: int, *, training: bool) -> int:
        return length


class Randomized(Positions):
    """A sorted random subset of 0 .. max-1 for each sequence.

    Source: Ruoss 2023 (2305.16843). By default in training only; ``evaluation: true`` draws
    them there too, from a fixed stream, as the paper's own code does.
    """

    def __init__(self, max: PositiveInt, evaluation: bool) -> None:
        self.max, self.evaluation = max, evaluation

    def _random(self, training: bool) -> bool:
        return training or self.evaluation

    def sample(self, rng: np.random.Generator, n: int, length: int, *, training: bool) -> Ints:
        if not self._random(training):
            return np.arange(length)[None, :]
        self.limit(length, training=training)
        chosen = rng.random((n, self.max)).argpartition(length - 1, axis=1)[:, :length]
        return np.sort(chosen, axis=1)

    def limit(self, length: int, *, training: bool) -> int:
        if not self._random(training):
            return length
        if length > self.max:
            raise ValueError(
                f"{length} tokens cannot have {self.max} different positions: "
                f"set positions.max to {length} or more"
            )
        return self.max
