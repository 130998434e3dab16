"""Word problems of finite groups."""

import re
from dataclasses import dataclass, replace
from functools import cache
from itertools import permutations
from typing import Literal, Self

import numpy as np
from pydantic import PositiveInt

from pe_lab.core.task import Batch, Bools, Ints, Task

LARGEST_CYCLE = 1000
"""The largest m of Z_m: its multiplication table has m^2 entries."""
GROUPS = f"Z_2 to Z_{LARGEST_CYCLE}, S2 to S5, A3 to A5"

Generators = Literal["all", "swaps", "cycles3", "neighbours"]


@dataclass(frozen=True, kw_only=True)
class GroupWord(Task):
    """The product of the elements of a group read so far: state tracking.

    group S3, generators swaps, 5 steps, tokens over scored targets:

        213 321 123 132 213
        213 231 231 321 312

    A word is a number of elements of ``group``, uniform from min_steps to max_steps, each uniform
    over the generators. The target is the product of all elements so far, at every step or at the
    last. Of permutations, the one read first is applied first. 231 sends 1 to 2, 2 to 3 and 3 to 1.

    - group: Z_m (addition modulo m), the permutations S2 to S5, or the even ones A3 to A5. S2 is
      parity.
    - generators: all elements. swaps: the identity and the permutations that exchange two. cycles3:
      those that move at most three. neighbours: 0, 1 and m - 1 of Z_m, to stay or move on a cycle.
      All of them generate the group, so every element is an answer.
    - tokens_per_step k: each element is followed by k - 1 times _, and scored at the last of these.
      At the others the target is the product of the steps completed; only loss_on=all trains on it.
    - start true puts <s> before the first element. Without it, attention that knows no absolute
      position cannot distinguish 21 21 from 21, because it averages equal tokens. On S2 such a
      model is then wrong in at least a quarter of the words, those that begin with 21 21.

    Vocabulary: the elements, the identity first, _, <s> and <pad>. A shorter sequence is padded on
    the right. Splits: long_x2, long_x4 and long_x8 have exactly 2, 4 and 8 times max_steps. Errors
    are also broken down by the number of tokens read. Metric: share of wrong elements.

    Source: the word problem of Merrill 2024 (arXiv 2404.08819), as in Grazzi 2025 (arXiv
    2411.12537), appendix E.2. Z_5, neighbours and score=last are the cycle navigation of Deletang
    2023 (arXiv 2207.02098).
    """

    group: str
    generators: Generators
    min_steps: PositiveInt
    max_steps: PositiveInt
    tokens_per_step: PositiveInt
    score: Literal["every", "last"]
    start: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        found = re.fullmatch(r"Z_(\d{1,9})|S[2-5]|A[3-5]", self.group)
        if not found or (found[1] and not 2 <= int(found[1]) <= LARGEST_CYCLE):
            raise ValueError(f"task.group={self.group} is not a group here: give {GROUPS}")
        self.refuse_above("min_steps", "max_steps")
        n, generators = len(_elements(self.group)), self._generators
        if len(_generated(_table(self.group), generators)) < n:
            raise ValueError(
                f"task.generators={self.generators} does not generate task.group={self.group}; "
                "give generators=all, which generates every group, or another group: swaps "
                "generates S2 to S5, cycles3 also A3 to A5, neighbours Z_m"
            )

    @property
    def vocab(self) -> tuple[str, ...]:
        return (*_elements(self.group), "_", "<s>", "<pad>")

    @property
    def n_tokens(self) -> int:
        return self.start + self.max_steps * self.tokens_per_step

    @property
    def _generators(self) -> Ints:
        return _chosen(self.group, self.generators)

    def at_length(self, length: int) -> Self:
        """With min_steps and max_steps in the same proportion."""
        shortest = self.start + self.tokens_per_step
        if length < shortest:
            raise ValueError(
                f"a length of {length} is too short for a group word: give at least {shortest}"
            )
        most = (length - self.start) // self.tokens_per_step
        fewest = max(1, self.min_steps * most // self.max_steps)
        return replace(self, min_steps=fewest, max_steps=most, splits={})

    def sample(self, rng: np.random.Generator, n: int) -> Batch:
        table, k = _table(self.group), self.tokens_per_step
        blank, begin, padding = range(len(table), len(table) + 3)
        n_steps = rng.integers(self.min_steps, self.max_steps + 1, n)
        generators = self._generators
        word = generators[rng.integers(0, len(generators), (self.max_steps, n))]
        product = np.zeros((self.max_steps + 1, n), dtype=np.int64)  # 0 is the identity
        for step in range(self.max_steps):
            product[step + 1] = table[product[step], word[step]]
        place = np.arange(self.n_tokens) - self.start  # -1: <s>
        tokens = np.full((n, self.n_tokens), blank)
        tokens[:, : self.start], tokens[:, self.start :: k] = begin, word.T
        targets = product[(place + 1) // k].T.copy()
        ends = (place >= 0) & ((place + 1) % k == 0)
        lengths = k * n_steps[:, None]
        real = place < lengths
        tokens[~real] = targets[~real] = padding
        scored = ends & real if self.score == "every" else place == lengths - 1
        uneven = self.min_steps < self.max_steps
        return Batch(tokens, targets, scored, lengths[:, 0] + self.start if uneven else None)

    def holds_answer(self, batch: Batch, row: Ints, place: Ints) -> Bools:
        """All elements so far."""
        index = np.arange(batch.tokens.shape[1]) - self.start
        so_far: Bools = (index >= 0) & (index <= place[:, None] - self.start)
        return so_far & (index % self.tokens_per_step == 0)

    def answer_from(self, words: list[str]) -> str:
        elements, product = _elements(self.group), 0
        for word in words:
            product = _table(self.group)[product, elements.index(word)]
        return elements[product]


@cache
def _elements(group: str) -> tuple[str, ...]:
    """The elements as words, the identity first."""
    if group.startswith("Z_"):
        return tuple(str(i) for i in range(int(group[2:])))
    return tuple("".join(str(i + 1) for i in p) for p in _permutations(group).tolist())


@cache
def _permutations(group: str) -> Ints:
    """(elements, points): where each element of Sn or An sends each point, from 0."""
    n = int(group[1:])
    found = np.array(list(permutations(range(n))), dtype=np.int64)
    if group[0] == "A":
        pairs = np.triu_indices(n, 1)
        inversions = (found[:, pairs[0]] > found[:, pairs[1]]).sum(axis=1)
        found = found[inversions % 2 == 0]
    return found


@cache
def _table(group: str) -> Ints:
    """table[a, b]: first a, then b."""
    if group.startswith("Z_"):
        z = np.arange(int(group[2:]))
        return (z[:, None] + z) % len(z)
    found = _permutations(group)
    base = len(found[0]) ** np.arange(len(found[0]))
    number = np.zeros(len(found[0]) ** len(found[0]), dtype=np.int64)
    number[found @ base] = np.arange(len(found))
    products = found[np.arange(len(found))[None, :, None], found[:, None, :]]
    return number[products @ base]


@cache
def _chosen(group: str, generators: Generators) -> Ints:
    """The elements that are drawn."""
    n = len(_elements(group))
    if generators == "all":
        return np.arange(n)
    cyclic = group.startswith("Z_")
    if generators == "neighbours":
        return np.unique([0, 1, n - 1]) if cyclic else np.array([0])
    moves = np.arange(n)[:, None] + np.arange(n) if cyclic else _permutations(group)
    if cyclic:
        moves %= n
    moved = (moves != np.arange(moves.shape[1])).sum(axis=1)
    return np.flatnonzero(moved <= (2 if generators == "swaps" else 3))


def _generated(table: Ints, generators: Ints) -> set[int]:
    """The elements that are products of the generators."""
    found, new = {0}, {0}
    while new:
        new = {int(i) for i in table[list(new)][:, generators].ravel()} - found
        found |= new
    return found
