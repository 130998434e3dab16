"""metrics.jsonl: every measurement of a run, one row at a time, exact and crash-safe."""

import hashlib
import json
import math
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pe_lab.core.errors import DamagedError, writing
from pe_lab.core.files import no_link
from pe_lab.store.schema import ROW, does_not_fit, read_rows

REMEDY = "remove that line, or start the run anew with force=true"


def read_metrics(path: Path, content: bytes | None = None) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; a last line that was cut off is left out.

    Args:
        content: of the file, if it was read already.

    Raises:
        DamagedError: a line is not a row of metrics.
    """
    return read_rows(ROW, path, REMEDY, content)


class MetricsLog:
    """metrics.jsonl of one run: a JSON object a line, opened for appending.

    A float reads back as the same float. NaN and infinities, which JSON lacks, become null.

    Args:
        keep: the length in bytes that the checkpoint being resumed recorded; 0: start anew. The
            file is cut back to it, as later rows will be written again.
        digest: that of these bytes, as the checkpoint recorded it.
    """

    def __init__(self, path: Path, keep: int, digest: str | None = None) -> None:
        self.path = path
        # What is called with each row once it is written.
        self.listener: Callable[[dict[str, Any]], None] = lambda row: None
        with writing(path):
            # Unbuffered: a row is with the system when write() returns, and only then.
            self._file = open(path, "a+b", buffering=0, opener=no_link)  # noqa: SIM115
            self._file.seek(0)
            content = self._file.read()
            self.size = keep
            if content[: self.size].rfind(b"\n") + 1 != self.size:
                self._file.close()
                raise DamagedError(
                    f"{path} ({len(content)} bytes) does not hold the {keep} bytes of whole rows "
                    "that the checkpoint was written after: put the file back, or start the run "
                    "anew with force=true"
                )
            self._hash = hashlib.sha256(content[: self.size])
            if digest not in (None, self.mark[1]):
                self._file.close()
                raise DamagedError(does_not_fit(path, "digest in the checkpoint"))
            self._file.truncate(self.size)

    @property
    def mark(self) -> tuple[int, str]:
        """How many bytes were written so far, and their digest."""
        return self.size, self._hash.hexdigest()

    def write(self, row: dict[str, Any]) -> None:
        """Append a row; one that does not fit on the disk leaves the file as it was."""
        plain = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in row.items()
        }
        line = json.dumps(plain, allow_nan=False).encode() + b"\n"
        rest = line
        with writing(self.path):
            try:
                while rest:
                    rest = rest[self._file.write(rest) :]
            except OSError:
                with suppress(OSError):
                    self._file.truncate(self.size)
                raise
        self.size += len(line)
        self._hash.update(line)
        self.listener(row)

    def sync(self) -> None:
        """Put all rows on the disk: before a checkpoint, which must not count on lost ones."""
        with writing(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
