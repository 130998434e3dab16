"""Even pairs."""

from dataclasses import dataclass

import numpy as np

from pe_lab.core.task import Ints
from pe_lab.tasks.question import Question


@dataclass(frozen=True, kw_only=True)
class EvenPairs(Question):  # type: ignore[misc]
    """Whether the number of ab and ba in a string is even.

    6 letters, tokens over scored targets:

        a a b b a b =
                    odd

    The answer is even where the first and the last letter are the same. The length of the string is
    uniform from min_length to max_length, its letters a and b are uniform. Vocabulary: a b even odd
    = <pad>. A shorter sequence is padded on the right. Splits: long_x2 and long_x4 have exactly
    twice and four times max_length. Errors are also broken down by the number of tokens read.
    Metric: share of wrong answers.

    Source: Deletang 2023 (arXiv 2207.02098).
    """

    @property
    def words(self) -> tuple[str, ...]:
        return ("a", "b", "even", "odd")

    def texts(self, rng: np.random.Generator, lengths: Ints) -> tuple[Ints, Ints]:
        text = rng.integers(0, 2, (len(lengths), int(lengths.max())))
        last = text[np.arange(len(text)), lengths - 1]
        return text, 2 + (text[:, 0] != last)

    def answer_from(self, words: list[str]) -> str:
        return "even" if words[0] == words[-1] else "odd"
