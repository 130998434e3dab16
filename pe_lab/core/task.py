"""A task: one rule, its vocabulary, a training distribution and named splits that change it. Its
sequences as a model reads them, in memory and in a file.

Shape letters: N sequences, T tokens the model reads.

A file is JSON Lines. Its first line is a header, which makes the file again: ``pe_lab_data`` (the
version of the format), ``vocab``, ``in_order`` (whether the sequences are the batches of a run,
one after another) and the keys of the task. Each further line is a sequence:

    {"words": "a b | b a", "tokens": [0, 1, 9, 1, 0], "targets": [1, 9, 1, 0, 8], "scored": [2, 3],
     "length": 5, "tags": {"depth": [..]}, "positions": {"row": [..]}}

``words`` are for the reader; ``scored`` are places, from 0; ``length`` is there where the task has
it. What is written is read back equal.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
import orjson
from pydantic import Field, PositiveInt

from pe_lab.core.errors import check_known, reason
from pe_lab.core.metrics import IN_DOMAIN, OOD

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
SUFFIX = ".jsonl"
# Version of the format.
FORMAT = 2
Probability = Annotated[float, Field(ge=0, le=1)]

TRAIN = "train"


@dataclass(frozen=True)
class Batch:
    """N sequences. The model reads ``tokens`` and predicts ``targets[:, t]`` at position t.

    ``scored`` marks the targets that are measured. Shorter sequences are padded on the right:
    ``lengths`` has the number of real positions (None: T for all). ``tags`` hold an integer per
    position by which errors are broken down (brackets: distance, depth). ``positions`` hold the
    position ids of each axis of ``Task.position_axes``, (N, T); 0: the token has none. ``in_order``
    says that they are training batches, one after another, and not a set to be shuffled.
    """

    tokens: Ints
    targets: Ints
    scored: Bools
    lengths: Ints | None = None
    tags: Mapping[str, Ints] = field(default_factory=dict)
    positions: Mapping[str, Ints] = field(default_factory=dict)
    in_order: bool = False

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, rows: Ints | slice) -> "Batch":
        """A batch of these rows."""
        return replace(
            self,
            tokens=self.tokens[rows],
            targets=self.targets[rows],
            scored=self.scored[rows],
            lengths=None if self.lengths is None else self.lengths[rows],
            tags={name: tag[rows] for name, tag in self.tags.items()},
            positions={axis: ids[rows] for axis, ids in self.positions.items()},
            in_order=False,
        )

    def real(self) -> Bools:
        """True where a position is not padding."""
        n, t = self.tokens.shape
        if self.lengths is None:
            return np.ones((n, t), dtype=bool)
        return np.arange(t)[None, :] < self.lengths[:, None]

    def loss_mask(self, loss_on: str) -> Bools:
        """The positions of the loss: those that are ``scored``, or ``all`` that are not padding."""
        return self.scored if loss_on == "scored" else self.real()


@dataclass(frozen=True)
class FromFile:
    """The sequences of a file, its header, and its size and SHA-256 as ``digest``."""

    header: Mapping[str, Any]
    batch: Batch
    digest: str


def encode_sequences(header: Mapping[str, Any], batch: Batch) -> bytes:
    """The content of a file."""
    lines: list[dict[str, Any]] = [dict(header)]
    for row, tokens in enumerate(batch.tokens.tolist()):
        length = len(tokens) if batch.lengths is None else int(batch.lengths[row])
        line = {
            "words": " ".join(header["vocab"][token] for token in tokens[:length]),
            "tokens": tokens,
            "targets": batch.targets[row].tolist(),
            "scored": np.flatnonzero(batch.scored[row]).tolist(),
        }
        if batch.lengths is not None:
            line["length"] = length
        for kind, arrays in (("tags", batch.tags), ("positions", batch.positions)):
            line |= {kind: {name: values[row].tolist() for name, values in arrays.items()}}
        lines.append(line)
    return "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines).encode()


def read_sequences(key: str, path: str) -> FromFile:
    """Read the sequences of a file.

    Args:
        key: the configuration key that names it.

    Raises:
        ValueError: it cannot be read, or is not of the form.
    """
    try:
        content = Path(path).read_bytes()
        header, *rows = [orjson.loads(line) for line in content.splitlines()]
        batch = _batch_of(header, rows)
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(
            f"{key}: {path} is not a file of pe-lab show ({reason(error)}): write it again, or "
            "correct it"
        ) from None
    digest = f"{len(content)} bytes, sha256 {hashlib.sha256(content).hexdigest()}"
    return FromFile(header, batch, digest)


def _batch_of(header: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Batch:
    """The sequences of a file; ValueError where their sizes or tokens do not fit."""
    if header["pe_lab_data"] != FORMAT:
        raise ValueError(f"its format is {header['pe_lab_data']}, this program reads {FORMAT}")
    tokens, targets = (_integers([row[key] for row in rows]) for key in ("tokens", "targets"))
    scored = np.zeros(tokens.shape, dtype=bool)
    for number, row in enumerate(rows):
        scored[number, row["scored"]] = True
    lengths = _integers([row["length"] for row in rows]) if "length" in rows[0] else None
    words = np.stack([tokens, targets])
    if words.min() < 0 or words.max() >= len(header["vocab"]):
        raise ValueError(f"a token is outside of the vocabulary of {len(header['vocab'])} words")
    tags, positions = (
        {name: _integers([row[kind][name] for row in rows]) for name in rows[0].get(kind, {})}
        for kind in ("tags", "positions")
    )
    return Batch(tokens, targets, scored, lengths, tags, positions, bool(header["in_order"]))


def _integers(rows: Sequence[Any]) -> Ints:
    """The rows as an array; TypeError where they are ragged or not whole numbers."""
    return np.array(rows).astype(np.int64, casting="safe")


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
    """The size of a training set drawn once and shuffled every epoch; None: an endless stream."""
    files: dict[str, str] = field(default_factory=dict)
    """Split, also train and in_domain -> a file of ``pe-lab show`` that is read instead.

    Paths are relative to the current folder."""

    fixed: ClassVar[frozenset[str]] = frozenset({"splits", "loss_on", "train_sequences", "files"})
    """Keys that no split can change; where a subclass adds one, it has a default."""
    separator: ClassVar[str | None] = None
    """The word between input and output, for models that read them apart; None: no such parts."""
    generates: ClassVar[bool] = False
    """Whether the scored answers end each row, so that the model can also generate them."""
    end: ClassVar[str | None] = None
    """The word that ends each answer, where it is measured how generated answers end: the model
    then generates up to the last place of a sequence. None: this is not measured."""
    exact_tags: ClassVar[frozenset[str]] = frozenset()
    """Tags whose every value is a row of the breakdown; the others are grouped by powers of two."""

    def __post_init__(self) -> None:
        for name, changes in self.splits.items():
            if name in (TRAIN, IN_DOMAIN, OOD):
                raise ValueError(f"a split cannot be called {name}; choose another name")
            if fixed := self.fixed & changes.keys():
                raise ValueError(f"split {name} cannot change {', '.join(sorted(fixed))}")
        names = [TRAIN, IN_DOMAIN, *self.splits]
        check_known("task.files.{} is not a split", self.files, names)

    def refuse_above(self, low: str, high: str) -> None:
        """ValueError where the value of one key is above that of another."""
        one, other = getattr(self, low), getattr(self, high)
        if one > other:
            raise ValueError(
                f"task.{low} is {one}, more than task.{high}, {other}; "
                "lower the one or raise the other"
            )

    @property
    @abstractmethod
    def vocab(self) -> tuple[str, ...]:
        """The words of the tokens, in the order of their numbers. All splits share them."""

    @property
    @abstractmethod
    def n_tokens(self) -> int:
        """T, the most tokens the model reads in one sequence."""

    @property
    def position_axes(self) -> Mapping[str, int]:
        """The axes of ``Batch.positions`` -> one more than the largest id in this split.

        Empty: the task gives no position ids. ``positions=coupled`` reads them. All splits have
        the same axes.
        """
        return {}

    @abstractmethod
    def sample(self, rng: np.random.Generator, n: int) -> Batch:
        """n sequences, drawn with ``rng`` alone and without a Python loop over them."""

    def stored(self, split: str) -> Any:
        """The sequences of a split that are read from a file, a ``Batch`` or what has its length
        and its ``take``; None: they are drawn."""
        return self._files[split].batch if split in self._files else None

    def contents(self) -> dict[str, str]:
        """The digest of each file that the task reads, by split: part of a run's identity.

        Raises:
            ValueError: a file is not what the task reads.
        """
        return {split: file.digest for split, file in self._files.items()}

    @cached_property
    def _files(self) -> dict[str, FromFile]:
        return {
            name: self._file(name, path) for name, path in self.files.items() if self._ours(path)
        }

    def _ours(self, path: str) -> bool:
        """Whether a file has the form that ``pe-lab show`` writes for every task."""
        return True

    def _file(self, name: str, path: str) -> FromFile:
        key = f"task.files.{name}"
        file, most = read_sequences(key, path), self.split(name).n_tokens
        if name == TRAIN and (measured := file.header.get("split", TRAIN)) != TRAIN:
            raise ValueError(
                f"{key}: {path} holds split={measured}, sequences that a run measures: train on a "
                "file of pe-lab show split=train"
            )
        if tuple(file.header["vocab"]) != self.vocab or file.batch.tokens.shape[1] > most:
            raise ValueError(
                f"{key}: {path} has another vocabulary than the task, or sequences of more than "
                f"{most} tokens: give the task the keys that its header names"
            )
        if wrong := self.split(name).find_wrong_answer(file.batch):
            raise ValueError(f"{key}: {path} breaks the rule of the task: {wrong}")
        return file

    def split(self, name: str) -> Self:
        """The task with the keys of a split. It has no files: they were read once."""
        if name in (TRAIN, IN_DOMAIN):
            return replace(self, files={}) if self.files else self
        return replace(self, **self.splits[name], splits={}, files={})

    def at_length(self, length: int) -> Self:
        """The task with sequences of ``length`` tokens, or the nearest smaller number it has.

        The result has no splits: call ``split(name)`` first.

        Raises:
            ValueError: the rule has no sequences that short, or of one length only.
        """
        if length != self.n_tokens:
            raise ValueError(
                f"a length of {length} is not available: this task has sequences of "
                f"{self.n_tokens} tokens only, as its class does not define at_length"
            )
        return replace(self, splits={})

    def evaluated(self) -> list[str]:
        """The splits that are measured: in_domain, then the others in the yaml's order."""
        return [IN_DOMAIN, *self.splits]

    def correct(self, logits: Any, targets: Any) -> Any:
        """(n, V) logits and (n,) targets, torch tensors, to (n,) bool: which answers are right."""
        return logits.argmax(-1) == targets

    def guess(self, reference: Batch, batch: Batch) -> float:
        """The error of always answering the commonest scored target of ``reference``, the
        in-domain sequences."""
        commonest = np.bincount(reference.targets[reference.scored]).argmax()
        return float((batch.targets[batch.scored] != commonest).mean())

    def holds_answer(self, batch: Batch, row: Ints, place: Ints) -> Bools | None:
        """Which tokens hold the answers scored at (``row``, ``place``), both (n,): (n, T) True or
        False. These tokens and their order determine the answer. None: the task does not say."""
        return None

    def answer_from(self, words: list[str]) -> str | None:
        """The answer, from the words that hold it, in their order; None: they do not determine it.
        By default each is the answer; a task with another rule and ``holds_answer`` overrides it.
        """
        return " or ".join(dict.fromkeys(words)) or "none"

    def right_answers(self, batch: Batch) -> Iterator[tuple[int, int, str]]:
        """Row, place and right answer of each scored one; none where the task does not say what
        holds them."""
        (row, place), vocab = np.nonzero(batch.scored), np.array(self.vocab)
        for start in range(0, len(row), 1024):
            rows, places = row[start : start + 1024], place[start : start + 1024]
            if (held := self.holds_answer(batch, rows, places)) is None:
                return
            for r, p, at in zip(rows, places, held, strict=True):
                right = self.answer_from(vocab[batch.tokens[r, at]].tolist())
                if right is not None:
                    yield int(r), int(p), right

    def find_wrong_answer(self, batch: Batch) -> str | None:
        """A sentence about the first answer that is not the right one."""
        try:
            for row, place, right in self.right_answers(batch):
                given = self.vocab[batch.targets[row, place]]
                if given != right:
                    return f"sequence {row + 1} answers {given} at place {place}, not {right}"
        # Of what is no sequence of the task.
        except Exception as error:
            return f"its answers cannot be found ({type(error).__name__}: {reason(error)})"
        return None
