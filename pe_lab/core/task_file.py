"""Sequences of a task in a file: ``.jsonl``, ``.npz`` or ``.txt``, with a header to make it again.

All three hold the same: tokens, targets and what is scored, (N, T) each, the number of real tokens,
tags and position ids, and the header's vocabulary. What is written is read back equal.

- ``.jsonl``: the header, then an object a sequence: ``words`` (of the real tokens, to look at),
  ``tokens``, ``targets`` (numbers of words), ``scored`` (places, from 0), ``length``, ``tags``.
- ``.npz``: arrays of these names, ``tag.NAME``, ``positions.AXIS``; ``header`` is a JSON text.
- ``.txt``: ``#`` and the header, then a line a sequence: words of the tokens, of the targets, for
  each 1 where it is scored, else 0, the length, and tags as tag.NAME=1,2,..; between them tabs.
"""

import hashlib
import io
import json
from typing import Any

import numpy as np

from pe_lab.common.files import read_file
from pe_lab.core.sequence_lines import from_json_lines, from_text_lines, json_lines, text_lines
from pe_lab.core.sequences import Sequences, checked_header, tags_and_positions, whole_numbers

SUFFIXES = (".jsonl", ".npz", ".txt")


def encoded(sequences: Sequences, suffix: str) -> bytes:
    """The content of a file of this kind."""
    if suffix == ".npz":
        return _npz(sequences)
    lines = json_lines(sequences) if suffix == ".jsonl" else text_lines(sequences)
    return "\n".join([*lines, ""]).encode()


def read(key: str, path: str) -> tuple[Sequences, str]:
    """The sequences of a file, and its digest: size and sha256.

    Args:
        key: the configuration key that names it.

    Raises:
        ValueError: it cannot be read, or is not of the form.
    """
    try:
        content = read_file(path)
    except OSError as error:
        raise ValueError(
            f"{key} names {path}, which cannot be read ({error.strerror}); give the path of a file "
            "that pe-lab data wrote"
        ) from error
    kind = next((suffix for suffix in SUFFIXES if path.endswith(suffix)), None)
    try:
        if kind is None:
            raise ValueError(f"its name ends in none of {', '.join(SUFFIXES)}")
        decode = {".npz": _from_npz, ".jsonl": from_json_lines, ".txt": from_text_lines}[kind]
        found = decode(content)
        _check(found)
    except ValueError as error:
        raise ValueError(
            f"{key}: {path} is not a file of pe-lab data: {error}; write it again, or correct it"
        ) from None
    return found, f"{len(content)} bytes, sha256 {hashlib.sha256(content).hexdigest()}"


def _check(found: Sequences) -> None:
    """ValueError unless the arrays fit one another and the vocabulary."""
    shape, words = found.tokens.shape, len(found.header["vocab"])
    if 0 in shape or len(shape) != 2:
        raise ValueError("it has no sequences")
    for name, array in {"targets": found.targets, "scored": found.scored, **found.grids()}.items():
        if array.shape != shape:
            raise ValueError(f"{name} has the shape {array.shape}, tokens {shape}")
    for name, array in {"tokens": found.tokens, "targets": found.targets}.items():
        if array.min() < 0 or array.max() >= words:
            row = int(((array < 0) | (array >= words)).any(axis=1).argmax())
            raise ValueError(
                f"sequence {row + 1} has {name} outside of the vocabulary of {words} words"
            )
    if found.lengths is not None:
        lengths = found.lengths
        if lengths.shape != shape[:1] or lengths.min() < 1 or lengths.max() > shape[1]:
            raise ValueError(f"a length is not from 1 to {shape[1]}")
    if not found.scored.any():
        raise ValueError("nothing is scored in it")


def _npz(sequences: Sequences) -> bytes:
    arrays: dict[str, Any] = {
        "header": np.array(json.dumps(dict(sequences.header), ensure_ascii=False)),
        "tokens": sequences.tokens,
        "targets": sequences.targets,
        "scored": sequences.scored,
        **sequences.grids(),
    }
    if sequences.lengths is not None:
        arrays["lengths"] = sequences.lengths
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def _from_npz(content: bytes) -> Sequences:
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except Exception:  # of zip, zlib, tokenize, ..: whatever the damage comes to
        raise ValueError("it is not an archive of arrays") from None
    if missing := {"header", "tokens", "targets", "scored"} - arrays.keys():
        raise ValueError(f"it has no array {min(missing)}")
    try:
        header = json.loads(str(arrays.pop("header")))
    except ValueError:
        raise ValueError("its header is not JSON") from None
    scored = arrays.pop("scored")
    if scored.dtype != np.bool_:
        raise ValueError("scored is not true or false")
    numbers = {name: whole_numbers(array, name) for name, array in arrays.items()}
    return Sequences(
        checked_header(header),
        numbers.pop("tokens"),
        numbers.pop("targets"),
        scored,
        numbers.pop("lengths", None),
        *tags_and_positions(numbers),
    )
