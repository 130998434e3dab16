"""Indirect indexing."""

from dataclasses import dataclass, replace
from string import ascii_letters
from typing import Annotated, ClassVar, Self

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt

from pe_lab.core.task import Batch, Bools, Ints, Task
from pe_lab.tasks.copy import distinct
from pe_lab.tasks.letters import MOST_SYMBOLS

SIGNS = (",", "+", "-")
AROUND = 6  # tokens of a question but for its digits, the answer included


@dataclass(frozen=True, kw_only=True)
class Indirect(Task):
    """Find a letter, go some places from there, and say the letter at that place.

    10 letters, max_shift 4, tokens over scored targets:

        N Z T U I G W k X F , N , + 4 ,
                                      I

    The letters are different; their number is uniform from min_letters to max_letters. One of them
    and a shift follow. The shift is uniform from -max_shift to max_shift among those of min_shift
    places or more. The letter is uniform among those from which the shift stays inside. Scored: the
    letter at the shifted place. What to find (a letter) and where to go from it (a distance) are
    separate questions.

    Vocabulary: the letters (x0, x1, .. if more than 52), comma, signs, digits and <pad>. A shorter
    sequence is padded on the right. Errors are also broken down by the shift's size and by the
    distance in tokens from the comma to the letter asked for. Splits: long_x2 has from max_letters
    + 1 to twice as many letters, long_x3 from there to three times, with the same shifts. Metric:
    share of wrong letters.

    Source: indirect indexing of Gopalakrishnan 2025 (arXiv 2509.10534), with 20 to 40 letters and
    shifts to 15; digits and signs are tokens.
    """

    min_letters: PositiveInt
    max_letters: PositiveInt
    n_symbols: Annotated[int, Field(ge=1, le=MOST_SYMBOLS)]
    min_shift: NonNegativeInt
    max_shift: NonNegativeInt

    generates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for low, high in (("min_letters", "max_letters"), ("min_shift", "max_shift")):
            self.refuse_above(low, high)
        if self.max_letters > self.n_symbols:
            raise ValueError(
                f"task.max_letters is {self.max_letters}, but task.n_symbols, {self.n_symbols}, "
                f"has no more different letters; raise task.n_symbols to {self.max_letters} or more"
            )
        if self.max_shift >= self.min_letters:
            raise ValueError(
                f"task.max_shift={self.max_shift} goes beyond task.min_letters={self.min_letters} "
                f"letters: lower it to {self.min_letters - 1} or less, or raise task.min_letters "
                f"to {self.max_shift + 1} or more"
            )

    @property
    def vocab(self) -> tuple[str, ...]:
        few = self.n_symbols <= len(ascii_letters)
        named = ascii_letters[: self.n_symbols]
        symbols = named if few else (f"x{i}" for i in range(self.n_symbols))
        return (*symbols, *SIGNS, *"0123456789", "<pad>")

    @property
    def n_tokens(self) -> int:
        return self.max_letters + AROUND - 1 + self._digits

    @property
    def _digits(self) -> int:
        return len(str(self.max_shift))

    def at_length(self, length: int) -> Self:
        """With min_letters and max_letters in the same proportion, and the same shifts."""
        around = AROUND - 1 + self._digits
        if length < around + self.max_shift + 1:
            raise ValueError(
                f"a length of {length} is too short for shifts to {self.max_shift}: give at least "
                f"{around + self.max_shift + 1}"
            )
        most = length - around
        fewest = max(self.max_shift + 1, self.min_letters * most // self.max_letters)
        return replace(self, min_letters=fewest, max_letters=most, splits={})

    def sample(self, rng: np.random.Generator, n: int) -> Batch:
        comma, padding, digits = self.n_symbols, len(self.vocab) - 1, self._digits
        zero = self.n_symbols + len(SIGNS)
        n_letters = rng.integers(self.min_letters, self.max_letters + 1, n)
        letters = distinct(rng, self.n_symbols, (n, self.max_letters))
        # The shifts in order, from the most negative on; 0 is one, not two.
        sizes = np.arange(self.min_shift, self.max_shift + 1)
        shift = rng.choice(np.concatenate([-sizes[sizes > 0][::-1], sizes]), n)
        size = abs(shift)
        source = rng.integers(0, n_letters - size) + np.where(shift < 0, size, 0)
        row = np.arange(n)
        answer = letters[row, source + shift]
        n_digits = 1 + (size[:, None] >= 10 ** np.arange(1, digits + 1)).sum(axis=1)
        power = (n_digits[:, None] - 1 - np.arange(digits)).clip(0)
        question = np.full((n, AROUND + digits), padding)
        question[:, [0, 2]] = comma
        question[:, 1] = letters[row, source]
        question[:, 3] = comma + np.where(shift < 0, 2, 1)
        question[:, 4 : 4 + digits] = zero + size[:, None] // 10**power % 10
        question[row, 4 + n_digits] = comma
        question[np.arange(AROUND + digits) > 4 + n_digits[:, None]] = padding
        sequences = np.full((n, self.n_tokens + 1), padding)
        place = np.arange(self.max_letters)
        inside = place < n_letters[:, None]
        sequences[:, : self.max_letters][inside] = letters[inside]
        columns = n_letters[:, None] + np.arange(AROUND + digits)
        np.put_along_axis(sequences, columns, question, axis=1)
        tokens = sequences[:, :-1].copy()  # no answer is read
        asked = n_letters + 4 + n_digits
        sequences[row, asked + 1] = answer
        scored = np.arange(self.n_tokens) == asked[:, None]
        tags = {"shift": size, "distance": asked - source - shift}
        same = self.min_letters == self.max_letters and len(str(self.min_shift)) == digits
        return Batch(
            tokens,
            sequences[:, 1:],
            scored,
            None if same else asked + 1,
            {name: _at(tag, scored) for name, tag in tags.items()},
        )

    def holds_answer(self, batch: Batch, row: Ints, place: Ints) -> Bools:
        """The letter at the shifted place."""
        distance = batch.tags["distance"][row, place]
        return np.arange(batch.tokens.shape[1]) == (place - distance)[:, None]


def _at(tag: Ints, scored: Ints) -> Ints:
    return tag[:, None] * scored
