"""Addition, digit by digit."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, PositiveInt

from pe_lab.core.task import Batch, Bools, Ints, Task

DIGITS = "0123456789"


@dataclass(frozen=True, kw_only=True)
class Addition(Task):
    """Add two numbers, digit by digit.

    3 digits, base 10, pad, reverse, tokens over scored targets:

        4 0 7 + 0 9 5 = 2 0 5
                      2 0 5 0

    The number of digits of each is uniform from min_digits to max_digits. Digits are uniform; the
    first is not 0, except in a number of one digit. With pad, zeros in front make the numbers
    equally long and the sum one digit longer. With reverse, the sum begins with its last digit, so
    a carry is known where it is needed. Scored: the sum, which the model can also generate. The
    error by sequence is that of whole sums.

    hints n puts a symbol out of n in front of each digit. Digits of one place have the same one.
    They follow one another from the units on, and the first is drawn. 2 digits, hints 5:

        h3 1 h2 7 + h3 6 h2 8 =  h2 5  h3 8  h4
                              h2 5  h3 8  h4 0

    Position ids (``positions=coupled``): digits of one place have one id. With units_id largest,
    ids grow from 1, the first place of the sum, to the units, then to + and =. That is the
    published code before its commit e35e9de of 2024-10-16. smallest is mirrored, as since then: +
    and a reversed sum's = have 1, units 2. An = before a sum that is not reversed has the largest:

                  4 0 7 + 0 9 5 = 2 0 5
        largest   2 3 4 5 2 3 4 5 4 3 2
        smallest  4 3 2 1 4 3 2 1 2 3 4

    Vocabulary: the digits, + = and <pad>. A shorter sequence is padded on the right. Errors are
    also broken down by the place, 1 for the units. Splits: long_x2 has from max_digits + 1 to twice
    as many digits, long_x3 from there to three times. Metric: share of wrong digits.

    Source: position coupling of Cho 2024 (arXiv 2405.20671), padded, reversed, base 10, code
    HanseulJo/position-coupling; index hints of Zhou 2023 (arXiv 2310.16028).
    """

    min_digits: PositiveInt
    max_digits: PositiveInt
    base: Annotated[int, Field(ge=2, le=len(DIGITS))]
    reverse: bool
    pad: bool
    hints: PositiveInt | None
    units_id: Literal["largest", "smallest"] = "largest"

    generates: ClassVar[bool] = True
    separator: ClassVar[str | None] = "="

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_above("min_digits", "max_digits")
        if self.hints is not None and self.hints <= self.max_digits:
            raise ValueError(
                f"task.hints={self.hints} does not suffice for sums of {self.max_digits + 1} "
                f"digits; set it to {self.max_digits + 1} or more, or to null"
            )

    @property
    def vocab(self) -> tuple[str, ...]:
        hints = (f"h{i}" for i in range(self.hints or 0))
        return (*DIGITS[: self.base], "+", "=", "<pad>", *hints)

    @property
    def n_tokens(self) -> int:
        return self._per_digit * (3 * self.max_digits + 1) + 1

    @property
    def position_axes(self) -> Mapping[str, int]:
        # An = before a sum that is not reversed has an id beyond all digits.
        last = self.units_id == "smallest" and not self.reverse
        return {"place": self.max_digits + 3 + last}

    @property
    def _per_digit(self) -> int:
        return 1 if self.hints is None else 2

    def at_length(self, length: int) -> Self:
        """With min_digits and max_digits in the same proportion."""
        if length < (least := 4 * self._per_digit + 1):
            raise ValueError(
                f"a length of {length} is too short for addition: give at least {least}"
            )
        most = ((length - 1) // self._per_digit - 1) // 3
        fewest = max(1, self.min_digits * most // self.max_digits)
        return replace(self, min_digits=fewest, max_digits=most, splits={})

    def sample(self, rng: np.random.Generator, n: int) -> Batch:
        digits, n_digits = self._numbers(rng, n)
        longest = n_digits.max(axis=0)
        if self.pad:
            shown = np.stack([longest, longest, longest + 1])
        else:
            carried = np.take_along_axis(digits[2], longest, axis=1) > 0
            shown = np.stack([*n_digits, longest + carried])
        first_hint = rng.integers(0, (self.hints or 0) - longest) if self.hints else 0
        per_digit, plus = self._per_digit, self.base
        index = np.arange(self.n_tokens + 1)
        begins = np.stack([0 * longest, per_digit * shown[0] + 1, per_digit * shown[:2].sum(0) + 2])
        end = begins[2] + per_digit * shown[2] - 1
        sequences = np.full((n, len(index)), plus + 2)
        place = np.zeros_like(sequences)  # from 1, the units; of signs 0
        for number in range(3):
            offset = index - begins[number]
            nth = offset // per_digit
            turned = number == 2 and self.reverse
            at = (nth if turned else shown[number] - 1 - nth).clip(0, self.max_digits)
            words = np.take_along_axis(digits[number], at, axis=1)
            if self.hints:
                words = np.where(offset % per_digit == 0, plus + 3 + first_hint + at, words)
            inside = (offset >= 0) & (nth < shown[number])
            sequences = np.where(inside, words, sequences)
            place = np.where(inside, at + 1, place)
        # Place 0 are the signs.
        ids = longest + 2 - place if self.units_id == "largest" else place + 1
        if self.units_id == "smallest" and not self.reverse:
            ids = np.where(index == begins[2] - 1, shown[2] + 2, ids)
        for sign in (1, 2):
            sequences[index == begins[sign] - 1] = plus + sign - 1
        tokens, targets = sequences[:, :-1], sequences[:, 1:].copy()
        read = index[:-1] < end
        tokens[~read] = plus + 2  # no last answer is read
        scored = (index[:-1] >= begins[2] - 1) & read
        always = self.pad and self.min_digits == self.max_digits
        return Batch(
            tokens,
            targets,
            scored,
            None if always else end[:, 0],
            {"place": place[:, 1:] * scored},
            {"place": ids[:, :-1] * read},
        )

    def holds_answer(self, batch: Batch, row: Ints, place: Ints) -> Bools:
        """The digits of that place in both numbers, and those below from which a carry comes; of a
        hint the hints of its place, or of the nearest one that the numbers have."""
        tokens = batch.tokens[row]
        at = self._places(tokens)
        asked = batch.tags["place"][row, place]
        highest = at.max(axis=1)
        digit = np.where(tokens < self.base, tokens, 0)
        is_hint = tokens >= self.base + 3
        total = np.stack(
            [(digit * (at == p) * ~is_hint).sum(axis=1) for p in range(self.max_digits + 2)], axis=1
        )
        # The carry comes from the first place below whose digits do not add up to base - 1.
        lowest = asked.copy()
        for _ in range(self.max_digits):
            below = lowest - 1
            more = (below >= 1) & (
                (lowest == asked) | (total[np.arange(len(row)), lowest] == self.base - 1)
            )
            lowest = np.where(more, below, lowest)
        held = (at >= lowest[:, None]) & (at <= asked[:, None]) & (at > 0) & ~is_hint
        hint = batch.targets[row, place] >= self.base + 3
        held[hint] = ((at == np.minimum(asked, highest)[:, None]) & is_hint)[hint]
        return held

    def right_answers(self, batch: Batch) -> Iterator[tuple[int, int, str]]:
        """The digits of the sum."""
        words = [word if word in DIGITS + "+=" else "" for word in self.vocab]
        digit = batch.scored & (batch.targets < self.base)
        for row, place in zip(*np.nonzero(digit), strict=True):
            text = "".join(words[token] for token in batch.tokens[row])
            numbers = text.partition("=")[0].split("+")
            total = sum(int(number, self.base) for number in numbers)
            power = self.base ** (int(batch.tags["place"][row, place]) - 1)
            yield int(row), int(place), DIGITS[total // power % self.base]

    def _places(self, tokens: Ints) -> Ints:
        """The place of each token of the two numbers, 1 for the units; 0 for others."""
        index = np.arange(tokens.shape[1])
        plus = (tokens == self.base).argmax(axis=1)[:, None]
        equals = (tokens == self.base + 1).argmax(axis=1)[:, None]
        end = np.where(index < plus, plus, equals)
        return np.where(
            (index == plus) | (index >= equals), 0, (end - index - 1) // self._per_digit + 1
        )

    def _numbers(self, rng: np.random.Generator, n: int) -> tuple[Ints, Ints]:
        """Digits from the units on of both numbers and their sum, (3, n, max_digits + 1), 0 beyond
        the last; how many digits the two have, (2, n, 1)."""
        place = np.arange(self.max_digits + 1)
        n_digits = rng.integers(self.min_digits, self.max_digits + 1, (2, n, 1))
        drawn = rng.integers(0, self.base, (2, n, len(place)))
        first = rng.integers(1, self.base, (2, n, 1))
        is_first = (place == n_digits - 1) & (n_digits > 1)
        two = np.where(is_first, first, drawn) * (place < n_digits)
        total = two.sum(axis=0)
        for at in place[1:]:
            total[:, at] += total[:, at - 1] >= self.base
        return np.concatenate([two, total[None] % self.base]), n_digits
