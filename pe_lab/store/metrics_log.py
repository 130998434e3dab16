"""metrics.jsonl: every measurement of a run, one row at a time, exact and crash-safe."""

import errno
import hashlib
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pe_lab.core.errors import DamagedError, writing
from pe_lab.store.files import REMEDY


class MetricsLog:
    """Appends rows to metrics.jsonl of one run, a JSON object on each line.

    A float reads back as the same float. NaN and infinities, which JSON lacks, become null.

    Args:
        keep: the length in bytes that the resumed checkpoint recorded; 0: start anew. Later rows
            are cut off, because they will be written again.
        digest: the digest of these bytes, as the checkpoint recorded it.
        listener: called with each row after it was written.
    """

    def __init__(
        self,
        path: Path,
        keep: int = 0,
        digest: str | None = None,
        listener: Callable[[dict[str, Any]], None] = lambda row: None,
    ) -> None:
        self.path, self.size, self.listener = path, keep, listener
        with writing(path):
            # Unbuffered: a row is with the system when write() returns, and only then.
            self._file = open(path, "a+b", buffering=0)  # noqa: SIM115
            self._file.seek(0)
            content = self._file.read()[:keep]
            self._hash = hashlib.sha256(content)
            if len(content) != keep or digest not in (None, self._hash.hexdigest()):
                self._file.close()
                raise DamagedError(
                    f"{path} does not begin with the {keep} bytes that the checkpoint was written "
                    f"after: {REMEDY}"
                )
            self._file.truncate(keep)

    @property
    def mark(self) -> tuple[int, str]:
        """How many bytes were written so far, and their digest."""
        return self.size, self._hash.hexdigest()

    def write(self, row: dict[str, Any]) -> None:
        """Append a row; one that a full disk cuts off is ignored by readers and when resumed."""
        finite = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in row.items()
        }
        line = json.dumps(finite, allow_nan=False).encode() + b"\n"
        with writing(self.path):
            if self._file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.size += len(line)
        self._hash.update(line)
        self.listener(row)

    def sync(self) -> None:
        """Put all rows on the disk: before a checkpoint, which must not count on lost ones."""
        with writing(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
