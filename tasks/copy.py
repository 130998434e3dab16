"""Copying."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from pe_lab.core.task import Bools, Ints, Probability
from pe_lab.tasks.letters import Letters


@dataclass(frozen=True, kw_only=True)
class Copy(Letters):  # type: ignore[misc]
    """Copy letters, in the same order.

    5 letters, n_symbols 16, tokens over scored targets:

        b p o b c | b p o b
                  b p o b c

    The number of letters is uniform from min_letters to max_letters. Scored: the copy, which the
    model can also generate. With bos_eos, <bos> is read first, and <eos> follows the answer and is
    scored with it. A shorter sequence is padded on the right.

    letters:

    - free: each is uniform over n_symbols.
    - unique: no letter twice.
    - imbalanced: the first symbol has probability p, the others share the rest.
    - repeat: each letter repeats the one before it with probability p, else it is one of the
      others.

    Vocabulary: the letters (numbers, if more than 26), | (separator) and <pad>. Splits: with
    letters free, long_x2 and long_x4 have exactly twice and four times max_letters. Of copy_unique
    and copy_repeat, long_x2 has from max_letters + 1 to twice as many, long_x3 from there to three
    times. Metric: share of wrong letters.

    Source: after Duplicate String of Deletang 2023 (arXiv 2207.02098) and Ruoss 2023 (arXiv
    2305.16843). There the answer to s is s s, of two symbols. Training has 1 to 40 letters, the
    test 41 to 500, and a special token takes the place of each answer. unique and repeat: Huang
    2025 (arXiv 2410.02140), whose repeat copy is free with two symbols.
    """

    letters: Literal["free", "unique", "imbalanced", "repeat"] = "free"
    p: Probability | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        with_p = self.letters in ("imbalanced", "repeat")
        if with_p and self.p is None:
            raise ValueError(
                f"task.p is null with task.letters={self.letters}; give it a number from 0 to 1"
            )
        if not with_p and self.p is not None:
            raise ValueError(
                f"task.p={self.p} has no effect with task.letters={self.letters}: set it to null, "
                "or task.letters to imbalanced or repeat"
            )
        if with_p and self.n_symbols == 1:
            raise ValueError(
                f"task.n_symbols=1 leaves nothing to draw with task.letters={self.letters}: "
                "set it to 2 or more"
            )
        if self.letters == "unique" and self.max_letters > self.n_symbols:
            raise ValueError(
                f"task.max_letters is {self.max_letters}, but task.n_symbols, {self.n_symbols}, "
                "has no more different letters for task.letters=unique; raise task.n_symbols to "
                f"{self.max_letters} or more"
            )

    def draw(self, rng: np.random.Generator, n_letters: Ints) -> tuple[Ints, Ints]:
        shape, symbols = (len(n_letters), self.max_letters), self.n_symbols
        if self.letters == "free":
            letters = rng.integers(0, symbols, shape)
        elif self.letters == "unique":
            letters = distinct(rng, symbols, shape)
        else:
            assert self.p is not None
            other = rng.integers(1, symbols, shape) * (rng.random(shape) >= self.p)
            letters = other
            if self.letters == "repeat":
                # How far each letter is from the one before it, modulo the number of symbols.
                other[:, 0] = rng.integers(0, symbols, shape[0])
                letters = other.cumsum(axis=1) % symbols
        return letters, n_letters

    def answer(self, letters: Ints, n_letters: Ints) -> Ints:
        return letters

    def letters_held(self, letters: Ints, n_letters: Ints, nth: Ints) -> Bools:
        return np.arange(letters.shape[1]) == nth[:, None]


def distinct(rng: np.random.Generator, symbols: int, shape: tuple[int, int]) -> Ints:
    """Rows of different numbers below ``symbols``, in random order."""
    rows, columns = shape
    return rng.permuted(np.tile(np.arange(symbols), (rows, 1)), axis=1)[:, :columns]
