"""Flip-Flop sequences in a text file: one per row, like ``w1i0i1r1``, all of one length.

The official training file has 1.6 million rows of 512 characters, so it is memory-mapped
and checked in pieces.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

import numpy as np
import numpy.typing as npt

Chars = npt.NDArray[np.uint8]

ALPHABET = "wri01"
CHECKED_AT_ONCE = 1 << 24  # bytes

# Kinds of characters, as flags, so that one look-up checks a row with its line end.
WRITE, READ, IGNORE, BIT, RETURN, NEWLINE = (1 << n for n in range(6))
_KINDS = {"w": WRITE, "r": READ, "i": IGNORE, "0": BIT, "1": BIT, "\r": RETURN, "\n": NEWLINE}
_KIND = bytes(_KINDS.get(chr(code), 0) for code in range(256))
INSTRUCTION = WRITE | READ | IGNORE
_NAMES = {WRITE: "w", READ: "r", INSTRUCTION: "an instruction (w, r or i)", BIT: "a bit (0 or 1)"}


@dataclass(frozen=True)
class FlipFlopText:
    """A file of sequences; ``key`` is the configuration key that names it."""

    key: str
    path: str

    @cached_property
    def digest(self) -> str:
        """Size and sha256, taken in the pass that checks the file: ValueError, with line and
        column, where it is not of the form. The 0.8 GB of the official training file take 6 s,
        0.8 s of them for the sha256, each time the task is built: before a line's first job, and
        again in each job, because a file may change while a sweep runs.
        """
        if self.width < 4 or self.width % 2:
            self._complain(0)
        stride = len(self._first_line)
        required = np.array(self._required, dtype=np.uint8)
        sha256 = hashlib.sha256()
        step = max(1, CHECKED_AT_ONCE // stride) * stride
        for start in range(0, len(self._data), step):
            piece = self._data[start : start + step].tobytes()
            sha256.update(piece)
            kinds = np.frombuffer(piece.translate(_KIND), dtype=np.uint8)
            whole = len(kinds) // stride
            wrong = (kinds[: whole * stride].reshape(whole, stride) & required == 0).any(axis=1)
            if wrong.any():
                self._complain(start // stride + int(wrong.argmax()))
            last = kinds[whole * stride :]  # the last row, where no line end follows it
            if len(last) and (len(last) != self.width or not (last & required[: len(last)]).all()):
                self._complain(start // stride + whole)
        self._check_reads()
        return f"{len(self._data)} bytes, sha256 {sha256.hexdigest()}"

    def _check_reads(self) -> None:
        """ValueError where a bit that is read is not the one before it, written or read."""
        rows, at_once = self.rows(), max(1, CHECKED_AT_ONCE // self.width)
        for start in range(0, len(rows), at_once):
            instructions, bits = (rows[start : start + at_once, i::2] for i in (0, 1))
            heeded = instructions != ord("i")
            # Each row begins with a w: none is compared with the row before it.
            bit = bits[heeded]
            wrong = (instructions[heeded] == ord("r")) & (bit != np.roll(bit, 1))
            if wrong.any():
                row, pair = (index[wrong.argmax()] for index in np.nonzero(heeded))
                raise ValueError(
                    f"{self.key}: {self.path}, line {start + row + 1}, column {2 * pair + 2} reads "
                    "another bit than the one last written: correct it"
                )

    @property
    def width(self) -> int:
        """Characters in a sequence, from the first row."""
        return len(_content(self._first_line))

    def rows(self) -> Chars:
        """The characters of the (checked) file, (sequences, width)."""
        stride = len(self._first_line)
        n = -(-len(self._data) // stride)
        shape, strides = (n, self.width), (stride, 1)
        return np.lib.stride_tricks.as_strided(self._data, shape, strides, writeable=False)

    @cached_property
    def _first_line(self) -> bytes:
        return self._line_at(0)

    @cached_property
    def _data(self) -> Chars:
        return np.memmap(self.path, dtype=np.uint8, mode="r")

    @property
    def _required(self) -> Sequence[int]:
        """For each column the flags of which its character must have one."""
        pairs = [INSTRUCTION, BIT] * (self.width // 2)
        pairs[0], pairs[-2] = WRITE, READ
        return pairs + [_KIND[code] for code in self._first_line[self.width :]]

    def _line_at(self, offset: int) -> bytes:
        try:
            with open(self.path, "rb") as file:
                file.seek(offset)
                line = file.readline()
        except OSError as error:
            raise ValueError(
                f"{self.key} names {self.path}, which cannot be read ({error.strerror}); "
                "give the path of a text file"
            ) from error
        if not line:
            raise ValueError(f"{self.key}: {self.path} is empty; give a sequence a row")
        return line

    def _complain(self, row: int) -> NoReturn:
        """ValueError for this row, the first wrong one."""
        line = self._line_at(row * len(self._first_line))
        content = _content(line)
        where = f"{self.key}: {self.path}, line {row + 1}"
        if row == 0 and (self.width < 4 or self.width % 2):
            raise ValueError(
                f"{where} has {self.width} characters; a sequence is an even number of at "
                "least 4: an instruction and a bit in turn, from a w to an r"
            )
        if len(content) != self.width:
            raise ValueError(
                f"{where} has {len(content)} characters, line 1 has {self.width}; "
                "make all rows equally long"
            )
        for column, (code, kinds) in enumerate(zip(content, self._required, strict=False), start=1):
            if not _KIND[code] & kinds:
                raise ValueError(
                    f"{where}, column {column} holds {chr(code)!r} where {_NAMES[kinds]} must "
                    "stand: a sequence is an instruction and a bit in turn, from a w to an r"
                )
        raise ValueError(f"{where} and line 1 end differently; use either LF or CRLF throughout")


def _content(line: bytes) -> bytes:
    return line.removesuffix(b"\n").removesuffix(b"\r")
