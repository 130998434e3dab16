"""Selective copying."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Self

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt

from pe_lab.core.task import Batch, Bools, Ints, Task

SYMBOLS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, kw_only=True)
class SelectiveCopy(Task):
    """Copy the letters in order, without the blanks scattered among them.

    n_copy 4, n_blank 4, n_symbols 16, tokens over scored targets:

        _ _ b _ p o b _ | b p o
                        b p o b

    n_copy letters, uniform over n_symbols, are in order at uniform positions among n_copy +
    n_blank; the other positions are blank. A separator and the letters without the blanks follow.
    Scored: the copy, which the model can also generate. Vocabulary: the letters, _ (blank) and |
    (separator). Splits: dense halves the blanks, sparse doubles them, long_x2 doubles letters and
    blanks. Metric: share of wrong letters.

    Source: Golovneva 2024 (arXiv 2405.18719), section 5.2.
    """

    n_copy: PositiveInt
    n_blank: NonNegativeInt
    n_symbols: Annotated[int, Field(ge=1, le=len(SYMBOLS))]

    generates: ClassVar[bool] = True
    separator: ClassVar[str | None] = "|"

    @property
    def vocab(self) -> tuple[str, ...]:
        return (*SYMBOLS[: self.n_symbols], "_", "|")

    @property
    def n_tokens(self) -> int:
        return 2 * self.n_copy + self.n_blank

    def at_length(self, length: int) -> Self:
        """With letters and blanks in the same proportion."""
        if length < 2:
            raise ValueError(f"a length of {length} is too short for copying: give at least 2")
        n_copy = max(1, length * self.n_copy // self.n_tokens)
        n_blank = length - 2 * n_copy if self.n_blank else 0
        return replace(self, n_copy=n_copy, n_blank=n_blank, splits={})

    def sample(self, rng: np.random.Generator, n: int) -> Batch:
        blank, separator = self.n_symbols, self.n_symbols + 1
        letters = rng.integers(0, self.n_symbols, (n, self.n_copy))
        is_letter = np.zeros((n, self.n_copy + self.n_blank), dtype=bool)
        is_letter[:, : self.n_copy] = True
        rng.permuted(is_letter, axis=1, out=is_letter)
        text = np.full(is_letter.shape, blank)
        text[is_letter] = letters.ravel()  # row by row, left to right: the order is kept
        sequences = np.concatenate([text, np.full((n, 1), separator), letters], axis=1)
        scored = np.zeros((n, self.n_tokens), dtype=bool)
        scored[:, -self.n_copy :] = True
        return Batch(sequences[:, :-1], sequences[:, 1:], scored)

    def holds_answer(self, batch: Batch, row: Ints, place: Ints) -> Bools:
        """The letter that is copied."""
        text = batch.tokens[row, : self.n_copy + self.n_blank]
        letter = text != self.n_symbols
        nth = place - text.shape[1] + 1
        held = np.zeros((len(row), batch.tokens.shape[1]), dtype=bool)
        held[:, : text.shape[1]] = letter & (letter.cumsum(axis=1) == nth[:, None])
        return held
