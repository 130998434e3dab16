"""Flip-Flop language modelling."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field

from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.core.task import SUFFIX, TRAIN, Batch, Bools, Ints, Probability, Task
from pe_lab.tasks.flipflop_text import ALPHABET, FlipFlopText

WRITE, READ, IGNORE, ZERO, ONE = range(len(ALPHABET))


@dataclass(frozen=True, kw_only=True)
class FlipFlop(Task):
    """One bit of memory: recall the last written bit across instructions to ignore.

    length 12, p_ignore 0.5, tokens over scored targets:

        w 1 r 1 i 0 i 0 i 0 r
            1               1

    A sequence is pairs of an instruction and a bit. The first instruction is w (write), the last r
    (read). Each of the others is i (ignore) with probability p_ignore, else w or r with equal
    chances. The bits after w and i are uniform; the bit after r repeats the last written one.
    Scored: the bits after r.

    Vocabulary: w r i 0 1. Splits: sparse and dense change p_ignore, long_x2 and long_x4 the length,
    sparse_x4 and dense_x4 both. Metric: share of wrong bits.

    ``files`` names text files to read instead of drawing: split (train, in_domain or one of the
    splits) -> path, relative to the current folder. Each row is one sequence like ``w1i0i1r1``, as
    in the official data set (Hugging Face synthseq/flipflop). Such a split has the length of its
    file; the files of train and in_domain must have ``length``. A .jsonl is read as in every task.

    Source: Liu 2023 (arXiv 2306.00946).
    """

    length: Annotated[int, Field(ge=4)]
    """Tokens in a sequence; the model reads all but the last."""
    p_ignore: Probability

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length % 2:
            raise ValueError(
                f"task.length is {self.length}, but flip-flop sequences are pairs of an "
                "instruction and a bit; give an even length"
            )
        self.contents()  # a file is checked while its digest is taken
        for name, text in self._texts.items():
            if name in (TRAIN, IN_DOMAIN) and text.width != self.length:
                raise ValueError(
                    f"task.files.{name} holds sequences of {text.width} tokens, "
                    f"task.length={self.length}: set task.length={text.width}"
                )

    @property
    def vocab(self) -> tuple[str, ...]:
        return tuple(ALPHABET)

    @property
    def n_tokens(self) -> int:
        return self.length - 1

    def sample(self, rng: np.random.Generator, n: int) -> Batch:
        pairs = self.length // 2
        u = rng.random((n, pairs))
        instruction = np.where(u < self.p_ignore, IGNORE, WRITE)
        instruction[u >= self.p_ignore + (1 - self.p_ignore) / 2] = READ
        instruction[:, 0], instruction[:, -1] = WRITE, READ
        bit = rng.integers(0, 2, (n, pairs))
        last_write = np.where(instruction == WRITE, np.arange(pairs), 0)
        np.maximum.accumulate(last_write, axis=1, out=last_write)
        memory = np.take_along_axis(bit, last_write, axis=1)
        bit = np.where(instruction == READ, memory, bit)
        return _batch(np.stack([instruction, ZERO + bit], axis=2).reshape(n, self.length))

    def stored(self, split: str) -> Any:
        text = self._texts.get(split)
        return super().stored(split) if text is None else _Sequences(text)

    def contents(self) -> dict[str, str]:
        return super().contents() | {split: text.digest for split, text in self._texts.items()}

    def split(self, name: str) -> Self:
        changes = {} if name in (TRAIN, IN_DOMAIN) else dict(self.splits[name])
        if name in self._texts:
            changes["length"] = self._texts[name].width
        # Without ``files``: they were checked once, and a large one takes seconds.
        return replace(self, **changes, splits={}, files={})

    def at_length(self, length: int) -> Self:
        if length < 3:
            raise ValueError(f"a length of {length} is too short for flip-flop: give at least 3")
        # The model reads all but the last token of pairs, so an odd number. The sequences of a
        # file have one length; for another one they are drawn.
        return replace(self, length=(length + 1) // 2 * 2, splits={}, files={})

    @cached_property
    def _texts(self) -> dict[str, FlipFlopText]:
        texts = {name: path for name, path in self.files.items() if not self._ours(path)}
        return {name: FlipFlopText(f"task.files.{name}", path) for name, path in texts.items()}

    def _ours(self, path: str) -> bool:
        return path.endswith(SUFFIX)

    def holds_answer(self, batch: Batch, row: Ints, place: Ints) -> Bools:
        """The bit last written, and the bits read since."""
        tokens, index = batch.tokens[row], np.arange(batch.tokens.shape[1])
        before = index < place[:, None]
        write = before & (tokens == WRITE)
        last = index[-1] - write[:, ::-1].argmax(axis=1)
        after = np.roll((tokens == WRITE) | (tokens == READ), 1, axis=1)
        return before & after & (index > last[:, None]) & (index % 2 == 1)


class _Sequences:
    """The rows of a text file as sequences."""

    def __init__(self, text: FlipFlopText) -> None:
        self.rows = text.rows()

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Ints) -> Batch:
        return _batch(_TOKEN[self.rows[rows]])


_TOKEN = np.zeros(256, dtype=np.int64)
_TOKEN[list(ALPHABET.encode())] = np.arange(len(ALPHABET))


def _batch(sequences: Ints) -> Batch:
    tokens = sequences[:, :-1]
    return Batch(tokens, sequences[:, 1:], tokens == READ)
