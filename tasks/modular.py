"""Modular arithmetic."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from pe_lab.core.task import Ints
from pe_lab.tasks.question import Question

OPERATORS = "+-*"
PLUS, MINUS, TIMES = range(3)


@dataclass(frozen=True, kw_only=True)
class Modular(Question):  # type: ignore[misc]
    """The value of an arithmetic expression modulo m.

    brackets false, m 5, length 7, tokens over scored targets:

        2 - 3 - 3 * 2 =
                      3

    brackets true, m 5, length 12:

        ( ( 4 ) * ( - 2 - 0 ) ) =
                                2

    Digits are uniform from 0 to m - 1, operators uniform over ``operators``. The length of an
    expression, in tokens, is uniform from min_length to max_length. Without brackets digits and
    operators alternate, * before + and -. Lengths are odd: an even limit counts as the odd one
    below. With brackets an expression of at least 5 tokens is (left operator right), the length of
    left uniform. Shorter ones are d, -d, (d) and (-d), with the minus whatever the operators.

    Vocabulary: the digits, + - * ( ) = and <pad>. A shorter sequence is padded on the right.
    Splits: long_x2 and long_x4 have exactly twice and four times max_length. Errors are also broken
    down by the number of tokens read. Metric: share of wrong values. A scaled accuracy elsewhere is
    (1 - error - 1/m) / (1 - 1/m) here.

    Small transformers do not learn the default size in minutes. Two layers of width 64 with rope, m
    3, operators +-, one seed and lr 3e-3 learn max_length 5 in 2,000 steps (0.6 % wrong in domain).
    They do not learn max_length 7 in 3,000 (19.8 %, guessing 64.6 %). Longer expressions are
    guessed.

    Source: two tasks of Deletang 2023 (arXiv 2207.02098), as in Grazzi 2025 (arXiv 2411.12537),
    table 5.
    """

    m: Annotated[int, Field(ge=2, le=1000)]
    operators: str
    brackets: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.operators or set(self.operators) - set(OPERATORS):
            raise ValueError(
                f"task.operators={self.operators} is not some of {OPERATORS}: give {OPERATORS}, "
                "or +-"
            )
        if len(set(self.operators)) < len(self.operators):
            raise ValueError(
                f"task.operators={self.operators} has an operator twice: give each once"
            )

    @property
    def step(self) -> int:
        return 1 if self.brackets else 2

    @property
    def words(self) -> tuple[str, ...]:
        return (*(str(digit) for digit in range(self.m)), *OPERATORS, "(", ")")

    def texts(self, rng: np.random.Generator, lengths: Ints) -> tuple[Ints, Ints]:
        return (self._nested if self.brackets else self._flat)(rng, lengths)

    def answer_from(self, words: list[str]) -> str:
        # Numbers, operators and brackets are all that the vocabulary has; with blanks * * is no **.
        return str(eval(" ".join(words), {}) % self.m)

    def _operators(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Ints:
        allowed = np.array([OPERATORS.index(operator) for operator in self.operators])
        return allowed[rng.integers(0, len(allowed), shape)]

    def _flat(self, rng: np.random.Generator, lengths: Ints) -> tuple[Ints, Ints]:
        n, terms = len(lengths), int(lengths.max()) // 2 + 1
        digit = rng.integers(0, self.m, (terms, n))
        operator = self._operators(rng, (terms - 1, n))
        text = np.empty((n, 2 * terms - 1), dtype=np.int64)
        text[:, ::2], text[:, 1::2] = digit.T, self.m + operator.T
        # What is behind the end adds 0.
        behind = 2 * np.arange(1, terms)[:, None] >= lengths
        operator[behind], digit[1:][behind] = PLUS, 0
        total, product = np.zeros(n, dtype=np.int64), digit[0]
        for step in range(terms - 1):
            times, right = operator[step] == TIMES, digit[step + 1]
            total = np.where(times, total, total + product) % self.m
            signed = np.where(operator[step] == MINUS, -right, right)
            product = np.where(times, product * right, signed) % self.m
        return text, (total + product) % self.m

    def _nested(self, rng: np.random.Generator, lengths: Ints) -> tuple[Ints, Ints]:
        """All expressions at once, from the outermost brackets to the digits."""
        n = len(lengths)
        opening, closing = self.m + len(OPERATORS), self.m + len(OPERATORS) + 1
        text = np.empty((n, int(lengths.max())), dtype=np.int64)
        row, start, length = np.arange(n), np.zeros(n, dtype=np.int64), lengths
        levels = []
        while len(row):
            split = length >= 5
            leaf = ~split
            # A leaf ends with its digit, before a closing bracket where it has one.
            digit = rng.integers(0, self.m, int(leaf.sum()))
            in_brackets, negative = length[leaf] >= 3, length[leaf] % 2 == 0
            end = start[leaf] + length[leaf] - 1 - in_brackets
            text[row[leaf], end] = digit
            text[row[leaf][negative], end[negative] - 1] = self.m + MINUS
            closed = split | (length >= 3)
            text[row[closed], start[closed]] = opening
            text[row[closed], (start + length - 1)[closed]] = closing
            row, start, length = row[split], start[split], length[split]
            left = rng.integers(1, length - 3)
            operator = self._operators(rng, row.shape)
            text[row, start + 1 + left] = self.m + operator
            levels.append((split, np.where(negative, -digit, digit), operator))
            start = np.concatenate([start + 1, start + 2 + left])
            length = np.concatenate([left, length - 3 - left])
            row = np.concatenate([row, row])
        values = np.empty(0, dtype=np.int64)
        for split, digits, operator in reversed(levels):
            left, right = values.reshape(2, -1)
            results = np.choose(operator, [left + right, left - right, left * right])
            values = np.empty(len(split), dtype=np.int64)
            values[split], values[~split] = results % self.m, digits % self.m
        return text, values
