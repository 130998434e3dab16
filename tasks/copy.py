"""Copying."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Self

import numpy as np
from pydantic import Field, PositiveInt

from pe_lab.common.task import Batch, Ints, Task

SYMBOLS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, kw_only=True)
class Copy(Task):
    """Copy letters, in the same order.

    The number of letters is uniform from min_letters to max_letters in every sequence, each of
    them uniform over n_symbols. The same letters follow a separator. Scored: the copy, which
    the model can also generate. (After Duplicate String of Deletang 2023, arXiv
    2207.02098, and Ruoss 2023, arXiv 2305.16843: there the answer to s is s s, of two symbols, with
    1 to 40 letters in training and 41 to 500 in the test, and the model reads a special token in
    the place of each answer.)

    Vocabulary: the letters, | (separator) and <pad>. 5 letters, n_symbols 16, tokens over
    scored targets:

        b p o b c | b p o b
                  b p o b c

    A sequence shorter than max_letters allows is padded on the right.

    Splits: long_x2 and long_x4 have exactly twice and four times max_letters. Metric: share of
    wrong letters.
    """

    min_letters: PositiveInt
    max_letters: PositiveInt
    n_symbols: Annotated[int, Field(ge=1, le=len(SYMBOLS))]

    generates: ClassVar[bool] = True
    separator: ClassVar[str | None] = "|"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_letters > self.max_letters:
            raise ValueError(
                f"task.min_letters is {self.min_letters}, more than task.max_letters, "
                f"{self.max_letters}; lower the one or raise the other"
            )

    @property
    def vocab(self) -> tuple[str, ...]:
        return (*SYMBOLS[: self.n_symbols], "|", "<pad>")

    @property
    def n_tokens(self) -> int:
        return 2 * self.max_letters

    def at_length(self, length: int) -> Self:
        """With min_letters and max_letters in the same proportion."""
        if length < 2:
            raise ValueError(f"a length of {length} is too short for copying: give at least 2")
        most = length // 2
        fewest = max(1, self.min_letters * most // self.max_letters)
        return replace(self, min_letters=fewest, max_letters=most, splits={})

    def sample(self, rng: np.random.Generator, n: int) -> Batch:
        separator, padding = self.n_symbols, self.n_symbols + 1
        n_letters = rng.integers(self.min_letters, self.max_letters + 1, (n, 1))
        letters = rng.integers(0, self.n_symbols, (n, self.max_letters))
        place = np.arange(self.n_tokens + 1)
        # Meaningless where there is no letter, but a valid index.
        source = np.where(place < n_letters, place, self._source(place - n_letters - 1, n_letters))
        sequences = np.take_along_axis(letters, source.clip(0, self.max_letters - 1), axis=1)
        sequences[place == n_letters] = separator
        tokens, targets, index = sequences[:, :-1], sequences[:, 1:].copy(), place[:-1]
        beyond = index >= 2 * n_letters
        tokens[beyond] = targets[beyond] = padding
        lengths = None if self.min_letters == self.max_letters else 2 * n_letters[:, 0]
        return Batch(tokens, targets, (index >= n_letters) & ~beyond, lengths)

    def _source(self, nth: Ints, n_letters: Ints) -> Ints:
        """Which letter the nth of the answer is, both counted from 0."""
        return nth
