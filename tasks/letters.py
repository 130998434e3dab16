"""Letters, a separator and their answer: the form of copy, reverse, sort and majority."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Self

import numpy as np
from pydantic import Field, PositiveInt

from pe_lab.core.task import Batch, Bools, Ints, Task

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
MOST_SYMBOLS = 10_000


def symbols(n: int) -> tuple[str, ...]:
    """n letters, or numbers if the alphabet has fewer."""
    return tuple(ALPHABET[:n] if n <= len(ALPHABET) else map(str, range(n)))


@dataclass(frozen=True, kw_only=True)
class Letters(Task):
    """Some letters, a separator, and letters that answer them.

    The number of letters is uniform from min_letters to max_letters. A subclass draws the letters
    and says the answer. With bos_eos, <bos> is read first, and <eos> follows the answer and is
    scored with it.
    """

    min_letters: PositiveInt
    max_letters: PositiveInt
    n_symbols: Annotated[int, Field(ge=1, le=MOST_SYMBOLS)]
    bos_eos: bool = False

    generates: ClassVar[bool] = True
    separator: ClassVar[str | None] = "|"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_above("min_letters", "max_letters")

    @property
    def vocab(self) -> tuple[str, ...]:
        ends = ("<bos>", "<eos>") if self.bos_eos else ()
        return (*symbols(self.n_symbols), "|", "<pad>", *ends)

    @property
    def others(self) -> int:
        """The tokens of a sequence beside the letters and their answer."""
        return 2 * self.bos_eos

    @property
    def n_tokens(self) -> int:
        return self.max_letters + self.answered(self.max_letters) + self.others

    def at_length(self, length: int) -> Self:
        """With min_letters and max_letters in the same proportion."""
        least = 1 + self.answered(1) + self.others
        if length < least:
            raise ValueError(
                f"a length of {length} is too short for letters and their answer: "
                f"give at least {least}"
            )
        # An answer is as long as the letters, or of a fixed length.
        one, two = (self.answered(n) for n in (1, 2))
        most = (length - self.others - (one if one == two else 0)) // (1 + two - one)
        fewest = max(1, self.min_letters * most // self.max_letters)
        return replace(self, min_letters=fewest, max_letters=most, splits={})

    @abstractmethod
    def draw(self, rng: np.random.Generator, n_letters: Ints) -> tuple[Ints, Ints]:
        """The letters (N, max_letters), meaningless beyond their number, and that number (N, 1).

        Args:
            n_letters: the number as drawn, which a rule may change.
        """

    @abstractmethod
    def answer(self, letters: Ints, n_letters: Ints) -> Ints:
        """The answers, (N, answered(max_letters)), meaningless beyond their number."""

    def answered(self, n_letters: int) -> int:
        """How many letters answer so many."""
        return n_letters

    def holds_answer(self, batch: Batch, row: Ints, place: Ints) -> Bools:
        """The letter that ``answer`` puts there; of <eos> the separator, which ends the letters."""
        tokens, index = batch.tokens[row], np.arange(batch.tokens.shape[1])
        separator = (tokens == self.n_symbols).argmax(axis=1)
        letters = tokens[:, self.bos_eos : self.bos_eos + self.max_letters]
        n_letters = (separator - self.bos_eos)[:, None]
        nth = place - separator
        held = np.zeros(tokens.shape, dtype=bool)
        chosen = self.letters_held(letters, n_letters, nth)
        held[:, self.bos_eos : self.bos_eos + letters.shape[1]] = chosen
        held &= (index < separator[:, None]) & (index >= self.bos_eos)
        ends = batch.targets[row, place] == len(self.vocab) - 1
        if self.bos_eos:
            held[ends] = index == separator[ends, None]
        return held

    def answer_from(self, words: list[str]) -> str | None:
        return "<eos>" if words == ["|"] else super().answer_from(words)

    @abstractmethod
    def letters_held(self, letters: Ints, n_letters: Ints, nth: Ints) -> Bools:
        """Which letters hold the ``nth`` letter of each answer, (N, letters)."""

    def sample(self, rng: np.random.Generator, n: int) -> Batch:
        n_letters = rng.integers(self.min_letters, self.max_letters + 1, (n, 1))
        letters, n_letters = self.draw(rng, n_letters)
        both = np.concatenate([letters, self.answer(letters, n_letters)], axis=1)
        varies = self.answered(1) != self.answered(2)
        separator = n_letters + self.bos_eos
        end = separator + (n_letters if varies else self.answered(1)) + self.bos_eos
        place = np.arange(self.n_tokens + 1)
        # Meaningless where there is no letter, but a valid index.
        source = np.where(
            place < separator, place - self.bos_eos, place - separator - 1 + self.max_letters
        )
        sequences = np.take_along_axis(both, source.clip(0, both.shape[1] - 1), axis=1)
        sequences[place == separator] = self.n_symbols
        if self.bos_eos:
            sequences[:, 0] = self.n_symbols + 2
            sequences[place == end] = self.n_symbols + 3
        tokens, targets, index = sequences[:, :-1], sequences[:, 1:].copy(), place[:-1]
        beyond = index >= end
        tokens[beyond] = targets[beyond] = self.n_symbols + 1
        lengths = None if self.min_letters == self.max_letters else end[:, 0]
        return Batch(tokens, targets, (index >= separator) & ~beyond, lengths)
