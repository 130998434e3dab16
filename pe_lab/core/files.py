"""Files are written atomically: a kill leaves the old file or the new one."""

import os
import secrets
from pathlib import Path

from pe_lab.core.errors import writing


def replace_file(path: Path, *parts: bytes | memoryview) -> None:
    """Write a file atomically: to a new temporary file, flushed to disk, then renamed.

    Of several writers, the last one's file stays.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(temporary, "xb") as handle:
            handle.writelines(parts)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_output(path: Path, content: bytes) -> None:
    """Write what a user asked for with ``to=``, atomically, in a folder that may be new.

    Raises:
        MachineError: it cannot be written.
    """
    with writing(path, "another to="):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
