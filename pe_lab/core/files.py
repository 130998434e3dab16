"""Files: read whole if regular, written atomically, and never written through a link."""

import errno
import os
import re
import secrets
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from pe_lab.core.errors import UsageError

PART = re.compile(r"\..+\.[0-9a-f]{8}\.part")
"""The names of the temporary files of ``replace_file``."""
LEFTOVER_S = 3600.0


def read_file(path: str | Path) -> bytes:
    """The content of a regular file.

    Raises:
        FileNotFoundError: there is none.
        OSError: it is not a regular file; a pipe or a device may have no end.
    """
    try:
        # Without O_NONBLOCK, opening a pipe waits for its writer.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        if Path(path).is_symlink():
            raise OSError(errno.ELOOP, "a link to nothing", str(path)) from None
        raise
    with open(descriptor, "rb", buffering=0) as file:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file.read()


def no_link(path: str, flags: int) -> int:
    """An ``opener`` of ``open`` that refuses a link (ELOOP), and does not wait for a pipe."""
    options = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    return os.open(path, flags | options, 0o666)


def replace_file(path: Path, *parts: bytes | memoryview) -> None:
    """Write a file atomically: to a new temporary file, flushed to disk, then renamed.

    Of several writers, the last one's file stays. A link is replaced, its target left alone.
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
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left in a folder of files that they were writing, an hour ago or
    earlier: a living process takes seconds."""
    for path in folder.glob(".*.part") if folder.is_dir() else ():
        with suppress(OSError):
            if PART.fullmatch(path.name) and time.time() - path.lstat().st_mtime > LEFTOVER_S:
                path.unlink()


def write_new_file(path: Path, content: bytes) -> None:
    """As ``replace_file``; FileExistsError if there is a file already."""
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    replace_file(path, content)


def check_folder(runs_dir: str) -> None:
    """UsageError where ``runs_dir`` is there and is no folder, or cannot be looked up."""
    path = Path(runs_dir)
    try:
        path.stat()
    except FileNotFoundError:
        # A link that leads nowhere.
        is_folder = not path.is_symlink()
    except OSError as error:
        raise UsageError(
            f"runs_dir={runs_dir} cannot be read ({error.strerror}): choose another folder"
        ) from None
    else:
        is_folder = path.is_dir()
    if not is_folder:
        raise UsageError(f"runs_dir={runs_dir} is not a folder: choose another")


def check_writable(runs_dir: str) -> None:
    """UsageError unless run folders can be made below ``runs_dir``."""
    path = Path(runs_dir)
    try:
        path.mkdir(parents=True, exist_ok=True)
        # It has no name, so that a kill leaves nothing.
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise UsageError(
            f"runs_dir={runs_dir} cannot be written ({error.strerror}): choose another folder"
        ) from None
