"""Retrieval of the letter beside another one."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, PositiveInt

from pe_lab.core.task import Batch, Bools, Ints, Task
from pe_lab.tasks.letters import MOST_SYMBOLS, symbols

ASKED = 2  # tokens of a question, without the answer


@dataclass(frozen=True, kw_only=True)
class Induction(Task):
    """Find a letter in the text, and say the letter to the right of it or, mirrored, to the left.

    side right, occurrence unique, 6 letters, tokens over scored targets:

        c b a e b c | a
                      e

    side left, occurrence last, 7 letters:

        b c d b a d c | d
                        a

    The number of letters is uniform from min_letters to max_letters. A separator and a letter of
    the text follow. Scored: its neighbour on the side. An induction head answers side right; side
    left is its mirror.

    occurrence:

    - unique: the letter asked for is uniform, and so is its place among those with a neighbour. The
      other letters are uniform among the other symbols.
    - first, last: letters are uniform, and that of a uniform place is asked for. It occurs at least
      twice. The answer is the neighbour of its first or last occurrence. Texts where it has none
      are drawn again. last on the side right is flip-flop with more symbols.

    Vocabulary: the letters (numbers, if more than 26), | (separator) and <pad>. A shorter sequence
    is padded on the right. Errors are also broken down by the distance in tokens from the answer to
    the question. Splits: long_x2 has from max_letters + 1 to twice as many letters, long_x3 from
    there to three times. Metric: share of wrong letters.

    With the preset, one seed: on side right, alibi has no error up to three times the length, and
    rope 8 % at twice. On side left, path has none, learned with positions=offset 0.6 % at three
    times, and rope 31 % at twice.

    Source: UR, UL, NRFirst, NLFirst, NRLast and NLLast of Jobanputra 2025 (arXiv 2505.21785). From
    scratch it has 5 symbols, 4 to 49 letters in training, up to 149 in tests, <bos> and <eos>. It
    shows that transformers can generalise in length on unique and first, on either side, and not on
    last. Its tasks of copying are here task=copy, with letters unique or free, and task=reverse.
    """

    min_letters: PositiveInt
    max_letters: PositiveInt
    n_symbols: Annotated[int, Field(ge=2, le=MOST_SYMBOLS)]
    side: Literal["right", "left"]
    occurrence: Literal["unique", "first", "last"]

    generates: ClassVar[bool] = True
    separator: ClassVar[str | None] = "|"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_above("min_letters", "max_letters")
        if self.min_letters < self._fewest:
            raise ValueError(
                f"task.min_letters is {self.min_letters}, too few for task.side={self.side} "
                f"task.occurrence={self.occurrence}; give at least {self._fewest}"
            )

    @property
    def _fewest(self) -> int:
        """The fewest letters in which one occurs often enough and has its neighbour."""
        beside = (self.side, self.occurrence) in (("right", "last"), ("left", "first"))
        return 3 if beside else 2

    @property
    def vocab(self) -> tuple[str, ...]:
        return (*symbols(self.n_symbols), "|", "<pad>")

    @property
    def n_tokens(self) -> int:
        return self.max_letters + ASKED

    def at_length(self, length: int) -> Self:
        """With min_letters and max_letters in the same proportion."""
        if length < self._fewest + ASKED:
            raise ValueError(
                f"a length of {length} is too short for letters and a question: give at least "
                f"{self._fewest + ASKED}"
            )
        most = length - ASKED
        fewest = max(self._fewest, self.min_letters * most // self.max_letters)
        return replace(self, min_letters=fewest, max_letters=most, splits={})

    def sample(self, rng: np.random.Generator, n: int) -> Batch:
        n_letters = rng.integers(self.min_letters, self.max_letters + 1, n)
        draw = self._unique if self.occurrence == "unique" else self._repeated
        letters, found = draw(rng, n_letters)
        row, place = np.arange(n), np.arange(self.n_tokens + 1)
        beside = found + (1 if self.side == "right" else -1)
        sequences = np.full((n, self.n_tokens + 1), self.n_symbols + 1)
        inside = place < n_letters[:, None]
        sequences[inside] = letters[inside[:, : self.max_letters]]
        sequences[row, n_letters] = self.n_symbols
        sequences[row, n_letters + 1] = letters[row, found]
        tokens = sequences[:, :-1].copy()  # no answer is read
        sequences[row, n_letters + 2] = letters[row, beside]
        scored = place[:-1] == n_letters[:, None] + 1
        return Batch(
            tokens,
            sequences[:, 1:],
            scored,
            None if self.min_letters == self.max_letters else n_letters + ASKED,
            {"distance": (n_letters + 1 - beside)[:, None] * scored},
        )

    def holds_answer(self, batch: Batch, row: Ints, place: Ints) -> Bools:
        """The neighbour."""
        distance = batch.tags["distance"][row, place]
        return np.arange(batch.tokens.shape[1]) == (place - distance)[:, None]

    def _unique(self, rng: np.random.Generator, n_letters: Ints) -> tuple[Ints, Ints]:
        """Letters (n, max_letters), meaningless beyond their number, and the place of the one asked
        for."""
        n = len(n_letters)
        asked = rng.integers(0, self.n_symbols, n)
        letters = rng.integers(0, self.n_symbols - 1, (n, self.max_letters))
        letters += letters >= asked[:, None]
        found = rng.integers(0, n_letters - 1) + (self.side == "left")
        letters[np.arange(n), found] = asked
        return letters, found

    def _repeated(self, rng: np.random.Generator, n_letters: Ints) -> tuple[Ints, Ints]:
        """As ``_unique``; the letter asked for occurs at least twice."""
        n = len(n_letters)
        letters, found = np.empty((n, self.max_letters), dtype=np.int64), np.empty(n, np.int64)
        again = np.arange(n)
        while len(again):
            # The fewer rows are left, the more draws of each.
            draws = n // len(again)
            new, place, fits = self._draw(rng, n_letters[again].repeat(draws))
            fits = fits.reshape(-1, draws)
            first = np.arange(len(again)) * draws + fits.argmax(axis=1)
            done = fits.any(axis=1)
            letters[again[done]], found[again[done]] = new[first[done]], place[first[done]]
            again = again[~done]
        return letters, found

    def _draw(self, rng: np.random.Generator, n_letters: Ints) -> tuple[Ints, Ints, Bools]:
        """Letters, the place of the occurrence asked for, and whether they can be asked for."""
        row, place = np.arange(len(n_letters)), np.arange(self.max_letters)
        letters = rng.integers(0, self.n_symbols, (len(row), self.max_letters))
        asked = letters[row, rng.integers(0, n_letters)]
        there = (letters == asked[:, None]) & (place < n_letters[:, None])
        if self.occurrence == "first":
            found = there.argmax(axis=1)
        else:
            found = self.max_letters - 1 - there[:, ::-1].argmax(axis=1)
        beside = found < n_letters - 1 if self.side == "right" else found > 0
        return letters, found, (there.sum(axis=1) > 1) & beside
