"""Reversing."""

from dataclasses import dataclass

import numpy as np

from pe_lab.core.task import Bools, Ints
from pe_lab.tasks.copy import Copy


@dataclass(frozen=True, kw_only=True)
class Reverse(Copy):  # type: ignore[misc]
    """Copy letters in reverse order.

    5 letters, n_symbols 16, tokens over scored targets:

        b p o b c | c b o p
                  c b o p b

    As copy, with its keys, except for the order of the answer: each letter is two tokens farther
    back than the one before it. Vocabulary: the letters, | (separator) and <pad>. Splits: long_x2
    and long_x4 have exactly twice and four times max_letters. Metric: share of wrong letters.

    Source: Reverse String of Deletang 2023 (arXiv 2207.02098) and Ruoss 2023 (arXiv 2305.16843).
    """

    def answer(self, letters: Ints, n_letters: Ints) -> Ints:
        source = n_letters - 1 - np.arange(self.max_letters)
        return np.take_along_axis(letters, source.clip(0), axis=1)

    def letters_held(self, letters: Ints, n_letters: Ints, nth: Ints) -> Bools:
        return np.arange(letters.shape[1]) == n_letters - 1 - nth[:, None]
