"""The missing letter of a string written twice."""

from dataclasses import dataclass

import numpy as np

from pe_lab.core.task import Batch, Bools, Ints
from pe_lab.tasks.question import Question


@dataclass(frozen=True, kw_only=True)
class MissingDuplicate(Question):  # type: ignore[misc]
    """The letter that is missing in a string written twice.

    length 8, tokens over scored targets:

        a b b a a _ b a =
                        b

    A string of uniform letters a and b is followed by itself, and a uniform letter of the two is
    replaced by _. The length of both together is uniform over the even numbers from min_length to
    max_length; an odd limit counts as the even one below. Vocabulary: a b _ = <pad>. A shorter
    sequence is padded on the right. Splits: long_x2 and long_x4 have exactly twice and four times
    max_length. Errors are also broken down by the number of tokens read. Metric: share of wrong
    letters.

    Small transformers learn it slowly, and faster with loss_on all, which trains on the second half
    too. Two layers of width 64 with rope, one seed and lr 3e-3 have an in-domain error of 7.2 %
    after 3,000 steps at max_length 12. At 16 it is 10.8 % after 2,000 steps. With loss_on scored it
    is 26.4 % after 4,000 steps. Longer strings are guessed.

    Source: Deletang 2023 (arXiv 2207.02098), where an odd length is padded.
    """

    @property
    def step(self) -> int:
        return 2

    @property
    def least(self) -> int:
        return 2

    @property
    def words(self) -> tuple[str, ...]:
        return ("a", "b", "_")

    def texts(self, rng: np.random.Generator, lengths: Ints) -> tuple[Ints, Ints]:
        n, longest = len(lengths), int(lengths.max())
        letters = rng.integers(0, 2, (n, longest))
        place = np.arange(longest)
        half = lengths[:, None] // 2
        text = np.take_along_axis(letters, np.where(place < half, place, place - half), axis=1)
        row, missing = np.arange(n), rng.integers(0, lengths)
        answers = text[row, missing]
        text[row, missing] = 2
        return text, answers

    def holds_answer(self, batch: Batch, row: Ints, place: Ints) -> Bools:
        """The same letter in the other half."""
        half = place // 2
        missing = (batch.tokens[row] == 2).argmax(axis=1)
        found = np.where(missing < half, missing + half, missing - half)
        return np.arange(batch.tokens.shape[1]) == found[:, None]
