"""Atomic writes."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any


def replace_file(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Write a file atomically: to a temporary file, flushed to disk, then renamed."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        with open(temporary, "wb") as handle:
            write(handle)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
