"""Sequences as a model reads them, in memory and in a file.

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from pe_lab.core.errors import reason

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
SUFFIX = ".jsonl"
FORMAT = 2
"""Version of the format."""


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
    lines = [json.dumps(dict(header), ensure_ascii=False), *_lines(header["vocab"], batch)]
    return "\n".join([*lines, ""]).encode()


def _lines(vocab: Sequence[str], batch: Batch) -> Iterator[str]:
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
        for kind, arrays in (("tags", batch.tags), ("positions", batch.positions)):
            line |= {kind: {name: values[row].tolist() for name, values in arrays.items()}}
        yield json.dumps(line, ensure_ascii=False)


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
