"""Errors shown to users: one sentence and an exit status."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class PeLabError(Exception):
    """A failure that one sentence explains; its subclasses name the exit status.

    The message names the value, the key, the limit and the remedy. It takes one
    argument, so that it pickles across worker processes.
    """

    exit_status = 1


class UsageError(PeLabError):
    """The request itself is wrong; nothing was done (exit status 2)."""

    exit_status = 2


class RunError(PeLabError):
    """The work was begun and could not be finished (exit status 1)."""


class MachineError(RunError):
    """The machine refused, for example because the disk is full: the same may succeed later."""


OF_MACHINE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}
    | {errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOBUFS}
    | {errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.ENOLCK}
)
"""Numbers of an ``OSError`` for want of room, memory, processes or open files, and of a disk or a
network that fails; any other, as of a file that is not there, is an error of the code that ran."""


class DamagedError(RunError):
    """A file that was read back is not as it was written; it is left as it is."""


class HeldError(RunError):
    """Another process is writing the run's folder."""


def cannot_write(
    path: Path, error: OSError, choose: str = "another runs_dir, then run the same command again"
) -> MachineError:
    """The error for a file that cannot be written.

    Args:
        choose: what may be chosen instead of making room.
    """
    if error.errno == errno.ELOOP:
        return MachineError(
            f"{path} is a link, and nothing is written through links: remove the link, then run "
            "the same command again"
        )
    if error.errno == errno.EISDIR:
        return MachineError(
            f"{path} is a folder in the place of a file: remove it, then run the same command again"
        )
    return MachineError(
        f"{path} cannot be written ({error.strerror}): make room there or choose {choose}"
    )


@contextmanager
def writing(path: Path, *choose: str) -> Iterator[None]:
    """An OSError within is that of a file that cannot be written; ``choose``: as above."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error, *choose) from error


def by_machine(error: BaseException) -> bool:
    """Whether the machine refused, so that the same may succeed later."""
    refused = isinstance(error, OSError) and error.errno in OF_MACHINE
    return refused or isinstance(error, MachineError)


def cannot_read(message: str, error: OSError) -> RunError:
    """The error for a file that a run reads, with this message."""
    return MachineError(message) if by_machine(error) else RunError(message)


def sentence(error: BaseException) -> str:
    """The message of an error, with its type where it is not one of ours."""
    if isinstance(error, PeLabError):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def reason(error: BaseException) -> str:
    """A library's error as part of a sentence: one line of at most 300 characters."""
    return " ".join(str(error).split()).rstrip(".")[:300] or type(error).__name__


class Interrupted(BaseException):
    """A run was stopped by a signal and has written its checkpoint (exit status 128 + signal).

    Not an ``Exception``, so that a sweep stops too and Hydra does not catch it.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum

    @property
    def exit_status(self) -> int:
        return 128 + self.signum
