"""Sequences as a model reads them, in memory and in a file.

Shape letters: N sequences, T tokens the model reads.

A file is JSON Lines. Its first line is a header, which makes the file again: ``pe_lab_data`` (the
version of the format), ``vocab``, ``in_order`` (whether the sequences are the batches of a run,
one after another) and the keys of the task. Each further line is a sequence:

    {"words": "a b | b a", "tokens": [0, 1, 9, 1, 0], "targets": [1, 9, 1, 0, 8], "scored": [2, 3],
     "length": 5, "tags": {"tag.depth": [..], "positions.row": [..]}}

``words`` are for the reader; ``scored`` are places, from 0. ``length`` and ``tags`` are there where
the task has them. What is written is read back equal.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import orjson

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


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

    def trained(self, loss_on: str) -> Bools:
        """The positions of the loss: those that are ``scored``, or ``all`` that are not padding."""
        return self.scored if loss_on == "scored" else self.real()


class Stored(Protocol):
    """A finite set of sequences: a file, or a set drawn once (``Batch`` is one)."""

    def __len__(self) -> int: ...

    def take(self, rows: Ints) -> Batch: ...


SUFFIX = ".jsonl"
FORMAT = 1
"""Version of the format."""
KEYS = {"pe_lab_data", "vocab", "in_order"}
"""The keys that every header has."""


@dataclass(frozen=True)
class FromFile:
    """The sequences of a file, its header, and its size and SHA-256 as ``digest``."""

    header: Mapping[str, Any]
    batch: Batch
    digest: str


def encoded(header: Mapping[str, Any], batch: Batch) -> bytes:
    """The content of a file."""
    lines = [json.dumps(dict(header), ensure_ascii=False), *_rows(header["vocab"], batch)]
    return "\n".join([*lines, ""]).encode()


def read_sequences(key: str, path: str) -> FromFile:
    """The sequences of a file.

    Args:
        key: the configuration key that names it.

    Raises:
        ValueError: it cannot be read, or is not of the form.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(
            f"{key} names {path}, which cannot be read ({error.strerror}); give the path of a file "
            "that pe-lab show wrote"
        ) from error
    try:
        header, batch = _decoded(content)
        _check(len(header["vocab"]), batch)
    except ValueError as error:
        raise ValueError(
            f"{key}: {path} is not a file of pe-lab show: {error}; write it again, or correct it"
        ) from None
    digest = f"{len(content)} bytes, sha256 {hashlib.sha256(content).hexdigest()}"
    return FromFile(header, batch, digest)


def _rows(vocab: Sequence[str], batch: Batch) -> Iterator[str]:
    grids = _grids(batch)
    for row, tokens in enumerate(batch.tokens.tolist()):
        length = len(tokens) if batch.lengths is None else int(batch.lengths[row])
        line: dict[str, Any] = {
            "words": " ".join(vocab[token] for token in tokens[:length]),
            "tokens": tokens,
            "targets": batch.targets[row].tolist(),
            "scored": np.flatnonzero(batch.scored[row]).tolist(),
        }
        if batch.lengths is not None:
            line["length"] = length
        if grids:
            line["tags"] = {name: values[row].tolist() for name, values in grids.items()}
        yield json.dumps(line, ensure_ascii=False)


def _grids(batch: Batch) -> dict[str, Ints]:
    """Tags and position ids, under their names in a file."""
    tags = {f"tag.{name}": values for name, values in batch.tags.items()}
    return tags | {f"positions.{axis}": ids for axis, ids in batch.positions.items()}


def _decoded(content: bytes) -> tuple[dict[str, Any], Batch]:
    """The header and the sequences; ValueError where they are not of the form."""
    found = []
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            found.append(orjson.loads(line))
        except ValueError:
            raise ValueError(f"line {number} is not JSON") from None
    header, *rows = found or [None]
    header = _checked_header(header)
    if not rows:
        raise ValueError("it has no sequences")
    for number, row in enumerate(rows, start=2):
        if not isinstance(row, dict) or not row.keys() >= {"tokens", "targets", "scored"}:
            raise ValueError(f"line {number} has no tokens, targets and scored")
        if row.keys() ^ rows[0].keys() or row.get("tags", {}).keys() ^ rows[0].get("tags", {}):
            raise ValueError(f"line {number} has other keys than line 2")
    tokens = _whole_numbers([row["tokens"] for row in rows], "tokens")
    scored = np.zeros(tokens.shape, dtype=bool)
    for number, row in enumerate(rows):
        places = _whole_numbers(row["scored"] or [0], "scored")
        if not 0 <= places.min() <= places.max() < tokens.shape[-1]:
            raise ValueError(f"line {number + 2} scores a place that it does not have")
        scored[number, places] = bool(row["scored"])
    targets = _whole_numbers([row["targets"] for row in rows], "targets")
    lengths = [row["length"] for row in rows] if "length" in rows[0] else None
    grids = {
        name: _whole_numbers([row["tags"][name] for row in rows], name)
        for name in rows[0].get("tags", {})
    }
    tags, positions = (
        {name.removeprefix(prefix): a for name, a in grids.items() if name.startswith(prefix)}
        for prefix in ("tag.", "positions.")
    )
    counted = None if lengths is None else _whole_numbers(lengths, "lengths")
    in_order = bool(header["in_order"])
    return header, Batch(tokens, targets, scored, counted, tags, positions, in_order)


def _checked_header(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict) or not found.keys() >= KEYS:
        raise ValueError(f"its header is not an object with {', '.join(sorted(KEYS))}")
    if found["pe_lab_data"] != FORMAT:
        raise ValueError(f"its format is {found['pe_lab_data']}, this program reads {FORMAT}")
    vocab = found["vocab"]
    if not isinstance(vocab, list) or not vocab or not all(isinstance(w, str) for w in vocab):
        raise ValueError("the vocabulary of its header is not a list of words")
    return found


def _whole_numbers(rows: Sequence[Any], name: str) -> Ints:
    """An array of whole numbers; ValueError for other values and for rows of unequal length."""
    try:
        array = np.array(rows)
    except ValueError:
        raise ValueError(f"{name} of its sequences are not equally many") from None
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} are not whole numbers")
    return array.astype(np.int64)


def _check(words: int, batch: Batch) -> None:
    """ValueError unless the arrays fit one another and the vocabulary."""
    shape = batch.tokens.shape
    if 0 in shape or len(shape) != 2:
        raise ValueError("it has no sequences")
    arrays = {"targets": batch.targets, "scored": batch.scored, **_grids(batch)}
    for name, array in arrays.items():
        if array.shape != shape:
            raise ValueError(f"{name} has the shape {array.shape}, tokens {shape}")
    for name, array in {"tokens": batch.tokens, "targets": batch.targets}.items():
        if array.min() < 0 or array.max() >= words:
            row = int(((array < 0) | (array >= words)).any(axis=1).argmax())
            raise ValueError(
                f"sequence {row + 1} has {name} outside of the vocabulary of {words} words"
            )
    lengths = batch.lengths
    if lengths is not None and (
        lengths.shape != shape[:1] or lengths.min() < 1 or lengths.max() > shape[1]
    ):
        raise ValueError(f"a length is not from 1 to {shape[1]}")
    if not batch.scored.any():
        raise ValueError("nothing is scored in it")
