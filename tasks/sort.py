"""Sorting."""

from dataclasses import dataclass

import numpy as np

from pe_lab.core.task import Bools, Ints
from pe_lab.tasks.copy import Copy


@dataclass(frozen=True, kw_only=True)
class Sort(Copy):  # type: ignore[misc]
    """Sort letters, in the order of the vocabulary.

    5 letters, n_symbols 16, without bos_eos, tokens over scored targets:

        b p o a c | a b c o
                  a b c o p

    As copy, with its keys, except for the order of the answer. With unique letters, each one of the
    answer is the smallest that is larger than the one before it, wherever it is. Scored: the sorted
    letters, which the model can also generate. Vocabulary: the letters (numbers, if more than 26),
    | (separator) and <pad>. Splits: long_x2 has from max_letters + 1 to twice as many letters,
    long_x3 from there to three times. Metric: share of wrong letters.

    Source: Huang 2025 (arXiv 2410.02140), whose letters are unique numbers, with <bos> and <eos>.
    """

    def answer(self, letters: Ints, n_letters: Ints) -> Ints:
        there = np.arange(self.max_letters) < n_letters
        sorted_ = np.sort(np.where(there, letters, self.n_symbols), axis=1)
        return sorted_ * there

    def letters_held(self, letters: Ints, n_letters: Ints, nth: Ints) -> Bools:
        """All letters of that kind, where a kind occurs more than once."""
        there = np.arange(letters.shape[1]) < n_letters
        sorted_ = np.sort(np.where(there, letters, self.n_symbols), axis=1)
        answer = np.take_along_axis(sorted_, nth.clip(max=letters.shape[1] - 1)[:, None], axis=1)
        return letters == answer
