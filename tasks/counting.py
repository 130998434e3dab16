"""Counting: the value of a variable after a program."""

from dataclasses import dataclass, replace
from typing import Annotated, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, NonNegativeInt, PositiveInt

from pe_lab.core.task import Batch, Bools, Ints, Task

VARIABLES = "abcdefghijklmnopqrstuvwxyz"
MAX_VALUE = 10
UNSET = MAX_VALUE + 1
MOST_WORDS = 4  # in an operation, ``a = 0 ;``
PRINT_WORDS = 3  # ``print a 3``
_NOTHING, _PASS = 0, 1  # the first of ``_operations``


@dataclass(frozen=True, kw_only=True)
class Counting(Task):
    """The value of a variable after a program that sets and increments variables.

    n_vars 2, 6 operations with weights 1 : 1 : 1, tokens over scored targets:

        b = 0 ; pass; pass; b ++; b ++; pass; print b
                                                    2

    The number of operations is uniform from min_ops to max_ops. Each is drawn by weight: set one of
    the n_vars variables to 0, increment one that has been set, or pass. An invalid operation
    (increment beyond 10, or before any variable is set) is drawn again. A program that sets nothing
    is drawn again whole. Then one of the set variables is printed. Scored: its value.

    Vocabulary: <pad>, the words, the variables, 0 to 10. A program of more than max_tokens tokens,
    answer included, is cut on the left (null: never), even if that removes the setting of what is
    printed; a shorter one is padded on the right.

    Splits: longer and shorter change pass_weight, so the distance between operations that matter;
    long_x2 doubles the operations. Metric: share of wrong values.

    Source: Golovneva 2024 (arXiv 2405.18719), section 5.3, word for word as the published
    generator, facebookresearch/RAM projects/cope/scripts/count_data_gen.py.
    """

    n_vars: Annotated[int, Field(ge=1, le=len(VARIABLES))]
    min_ops: PositiveInt
    max_ops: PositiveInt
    set_weight: PositiveInt
    increment_weight: NonNegativeInt
    pass_weight: NonNegativeInt
    max_tokens: Annotated[int, Field(ge=3)] | None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_above("min_ops", "max_ops")

    @property
    def vocab(self) -> tuple[str, ...]:
        values = (str(value) for value in range(MAX_VALUE + 1))
        return ("<pad>", "pass;", "=", ";", "++;", "print", *values, *VARIABLES[: self.n_vars])

    @property
    def n_tokens(self) -> int:
        longest = self._longest
        return (longest if self.max_tokens is None else min(longest, self.max_tokens)) - 1

    @property
    def _longest(self) -> int:
        """Tokens of the longest program, answer included, before it is cut."""
        return MOST_WORDS * self.max_ops + PRINT_WORDS

    def at_length(self, length: int) -> Self:
        """With proportionally many operations, as in the split long_x2."""
        shortest = MOST_WORDS + PRINT_WORDS - 1
        if length < shortest:
            raise ValueError(
                f"a length of {length} is too short for counting: give at least {shortest}"
            )
        if self.max_tokens is None or self.max_tokens >= self._longest:
            max_ops, max_tokens = (length + 1 - PRINT_WORDS) // MOST_WORDS, None
        else:
            max_ops = max(1, self.max_ops * (length + 1) // self.max_tokens)
            max_tokens = length + 1
        min_ops = max(1, self.min_ops * max_ops // self.max_ops)
        return replace(self, min_ops=min_ops, max_ops=max_ops, max_tokens=max_tokens, splits={})

    def sample(self, rng: np.random.Generator, n: int) -> Batch:
        n_ops, first_set = self._lengths(rng, n)
        operations, values = self._run(rng, n_ops - first_set)
        # Nothing but pass before the first set, the print after the last operation.
        program = np.full((n, int(n_ops.max()) + 1), _NOTHING)
        place = np.arange(program.shape[1])
        program[place < first_set[:, None]] = _PASS
        running = (place >= first_set[:, None]) & (place < n_ops[:, None])
        program[running] = operations[np.arange(operations.shape[1]) < (n_ops - first_set)[:, None]]
        printed = _pick(values < UNSET, rng.random(n))
        answer = values[np.arange(n), printed]
        program[:, -1] = 2 + 2 * self.n_vars + printed * (MAX_VALUE + 1) + answer
        return self._batch(program)

    def holds_answer(self, batch: Batch, row: Ints, place: Ints) -> Bools:
        """The last assignment to the variable printed, and its increments since, with the words
        behind the variable."""
        tokens, index = batch.tokens[row], np.arange(batch.tokens.shape[1])
        number = {word: n for n, word in enumerate(self.vocab)}
        printed = tokens[np.arange(len(row)), place]
        named = (tokens == printed[:, None]) & (index < place[:, None])
        behind = np.roll(tokens, -1, axis=1)
        sets = named & (behind == number["="])
        begins = np.where(sets, index, 0).max(axis=1)
        grows = named & (behind == number["++;"]) & (index > begins[:, None])
        held: Bools = grows | np.roll(grows, 1, axis=1)
        since = index - begins[:, None]
        held |= (since >= 0) & (since < MOST_WORDS)
        # No token holds an answer whose setting ``max_tokens`` cut off.
        return held & sets.any(axis=1)[:, None]

    def answer_from(self, words: list[str]) -> str | None:
        return str(words.count("++;")) if words else None

    def _lengths(self, rng: np.random.Generator, n: int) -> tuple[Ints, Ints]:
        """Operations of each program, and which of them is its first set.

        Drawing programs until one sets something favours long ones. The same distribution,
        without rejection: until a variable is set only set and pass are valid, so the first
        t are all pass with probability q^t, q = pass / (pass + set).
        """
        q = self.pass_weight / (self.pass_weight + self.set_weight)
        sets_by = 1 - np.cumprod(np.full(self.max_ops, q))
        lengths = np.cumsum(sets_by[self.min_ops - 1 :])
        u, v = rng.random((2, n))
        n_ops = self.min_ops + np.searchsorted(lengths, u * lengths[-1], side="right")
        first_set = np.searchsorted(sets_by, v * sets_by[n_ops - 1], side="right")
        return n_ops, first_set

    def _run(self, rng: np.random.Generator, n_ops: Ints) -> tuple[Ints, Ints]:
        """n_ops operations of each program from its first set on, and the values after them."""
        n, t = len(n_ops), int(n_ops.max())
        variable = rng.integers(0, self.n_vars, (t, n))
        u, v = rng.random((2, t, n))
        other = self.pass_weight + self.set_weight
        is_set = v * other >= self.pass_weight
        is_set[0] = True
        running = np.arange(t)[:, None] < n_ops
        is_set &= running
        grew = np.zeros((t, n), dtype=bool)
        values = np.full((self.n_vars, n), UNSET)
        row, flat = np.arange(n), values.ravel()
        flat[variable[0] * n + row] = 0
        for step in range(1, t):
            # Each set variable has the weight increment / n_set, and is drawn again at its largest
            # value: the same as a weight for those below it only. All times n_set.
            weights = self.increment_weight * (values < MAX_VALUE)
            for i in range(1, self.n_vars):
                weights[i] += weights[i - 1]
            n_set = np.add.reduce(values < UNSET, axis=0, dtype=np.int64)
            x = u[step] * (weights[-1] + other * n_set)
            grows = np.logical_and(x < weights[-1], running[step], out=grew[step])
            heavier = np.add.reduce(weights <= x, axis=0, dtype=np.int64)
            np.copyto(variable[step], heavier, where=grows)
            place = variable[step] * n + row
            flat[place] = (flat.take(place) + grows) * (grows | ~is_set[step])
        # Numbers as in ``_operations``.
        operations = np.where(is_set | grew, 2 + variable + self.n_vars * grew, _PASS)
        return operations.T, values.T

    def _operations(self) -> list[list[str]]:
        """All operations, as words: nothing, pass, then set, increment, print by variable."""
        names = VARIABLES[: self.n_vars]
        return [
            [],
            ["pass;"],
            *([name, "=", "0", ";"] for name in names),
            *([name, "++;"] for name in names),
            *(["print", name, str(value)] for name in names for value in range(MAX_VALUE + 1)),
        ]

    def _batch(self, program: Ints) -> Batch:
        """The words of each program, cut on the left and padded on the right."""
        number = {word: i for i, word in enumerate(self.vocab)}
        operations = self._operations()
        table = np.full((len(operations), MOST_WORDS), -1, dtype=np.int8)
        for i, operation in enumerate(operations):
            table[i, : len(operation)] = [number[word] for word in operation]
        total = (table >= 0).sum(axis=1).take(program).sum(axis=1)
        longest = int(total.max())
        sequences = np.zeros((len(program), longest), dtype=np.int64)
        words = table.take(program, axis=0)
        # Both sides run row by row, left to right.
        sequences[np.arange(longest) < total[:, None]] = words[words >= 0]
        if self.max_tokens is not None and longest > self.max_tokens:
            lost = (total - self.max_tokens).clip(0)
            kept = lost[:, None] + np.arange(self.max_tokens)
            sequences, total = np.take_along_axis(sequences, kept, axis=1), total - lost
        place, last = np.arange(sequences.shape[1] - 1), (total - 2)[:, None]
        tokens = sequences[:, :-1] * (place <= last)  # no answer is read
        return Batch(tokens, sequences[:, 1:], place == last, lengths=total - 1)


def _pick(among: Bools, u: npt.NDArray[np.float64]) -> Ints:
    """Per row one of the True columns, uniformly."""
    counts = among.cumsum(axis=1)
    return (counts <= (u * counts[:, -1])[:, None]).sum(axis=1)
