"""A task: one rule, its vocabulary, a training distribution and named splits that change it.

Shape letters: N sequences, T tokens the model reads.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveInt

from pe_lab.common.metrics import IN_DOMAIN

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Probability = Annotated[float, Field(ge=0, le=1)]

TRAIN = "train"
MAX_WORDS_SHOWN = 100
"""Words of a vocabulary shown in a message: a Chinese text has thousands."""


@dataclass(frozen=True)
class Batch:
    """N sequences. The model reads ``tokens`` and predicts ``targets[:, t]`` at position t.

    ``scored`` marks the targets that are measured. Shorter sequences are padded on the right:
    ``lengths`` has the number of real positions (None: T for all). ``tags`` hold an integer per
    position by which errors are broken down (brackets: distance, depth). ``positions`` hold the
    position ids of each axis of ``Task.position_axes``, (N, T); 0: the token has none.
    """

    tokens: Ints
    targets: Ints
    scored: Bools
    lengths: Ints | None = None
    tags: Mapping[str, Ints] = field(default_factory=dict)
    positions: Mapping[str, Ints] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, rows: Ints | slice) -> "Batch":
        """The named rows, as a batch."""
        return Batch(
            self.tokens[rows],
            self.targets[rows],
            self.scored[rows],
            None if self.lengths is None else self.lengths[rows],
            {name: tag[rows] for name, tag in self.tags.items()},
            {axis: ids[rows] for axis, ids in self.positions.items()},
        )

    def real(self) -> Bools:
        """True where a position is not padding."""
        n, t = self.tokens.shape
        if self.lengths is None:
            return np.ones((n, t), dtype=bool)
        return np.arange(t)[None, :] < self.lengths[:, None]


class Stored(Protocol):
    """A finite set of sequences: a file, or a set drawn once (``Batch`` is one)."""

    def __len__(self) -> int: ...

    def take(self, rows: Ints) -> Batch: ...


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A rule that draws sequences. Its fields are its yaml's keys; a split changes some of them.

    A subclass is a frozen keyword-only dataclass. It defines ``vocab``, ``n_tokens`` and
    ``sample``, and raises ValueError in ``__post_init__`` for incompatible values.
    """

    splits: dict[str, dict[str, Any]]
    """Out-of-domain split -> the keys it changes. ``in_domain`` is the task unchanged."""
    loss_on: Literal["scored", "all"] = "scored"
    """Train on the scored answers only, or on every real position."""
    train_sequences: PositiveInt | None = None
    """None: an endless stream. n: a set of n sequences, drawn once, shuffled every epoch."""

    fixed: ClassVar[frozenset[str]] = frozenset({"splits", "loss_on", "train_sequences"})
    """Keys that no split can change; where a subclass adds one, it has a default."""
    separator: ClassVar[str | None] = None
    """The vocabulary's word that ends the input part, for models that read input and output
    apart; None: the task has no such parts."""
    generates: ClassVar[bool] = False
    """Whether the scored answers are one run at the end of each row that the model can also
    write by itself (``eval.generate=true``)."""

    def __post_init__(self) -> None:
        for name, changes in self.splits.items():
            if name in (TRAIN, IN_DOMAIN):
                raise ValueError(f"a split cannot be called {name}; choose another name")
            if fixed := self.fixed & changes.keys():
                raise ValueError(f"split {name} cannot change {', '.join(sorted(fixed))}")

    @property
    @abstractmethod
    def vocab(self) -> tuple[str, ...]:
        """The tokens as a reader knows them; a token's number is its place here. The same in
        every split: a split that needs more symbols has them here from the start."""

    @property
    @abstractmethod
    def n_tokens(self) -> int:
        """T, the most tokens the model reads in one sequence."""

    @property
    def position_axes(self) -> Mapping[str, int]:
        """The axes of the position ids that ``sample`` gives (``Batch.positions``), each with one
        more than its largest id in this split; empty: the task gives none. ``positions=coupled``
        reads them. The same axes in every split."""
        return {}

    @abstractmethod
    def sample(self, rng: np.random.Generator, n: int) -> Batch:
        """n sequences, drawn with ``rng`` alone and without a Python loop over them."""

    def stored(self, split: str) -> Stored | None:
        """The sequences of a split that are read, not drawn; None where there are none."""
        return None

    def contents(self) -> dict[str, str]:
        """Split, or another name, -> digest of what is read for it: part of what identifies a
        run."""
        return {}

    def split(self, name: str) -> Self:
        """The task as the split has it."""
        return self if name in (TRAIN, IN_DOMAIN) else replace(self, **self.splits[name], splits={})

    def at_length(self, length: int) -> Self:
        """The same rule with sequences of ``length`` tokens to read, or of the nearest number
        below that the rule has. It has no splits: ask a split's task, ``split(name)``, for one.

        Raises:
            ValueError: the rule has no sequences that short, or of one length only.
        """
        if length != self.n_tokens:
            raise ValueError(
                f"a length of {length} is not to be had: this task has sequences of "
                f"{self.n_tokens} tokens only, its class brings no at_length"
            )
        return replace(self, splits={})

    def evaluated(self) -> list[str]:
        """Names of the splits that are measured: in_domain first, then as the yaml has them."""
        return [IN_DOMAIN, *self.splits]

    def trained(self, batch: Batch) -> Bools:
        """The positions whose answers the loss is taken over."""
        return batch.scored if self.loss_on == "scored" else batch.real()

    def correct(self, logits: Any, targets: Any) -> Any:
        """(n, V) logits and (n,) targets, torch tensors, to (n,) bool: which answers are right."""
        return logits.argmax(-1) == targets

    def guess(self, reference: Batch, batch: Batch) -> float:
        """Error of the best constant answer: the commonest scored target of ``reference``
        (in-domain sequences)."""
        commonest = np.bincount(reference.targets[reference.scored]).argmax()
        return float((batch.targets[batch.scored] != commonest).mean())

    @property
    def shown_vocab(self) -> str:
        """The vocabulary as a message shows it."""
        more = " .." if len(self.vocab) > MAX_WORDS_SHOWN else ""
        return " ".join(self.vocab[:MAX_WORDS_SHOWN]) + more

    def encode(self, text: str) -> list[int]:
        """The tokens of a text as a user writes it: words of the vocabulary, with or without
        spaces between those of one letter.

        Raises:
            ValueError: something in it is not a word of the vocabulary.
        """
        number = {word: n for n, word in enumerate(self.vocab)}
        words = [w for part in text.split() for w in ([part] if part in number else part)]
        for word in words:
            if word not in number:
                raise ValueError(f"{word} is not in the vocabulary: {self.shown_vocab}")
        return [number[word] for word in words]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of some tokens, as a user reads it."""
        return " ".join(self.vocab[token] for token in tokens)

    def render(self, batch: Batch, row: int) -> str:
        """One sequence as text: tokens, and below the scored places the answers."""
        length = batch.tokens.shape[1] if batch.lengths is None else int(batch.lengths[row])
        words = [self.vocab[i] for i in batch.tokens[row, :length]]
        answers = [
            self.vocab[i] if s else ""
            for i, s in zip(batch.targets[row, :length], batch.scored[row, :length], strict=True)
        ]
        widths = [max(len(w), len(a)) for w, a in zip(words, answers, strict=True)]
        lines = (
            " ".join(cell.ljust(w) for cell, w in zip(cells, widths, strict=True)).rstrip()
            for cells in (words, answers)
        )
        return "\n".join(lines)
