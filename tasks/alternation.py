"""Alternating blocks of letters."""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from pydantic import PositiveInt

from pe_lab.core.task import Batch, Bools, Ints, Task

A, B, NO, YES, BOS, PADDING = range(6)


@dataclass(frozen=True, kw_only=True)
class Alternation(Task):
    """Say at every letter whether it is in the k-th of alternating blocks.

    block 3, 10 letters in 4 blocks, tokens over scored targets:

        <bos> a a b a a a b b b b
              0 0 0 1 1 1 0 0 0 0

    With L_1 = a+, L_2 = a+b+, L_3 = a+b+a+ and so on, the answer is 1 where the text so far is in
    L_k, with k = block. The number of letters is uniform from min_letters to max_letters, and that
    of blocks from min_blocks to max_blocks. The ends of blocks are uniform. Scored: every letter.

    Vocabulary: a b 0 1 <bos> <pad>. A shorter sequence is padded on the right. Errors are also
    broken down by the number of the block. Splits: long_x2 has from max_letters + 1 to twice as
    many letters, long_x3 from there to three times, deep more blocks than any text in training.
    Metric: share of wrong answers.

    Source: Yang 2025 (arXiv 2506.16055), trained on 201 to 250 letters and tested to 400, with
    min_blocks = max_blocks = block from 3 to 12. Without positions, a transformer of d layers
    generalises in length on block d + 2 and on no later one. Its errors are per sequence.
    """

    min_letters: PositiveInt
    max_letters: PositiveInt
    block: PositiveInt
    min_blocks: PositiveInt
    max_blocks: PositiveInt

    exact_tags: ClassVar[frozenset[str]] = frozenset({"block"})

    def __post_init__(self) -> None:
        super().__post_init__()
        for low, high in (
            ("min_letters", "max_letters"),
            ("min_blocks", "max_blocks"),
            ("block", "max_blocks"),
            ("max_blocks", "min_letters"),
        ):
            self.refuse_above(low, high)

    @property
    def vocab(self) -> tuple[str, ...]:
        return ("a", "b", "0", "1", "<bos>", "<pad>")

    @property
    def n_tokens(self) -> int:
        return self.max_letters + 1

    def at_length(self, length: int) -> Self:
        """With min_letters and max_letters in the same proportion, and as many blocks."""
        if length <= self.max_blocks:
            raise ValueError(
                f"a length of {length} is too short for {self.max_blocks} blocks: give at least "
                f"{self.max_blocks + 1}"
            )
        most = length - 1
        fewest = max(self.max_blocks, self.min_letters * most // self.max_letters)
        return replace(self, min_letters=fewest, max_letters=most, splits={})

    def sample(self, rng: np.random.Generator, n: int) -> Batch:
        n_letters = rng.integers(self.min_letters, self.max_letters + 1, (n, 1))
        n_blocks = rng.integers(self.min_blocks, self.max_blocks + 1, (n, 1))
        place = np.arange(self.max_letters)
        inside = place < n_letters
        # A block begins at the first letter and at those of the others with the least numbers.
        order = np.where(inside & (place > 0), rng.random(inside.shape), 2.0)
        least = np.take_along_axis(np.sort(order, axis=1), n_blocks - 1, axis=1)
        block = 1 + (order < least).cumsum(axis=1)
        letters = np.where(inside, np.where(block % 2, A, B), PADDING)
        answers = np.where(inside, np.where(block == self.block, YES, NO), PADDING)
        tokens = np.concatenate([np.full((n, 1), BOS), letters], axis=1)
        targets = np.concatenate([letters[:, :1], answers], axis=1)
        start = np.zeros((n, 1), dtype=np.int64)
        return Batch(
            tokens,
            targets,
            np.concatenate([start > 0, inside], axis=1),
            None if self.min_letters == self.max_letters else n_letters[:, 0] + 1,
            {"block": np.concatenate([start, block * inside], axis=1)},
        )

    def holds_answer(self, batch: Batch, row: Ints, place: Ints) -> Bools:
        """All letters so far."""
        index = np.arange(batch.tokens.shape[1])
        return (index > 0) & (index <= place[:, None])

    def answer_from(self, words: list[str]) -> str:
        text = "".join(words)
        return str(int(1 + text.count("ab") + text.count("ba") == self.block))
