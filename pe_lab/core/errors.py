"""Errors shown to users: one sentence and an exit status."""

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


class DamagedError(RunError):
    """A file that was read back is not as it was written; it is left as it is."""


class HeldError(RunError):
    """Another process is writing the run's folder."""


class Interrupted(BaseException):
    """A run was stopped by a signal and has written its checkpoint (exit status 128 + signal).

    Not an ``Exception``, so that a sweep stops too and Hydra does not catch it.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum
        self.exit_status = 128 + signum


@contextmanager
def writing(
    path: Path, choose: str = "another runs_dir, then run the same command again"
) -> Iterator[None]:
    """An OSError inside is one of a file that cannot be written.

    Args:
        choose: what may be chosen instead of making room.
    """
    try:
        yield
    except OSError as error:
        raise MachineError(
            f"{path} cannot be written ({error.strerror}): make room there or choose {choose}"
        ) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether PyTorch or NumPy failed to allocate memory, on a GPU or on a CPU."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return any(words in str(error) for words in ("DefaultCPUAllocator", "not enough memory"))


def by_machine(error: BaseException) -> bool:
    """Whether a run failed by its machine and not by its numbers: the same may succeed later."""
    return isinstance(error, (OSError, MachineError, DamagedError)) or is_out_of_memory(error)


def sentence(error: BaseException) -> str:
    """The message of an error, with its type where it is not one of ours."""
    if isinstance(error, PeLabError):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def reason(error: BaseException) -> str:
    """A library's error as part of a sentence: one line of at most 300 characters."""
    return " ".join(str(error).split()).rstrip(".")[:300] or type(error).__name__
