"""Where positions come from: a config group (``positions``) that is independent of the encoding."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from typing import Annotated, Any, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveInt

from pe_lab.core.task import TRAIN, Batch, Ints, Task

Numbers = Ints | npt.NDArray[np.float32]
"""Positions, which are of floats where a source is not ``whole``."""

LEAST_SCALE, MOST_SCALE = 1e-3, 10**6
"""From 2^24 on, float32 has whole numbers only. Far below 1, all positions are nearly the same."""


class Positions(ABC):
    """Gives every token of a batch its position, or several, one for each axis."""

    increasing: bool = True
    """Whether positions increase from left to right; ids that a task gives may fall and repeat."""
    whole: bool = True
    """Whether positions are whole numbers."""
    axes: tuple[str, ...] = ()
    """The axes of ids with several for each token, as (.., axes); empty: one position each."""
    of_tokens: Callable[[Ints], Ints] | None = None
    """Where positions follow from the tokens, (N, T): those of evaluation, (N, T) or (N, T, axes).
    A model that generates gets those of the tokens that it has generated."""
    is_random: bool = True
    """Whether those of training are drawn. If not, any generator may be passed to ``of_batch``."""

    def bind(self, task: Task) -> Self:
        """The source of positions for the sequences of a task.

        Raises:
            ValueError: the task does not give what this source reads.
        """
        return self

    def null_values(self) -> dict[str, Any]:
        """The values that stand for keys of its yaml that are null, as in an encoding."""
        return {}

    @abstractmethod
    def of_batch(self, rng: np.random.Generator, batch: Batch, *, training: bool) -> Numbers:
        """The positions of a batch: (1, T) if all N sequences share them, else (N, T); with several
        ids of a token (.., axes)."""

    @abstractmethod
    def limit(self, length: int, *, training: bool) -> int:
        """One more than the largest position that any ``length`` tokens can get.

        Raises ValueError where ``length`` tokens do not fit, or have no positions without a task.
        """

    def limit_for(self, task: Task, *, training: bool) -> int:
        """``limit`` for the sequences of a task."""
        return self.limit(task.n_tokens, training=training)


class ByLength(Positions):
    """Positions that depend on the number of tokens alone, increasing from left to right."""

    @abstractmethod
    def sample(self, rng: np.random.Generator, n: int, length: int, *, training: bool) -> Numbers:
        """The positions of n sequences: (1, length) if all share them, else (n, length)."""

    def of_batch(self, rng: np.random.Generator, batch: Batch, *, training: bool) -> Numbers:
        return self.sample(rng, *batch.tokens.shape, training=training)


class Sequential(ByLength):
    """0, 1, .. T-1."""

    is_random = False

    def sample(self, rng: np.random.Generator, n: int, length: int, *, training: bool) -> Ints:
        return np.arange(length)[None, :]

    def limit(self, length: int, *, training: bool) -> int:
        return length


class RandomIntegers(ByLength):
    """Random positions among 0 .. max-1, in training only unless ``evaluation`` is true.

    In evaluation each sequence draws from a fixed stream.
    """

    def __init__(self, max: PositiveInt, evaluation: bool) -> None:
        self.max, self.evaluation = max, evaluation

    @abstractmethod
    def draw(self, rng: np.random.Generator, n: int, length: int) -> Ints:
        """(n, length) positions; ``length`` is at most ``max``."""

    def sample(self, rng: np.random.Generator, n: int, length: int, *, training: bool) -> Ints:
        if not (training or self.evaluation):
            return np.arange(length)[None, :]
        self.limit(length, training=training)
        return self.draw(rng, n, length)

    def limit(self, length: int, *, training: bool) -> int:
        if not (training or self.evaluation):
            return length
        if length > self.max:
            raise ValueError(
                f"{length} tokens cannot have {self.max} different positions: "
                f"set positions.max to {length} or more"
            )
        return self.max


class Randomized(RandomIntegers):
    """A sorted random subset of 0 .. max-1 for each sequence.

        positions = sort(sample(range(max), T))                                      (N, T)

    ``evaluation: true`` draws them in evaluation too, from a fixed stream, as the authors' code
    always does; ``false``: 0 .. T-1 there. Encodings of distances read the differences of these
    positions. For ALiBi, relative and Transformer-XL the authors' code draws sorted distances
    instead, once for all sequences of a batch.

    Source: Ruoss 2023 (2305.16843).
    """

    def draw(self, rng: np.random.Generator, n: int, length: int) -> Ints:
        chosen = rng.random((n, self.max)).argpartition(length - 1, axis=1)[:, :length]
        return np.sort(chosen, axis=1)


class Pose(RandomIntegers):
    """Two chunks of neighbouring positions with a random skip between them, for each sequence.

        0 .. first - 1,  first + skip .. T - 1 + skip                                (N, T)

    ``first`` is uniform in 1 .. ceil(T/2), ``skip`` in 0 .. max - T. In training only;
    ``evaluation: true`` draws them there too, from a fixed stream.

    Source: PoSE, Zhu 2023 (2309.10400), with 2 chunks, u_0 = 0 and v_i = 0, and lengths drawn as in
    its code.
    """

    def draw(self, rng: np.random.Generator, n: int, length: int) -> Ints:
        first = rng.integers(1, (length + 1) // 2, (n, 1), endpoint=True)
        skip = rng.integers(0, self.max - length, (n, 1), endpoint=True)
        plain = np.arange(length)[None, :]
        return plain + skip * (plain >= first)


class Offset(RandomIntegers):
    """0 .. T-1 from a random start on, for each sequence.

        start .. start + T - 1                                                       (N, T)

    ``start`` is uniform in 0 .. max - T. In training only; ``evaluation: true`` draws it there too,
    from a fixed stream.

    Source: SHAPE, Kiyono 2021 (2109.05644), whose K is max - T.
    """

    def draw(self, rng: np.random.Generator, n: int, length: int) -> Ints:
        start = rng.integers(0, self.max - length, (n, 1), endpoint=True)
        return np.arange(length)[None, :] + start


class RandomFloats(ByLength):
    """Sorted random numbers in training, evenly spaced ones of the same range in evaluation.

        training:     positions    = scale sort(u),   u uniform in [0, 1)            (N, T)
        evaluation:   positions[i] = scale (2i - 1) / (2 max(n, T)),   i = 1 .. T    (1, T)

    n is the trained length in tokens. So a longer sequence has closer positions, none beyond those
    of training. They depend on T: tokens that are still to be generated count.

    Source: Random Float Sampling, Shimizu 2026 (2602.14050), with ``scale: 1`` for sinusoidal, RoPE
    and ALiBi. ``scale`` is ours, as the paper's text on what [0, 1) means for each of them could
    not be read. ``scale: null`` is n: neighbours are 1 apart on average, as in 0, 1, .. .
    """

    whole = False
    most: float
    trained: int

    def __init__(
        self, scale: Annotated[float, Field(ge=LEAST_SCALE, le=MOST_SCALE)] | None
    ) -> None:
        self.scale = scale

    def bind(self, task: Task) -> Self:
        bound = copy(self)
        bound.trained = task.split(TRAIN).n_tokens
        bound.most = float(bound.trained) if self.scale is None else self.scale
        return bound

    def null_values(self) -> dict[str, Any]:
        return {"scale": self.most}

    def sample(self, rng: np.random.Generator, n: int, length: int, *, training: bool) -> Numbers:
        if training:
            shares = np.sort(rng.random((n, length)), axis=1)
        else:
            shares = (np.arange(length) + 0.5)[None] / max(self.trained, length)
        return (self.most * shares).astype(np.float32)

    def limit(self, length: int, *, training: bool) -> int:
        return math.ceil(self.most)
