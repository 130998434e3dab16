"""A text file of any size as a sequence of characters or bytes.

It is read once, for its alphabet, its digest and one byte offset for every ``BLOCK`` characters;
windows are then read from the file.
"""

import codecs
import hashlib
import os
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt

from pe_lab.core.errors import MachineError, RunError
from pe_lab.core.task import Ints

Unit = Literal["characters", "bytes"]

READ_AT_ONCE = 1 << 22  # bytes
BLOCK = 4096
"""Characters between two recorded offsets: 2 MB for a file of 1 GB."""
CODE_POINTS = 0x110000
LONGEST = 4
"""Bytes of the longest character in utf-8."""


@dataclass(frozen=True, eq=False)
class TextFile:
    """A file that has been read once.

    Args:
        stamp: its size and time of change at that time.
        digest: size and sha256.
        length: characters, or bytes.
        alphabet: the characters or bytes that occur, ascending; a token's number is its place.
        offsets: the byte at which every ``BLOCK``-th character begins; None: every byte is one.
    """

    path: str
    unit: Unit
    stamp: tuple[int, int]
    digest: str
    length: int
    alphabet: tuple[int, ...]
    offsets: Ints | None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The name of each token: itself, ␣ for a space, an escape if it is not printable."""
        return tuple(called(code, self.unit) for code in self.alphabet)

    def windows(self, starts: Ints, length: int) -> Ints:
        """(n, length): the tokens from each start on.

        Raises:
            RunError: the file has changed.
        """
        rows = np.empty((len(starts), length), dtype=np.int64)
        try:
            with open(self.path, "rb", buffering=0) as file:
                if _stamp(os.fstat(file.fileno())) != self.stamp:
                    raise RunError(f"{self.path} was changed while the run read it: put it back")
                for row, start in enumerate(starts):
                    rows[row] = self._codes(file, int(start), length)
        except OSError as error:
            message = f"{self.path} cannot be read any more ({error.strerror})"
            raise MachineError(message) from None
        return np.searchsorted(np.array(self.alphabet), rows)

    def _codes(self, file: BinaryIO, start: int, length: int) -> npt.NDArray[Any]:
        if self.offsets is None:
            return np.frombuffer(os.pread(file.fileno(), length, start), dtype=np.uint8)
        block, within = divmod(start, BLOCK)
        # Up to the offset after the last character; the rest is cut off.
        behind = -(-(start + length) // BLOCK)
        begin = int(self.offsets[block])
        end = int(self.offsets[behind]) if behind < len(self.offsets) else self.stamp[0]
        text = os.pread(file.fileno(), end - begin, begin).decode()
        return _code_points(text[within : within + length])


def read_text(key: str, path: str, unit: Unit) -> TextFile:
    """The file, read once in a process as long as it does not change.

    Args:
        key: the configuration key that names it, for messages.

    Raises:
        ValueError: it cannot be read, is empty or, for characters, no utf-8.
    """
    try:
        # Before it is read: a change in between is then noticed later.
        stat = Path(path).stat()
        if not S_ISREG(stat.st_mode):
            kind = "a folder" if S_ISDIR(stat.st_mode) else "not a regular file"
            raise ValueError(f"{key}={path} is {kind}; give the path of a text file")
        return _scan(key, path, unit, _stamp(stat))
    except OSError as error:
        raise ValueError(
            f"{key}={path} cannot be read ({error.strerror}); give the path of a text file"
        ) from None


@lru_cache(maxsize=16)
def _scan(key: str, path: str, unit: Unit, stamp: tuple[int, int]) -> TextFile:
    sha256, seen = hashlib.sha256(), np.zeros(CODE_POINTS, dtype=bool)
    offsets: list[Ints] = []
    size = characters = 0
    left = b""
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(READ_AT_ONCE):
            sha256.update(piece)
            if unit == "bytes":
                size += len(piece)
                seen[np.frombuffer(piece, dtype=np.uint8)] = True
                continue
            whole = left + piece
            text, used = _decoded(key, path, whole, size, final=False)
            seen[_code_points(text)] = True
            offsets.append(size + _starts(whole[:used])[-characters % BLOCK :: BLOCK])
            left, size, characters = whole[used:], size + used, characters + len(text)
    if left:
        _decoded(key, path, left, size, final=True)
    if not size:
        raise ValueError(f"{key}={path} is empty; give a text file")
    length = size if unit == "bytes" else characters
    kept = None if size == length else np.concatenate(offsets)
    alphabet = tuple(int(code) for code in np.flatnonzero(seen))
    digest = f"{size} bytes, sha256 {sha256.hexdigest()}"
    return TextFile(path, unit, stamp, digest, length, alphabet, kept)


def _decoded(key: str, path: str, piece: bytes, before: int, final: bool) -> tuple[str, int]:
    """The piece as text, without a character that its end cuts, and the bytes of that text."""
    try:
        return codecs.utf_8_decode(piece, "strict", final)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{key}={path} is not UTF-8: byte {before + error.start} is "
            f"0x{piece[error.start]:02x} ({error.reason}); convert the file, or set "
            "task.unit=bytes"
        ) from None


def _starts(piece: bytes) -> Ints:
    """The indices where characters begin: every byte but continuation bytes."""
    return np.flatnonzero(np.frombuffer(piece, dtype=np.uint8) & 0xC0 != 0x80)


def _code_points(text: str) -> npt.NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")


def _stamp(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_size, stat.st_mtime_ns


def called(code: int, unit: Unit) -> str:
    """The name of a character or byte: itself, or a printable name."""
    if unit == "bytes" and code > 0x7F:
        return f"\\x{code:02x}"
    character = chr(code)
    if character == " ":
        return "␣"
    if character.isprintable() and character != "␣":
        return character
    return character.encode("unicode_escape").decode()
