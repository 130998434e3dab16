"""Errors shown to users, one sentence and an exit status, and the words of their sentences."""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

# The most choices that a message lists; of more, the nearest few.
MOST_LISTED = 64


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


def did_you_mean(wrong: str, choices: Iterable[str]) -> str:
    """``did you mean train.steps? (choices: ..)``, or ``choose from ..`` where none is similar.

    A dotted choice is also compared by its last part: ``lr`` finds ``train.lr``.
    """
    names = sorted({*choices})
    parts = {name.rpartition(".")[2].lower(): name for name in reversed(names)}
    last = wrong.rpartition(".")[2].lower()
    near = [name for name in names if name.lower() == wrong.lower()]
    near = near or [parts[last]] if last in parts else near
    near = near or difflib.get_close_matches(wrong, names, n=1)
    near = near or [parts[part] for part in difflib.get_close_matches(last, parts, n=1)]
    if len(names) > MOST_LISTED:
        names = difflib.get_close_matches(wrong, names, n=8, cutoff=0)
    listed = ", ".join(names) or "there are none"
    return f"did you mean {near[0]}? (choices: {listed})" if near else f"choose from {listed}"


def check_known(words: str, names: Iterable[str] | None, known: Iterable[str]) -> None:
    """UsageError for the first of these names that is not known.

    Args:
        words: the sentence before the suggestion, with {} for the name: ``splits={}``.
    """
    choices = [*known]
    for name in names or ():
        if name not in choices:
            raise UsageError(f"{words.replace('{}', name)}: {did_you_mean(name, choices)}")


def counted(n: int, what: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
