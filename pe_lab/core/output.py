"""Standard output that may be closed or full, and text that is safe on a terminal."""

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

# C0 and C1 without tab and newline, and the marks that reorder bidirectional text.
_UNSAFE = [*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F),
           *range(0x2066, 0x206A)]  # fmt: skip
_ESCAPED = {code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" for code in _UNSAFE}


def printable(text: str) -> str:
    """The text with control characters escaped: a terminal would obey them."""
    return text.translate(_ESCAPED)


class Output:
    """A text stream that discards its output after an error, such as a closed pipe or a full disk.

    Attributes:
        error: the first error; None before one.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.error: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        self._attempt(self.stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._attempt(self.stream.flush)

    def _attempt(self, function: Callable[..., Any], *arguments: Any) -> None:
        try:
            function(*arguments)
        except OSError as error:
            self.error = self.error or error
            # What is buffered would fail again when the interpreter exits.
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())


@contextmanager
def tolerant_output() -> Iterator[Output]:
    """``sys.stdout`` as an ``Output``."""
    for stream in (sys.stdout, sys.stderr):
        # A character that the locale's encoding lacks becomes a question mark.
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="replace")
    before = sys.stdout
    sys.stdout = output = Output(before or io.StringIO())
    try:
        yield output
        output.flush()
    finally:
        sys.stdout = before


def counted(n: int, what: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
