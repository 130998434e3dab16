"""Sequences as lines: ``.jsonl`` and ``.txt`` of ``task_file``."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson

from pe_lab.core.sequences import Sequences, checked_header, tags_and_positions, whole_numbers


def json_lines(sequences: Sequences) -> Iterator[str]:
    """The lines of a ``.jsonl``."""
    vocab = sequences.header["vocab"]
    yield json.dumps(dict(sequences.header), ensure_ascii=False)
    grids = sequences.grids()
    for row, tokens in enumerate(sequences.tokens.tolist()):
        length = len(tokens) if sequences.lengths is None else int(sequences.lengths[row])
        line: dict[str, Any] = {
            "words": " ".join(vocab[token] for token in tokens[:length]),
            "tokens": tokens,
            "targets": sequences.targets[row].tolist(),
            "scored": np.flatnonzero(sequences.scored[row]).tolist(),
        }
        if sequences.lengths is not None:
            line["length"] = length
        if grids:
            line["tags"] = {name: values[row].tolist() for name, values in grids.items()}
        yield json.dumps(line, ensure_ascii=False)


def from_json_lines(content: bytes) -> Sequences:
    """What a ``.jsonl`` holds; ValueError where it is none."""
    lines = content.splitlines()
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(orjson.loads(line))
        except ValueError:
            raise ValueError(f"line {number} is not JSON") from None
    header, *rows = found or [None]
    header = checked_header(header)
    if not rows:
        raise ValueError("it has no sequences")
    for number, row in enumerate(rows, start=2):
        if not isinstance(row, dict) or not row.keys() >= {"tokens", "targets", "scored"}:
            raise ValueError(f"line {number} has no tokens, targets and scored")
        if row.keys() ^ rows[0].keys() or row.get("tags", {}).keys() ^ rows[0].get("tags", {}):
            raise ValueError(f"line {number} has other keys than line 2")
    tokens = whole_numbers([row["tokens"] for row in rows], "tokens")
    scored = np.zeros(tokens.shape, dtype=bool)
    for number, row in enumerate(rows):
        places = whole_numbers(row["scored"] or [0], "scored")
        if not 0 <= places.min() <= places.max() < tokens.shape[-1]:
            raise ValueError(f"line {number + 2} scores a place that it does not have")
        scored[number, places] = bool(row["scored"])
    return Sequences(
        header,
        tokens,
        whole_numbers([row["targets"] for row in rows], "targets"),
        scored,
        whole_numbers([row["length"] for row in rows], "lengths") if "length" in rows[0] else None,
        *tags_and_positions(
            {
                name: whole_numbers([row["tags"][name] for row in rows], name)
                for name in rows[0].get("tags", {})
            }
        ),
    )


def text_lines(sequences: Sequences) -> Iterator[str]:
    """The lines of a ``.txt``."""
    vocab = sequences.header["vocab"]
    if wrong := next((word for word in vocab if not word or word.split() != [word]), None):
        raise ValueError(f"the word {wrong!r} of the vocabulary does not fit a .txt")
    yield "# " + json.dumps(dict(sequences.header), ensure_ascii=False)
    grids = sequences.grids()
    for row, (tokens, targets) in enumerate(
        zip(sequences.tokens.tolist(), sequences.targets.tolist(), strict=True)
    ):
        length = "" if sequences.lengths is None else str(sequences.lengths[row])
        tags = [f"{name}={','.join(map(str, values[row]))}" for name, values in grids.items()]
        words = [" ".join(vocab[token] for token in side) for side in (tokens, targets)]
        marks = "".join("1" if scored else "0" for scored in sequences.scored[row])
        yield "\t".join([*words, marks, length, *tags])


def from_text_lines(content: bytes) -> Sequences:
    """What a ``.txt`` holds; ValueError where it is none."""
    try:
        first, *lines = content.decode().split("\n")
        header = json.loads(first.removeprefix("# "))
    except ValueError:
        raise ValueError("its first line is not # and a header in JSON") from None
    number_of = {word: number for number, word in enumerate(checked_header(header)["vocab"])}
    rows: dict[str, list[Any]] = {}
    for number, line in enumerate(filter(None, lines), start=2):
        try:
            words, answers, marks, length, *tags = line.split("\t")
            row: dict[str, Any] = {
                "tokens": [number_of[word] for word in words.split(" ")],
                "targets": [number_of[word] for word in answers.split(" ")],
                "scored": [int(mark) for mark in marks],
                **({"lengths": int(length)} if length else {}),
            }
            for tag in tags:
                name, _, values = tag.partition("=")
                row[name] = [int(value) for value in values.split(",")]
        except KeyError as error:
            raise ValueError(f"line {number} has {error}, which is no word of its header") from None
        except ValueError:
            raise ValueError(
                f"line {number} is not words, words, 0 and 1, a length, tags"
            ) from None
        if rows and rows.keys() ^ row.keys():
            raise ValueError(f"line {number} has other columns than line 2")
        for name, value in row.items():
            rows.setdefault(name, []).append(value)
    arrays = {name: whole_numbers(values, name) for name, values in rows.items()}
    if not arrays:
        raise ValueError("it has no sequences")
    tokens, targets, scored = (arrays.pop(name) for name in ("tokens", "targets", "scored"))
    lengths = arrays.pop("lengths", None)
    return Sequences(header, tokens, targets, scored == 1, lengths, *tags_and_positions(arrays))
