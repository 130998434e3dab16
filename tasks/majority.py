"""The commonest letter."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from pydantic import PositiveInt

from pe_lab.core.task import Bools, Ints
from pe_lab.tasks.letters import Letters


@dataclass(frozen=True, kw_only=True)
class Majority(Letters):  # type: ignore[misc]
    """The commonest of some letters, or of each of several interleaved sequences.

    8 letters, n_symbols 3, interleaved 2 (the sequences b b a b and c a c b), tokens over scored
    targets:

        b c b a a c b b | b
                        b c

    The number of letters is uniform from min_letters to max_letters. With two symbols, the number
    of the first is uniform, without a tie, and the order is random. With more, each letter is
    uniform, and letters without a single commonest one are drawn again. With interleaved k, k
    sequences of one length take turns, and the number of letters is rounded to a multiple of k. The
    answers come in their order. Scored: the answers.

    Vocabulary: the letters (numbers, if more than 26), | (separator) and <pad>. With bos_eos, <bos>
    is read first, and <eos> follows the answer and is scored with it. A shorter sequence is padded
    on the right. Splits: long_x2 has from max_letters + 1 to twice as many letters, long_x3 from
    there to three times. Metric: share of wrong answers.

    Source: binary majority, majority of 26 letters and interleaved majority of Huang 2025 (arXiv
    2410.02140).
    """

    interleaved: PositiveInt = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_symbols == 1:
            raise ValueError("task.n_symbols=1 leaves nothing to count: set it to 2 or more")
        k = self.interleaved
        if self.max_letters // k * k < max(k, self.min_letters):
            raise ValueError(
                f"no number from task.min_letters={self.min_letters} to task.max_letters="
                f"{self.max_letters} is a multiple of task.interleaved={k}; raise task.max_letters "
                f"to {-(-self.min_letters // k) * k} or more"
            )

    def at_length(self, length: int) -> Self:
        least = 2 * self.interleaved + 2 * self.bos_eos
        if length < least:
            raise ValueError(
                f"a length of {length} is too short for majority: give at least {least}"
            )
        return super().at_length(length)

    def answered(self, n_letters: int) -> int:
        return self.interleaved

    def draw(self, rng: np.random.Generator, n_letters: Ints) -> tuple[Ints, Ints]:
        k, n = self.interleaved, len(n_letters)
        # As the published code rounds, and into the range.
        each = np.rint(n_letters / k).astype(np.int64)
        each -= each * k > self.max_letters
        each += each * k < self.min_letters
        each = each.clip(1)
        # One row a sequence, k for each of the batch.
        letters = self._sequences(rng, each.repeat(k, axis=0))
        found = np.zeros((n, self.max_letters), dtype=np.int64)
        width = self.max_letters // k * k
        found[:, :width] = letters.reshape(n, k, -1).transpose(0, 2, 1).reshape(n, width)
        return found, each * k

    def answer(self, letters: Ints, n_letters: Ints) -> Ints:
        k, n = self.interleaved, len(letters)
        width = self.max_letters // k * k
        rows = letters[:, :width].reshape(n, -1, k).transpose(0, 2, 1).reshape(n * k, -1)
        there = np.arange(width // k) < (n_letters // k).repeat(k, axis=0)
        return self._counts(rows, there).argmax(axis=1).reshape(n, k)

    def letters_held(self, letters: Ints, n_letters: Ints, nth: Ints) -> Bools:
        """All letters of the sequence that is asked for."""
        k = self.interleaved
        return np.arange(letters.shape[1]) % k == nth[:, None] % k

    def answer_from(self, words: list[str]) -> str:
        return super().answer_from([max(words, key=words.count)])

    def _sequences(self, rng: np.random.Generator, each: Ints) -> Ints:
        """Letters with a single commonest one, (n, max_letters // interleaved)."""
        shape = (len(each), self.max_letters // self.interleaved)
        there = np.arange(shape[1]) < each
        if self.n_symbols == 2:
            # 0 .. each, without the half of an even number.
            firsts = rng.integers(0, each + each % 2)
            firsts += (each % 2 == 0) & (firsts >= each // 2)
            order = np.where(there, rng.random(shape), 1.0)
            ranked = np.concatenate([np.full((len(each), 1), -1.0), np.sort(order, axis=1)], axis=1)
            return (order > np.take_along_axis(ranked, firsts, axis=1)).astype(np.int64)
        letters = rng.integers(0, self.n_symbols, shape)
        again = np.flatnonzero(self._tied(letters, there))
        while len(again):
            # Two letters are a tie 25 times in 26: the fewer rows are left, the more draws of each.
            draws = max(1, shape[0] // len(again))
            found = rng.integers(0, self.n_symbols, (draws * len(again), shape[1]))
            single = ~self._tied(found, there[again].repeat(draws, axis=0)).reshape(-1, draws)
            first = np.arange(len(again)) * draws + single.argmax(axis=1)
            done = single.any(axis=1)
            letters[again[done]] = found[first[done]]
            again = again[~done]
        return letters

    def _tied(self, letters: Ints, there: Bools) -> Bools:
        counts = np.partition(self._counts(letters, there), self.n_symbols - 2, axis=1)
        return counts[:, -1] == counts[:, -2]

    def _counts(self, letters: Ints, there: Bools) -> Ints:
        """How often each symbol occurs, (n, n_symbols)."""
        # One more symbol, for what is not there.
        n, symbols = len(letters), self.n_symbols + 1
        cells = (
            np.where(there, letters, self.n_symbols) + np.arange(0, n * symbols, symbols)[:, None]
        )
        counts = np.bincount(cells.ravel(), minlength=n * symbols).reshape(n, symbols)
        return counts[:, : self.n_symbols]
