"""Standard output that may be closed or full, and text that is safe on a terminal."""

import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

# C0 and C1 without tab and newline, and the marks that reorder bidirectional text.
_UNSAFE = [*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F),
           *range(0x2066, 0x206A)]  # fmt: skip
_ESCAPED = {code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" for code in _UNSAFE}


def first_of(names: Sequence[str]) -> str:
    """``path``, or ``path and 2 more``."""
    first, *others = names
    return f"{first} and {len(others)} more" if others else first


def printable(text: str) -> str:
    """The text with control characters escaped: a terminal would obey them."""
    return text.translate(_ESCAPED)


class Output:
    """A text stream that discards its output after an error: a closed pipe, a full disk, a terminal
    that is gone.

    Attributes:
        error: the first error; None before one.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.error: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        try:
            self.stream.write(text)
        except OSError as error:
            self._discard(error)
        return len(text)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except OSError as error:
            self._discard(error)

    def _discard(self, error: OSError) -> None:
        self.error = self.error or error
        # What is buffered would fail again when the interpreter exits.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())


@contextmanager
def tolerant_output() -> Iterator[Output]:
    """``sys.stdout`` as an ``Output``; standard streams that are closed are replaced by devnull, as
    the next opened file would take their place."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # A character that the locale's encoding lacks becomes a question mark.
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="replace")
    before = sys.stdout
    sys.stdout = output = Output(before)
    try:
        yield output
        output.flush()
    finally:
        sys.stdout = before


def counted(n: int, what: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
