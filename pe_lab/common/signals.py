"""Ctrl-C and SIGTERM ask a run to stop where it can be resumed, and a sweep to begin no other."""

import _thread
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from pe_lab.common.errors import Interrupted

logger = logging.getLogger("pe_lab")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _Process:
    """The state of this process, shared by all runs and sweeps in it.

    ``noted`` is the signal that came, ``depth`` the number of nested StopOnSignal, ``serves`` the
    process id of the launcher that this worker serves, ``busy`` whether it is doing a job.
    """

    def __init__(self) -> None:
        self.noted: int | None = None
        self.depth = 0
        self.serves: int | None = None
        self.busy = False


_here = _Process()


def stopping() -> Interrupted | None:
    """The exception to raise once a signal has come; None before."""
    return None if _here.noted is None else Interrupted(_here.noted)


class StopOnSignal:
    """Between enter and exit the first signal is only noted, for ``stopping`` to return;
    a second one acts at once. The outermost exit forgets it."""

    def __init__(self, handler: Callable[[int, FrameType | None], None] | None = None) -> None:
        self._handler = handler or _note
        self._before: dict[int, object] = {}

    def __enter__(self) -> "StopOnSignal":
        _here.depth += 1
        # Python lets only the main thread set handlers; elsewhere signals act as they did.
        if threading.current_thread() is threading.main_thread():
            # submitit's handler: SLURM will stop this job soon, and begin it again.
            requeue = [signal.SIGUSR2] if callable(signal.getsignal(signal.SIGUSR2)) else []
            self._before = {s: signal.signal(s, self._handler) for s in (*_SIGNALS, *requeue)}
        return self

    def __exit__(self, *error: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)  # type: ignore[arg-type]
        _here.depth -= 1
        if _here.depth == 0:
            noted, _here.noted = _here.noted, None
            if noted == signal.SIGUSR2:
                # Only now that the checkpoint is written: it ends the process.
                self._before[noted](noted, None)  # type: ignore[operator]


def _note(signum: int, frame: FrameType | None) -> None:
    # A worker gets Ctrl-C from the terminal and once more from its launcher.
    if _here.noted is not None and _here.serves is None:
        raise Interrupted(signum)
    _here.noted = _here.noted or signum


@contextmanager
def passing_to_workers() -> Iterator[None]:
    """For a process whose children work for it: a signal is noted and passed on to them, and
    this process goes on until they have come to an end; a second signal ends it at once.

    A pool that loses a worker kills the others, and what they were writing with them. So a
    worker must not die of a signal that comes while it starts: signals are blocked here, which
    children inherit, until ``serve`` is ready for them. A thread waits for them; one that was
    there before (numerical libraries have some) may still take them, for the handler.
    """
    done = threading.Event()

    def watch() -> None:
        while True:
            signum = signal.sigwait(_SIGNALS)
            if done.is_set():
                return
            if not _passed_on(signum):
                _thread.interrupt_main()

    def handle(signum: int, frame: FrameType | None) -> None:
        if not _passed_on(signum):
            raise Interrupted(signum)

    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    watcher = threading.Thread(target=watch, name="signals", daemon=True)
    with StopOnSignal(handle):
        watcher.start()
        try:
            yield
        finally:
            done.set()
            signal.pthread_kill(watcher.ident or 0, signal.SIGTERM)
            watcher.join()
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _passed_on(signum: int) -> bool:
    """Note the signal and tell the children; False where one had come before."""
    if _here.noted is not None:
        return False
    _here.noted = signum
    logger.warning(
        "stopping: what runs writes its checkpoint, nothing else begins (once more: end at once)"
    )
    for child in multiprocessing.active_children():
        if child.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGTERM)
    return True


@contextmanager
def serve(launcher: int) -> Iterator[None]:
    """Do a job as a worker of the process ``launcher``: signals are noted, now and between
    jobs, and so is the launcher's death, after which an idle worker ends."""
    if _here.serves is None:
        _here.serves = launcher
        StopOnSignal().__enter__()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        threading.Thread(target=_follow, args=(launcher,), name="follow", daemon=True).start()
    _here.busy = True
    try:
        yield
    finally:
        _here.busy = False


def _follow(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(0.5)
    _here.noted = _here.noted or signal.SIGTERM
    while _here.busy:
        time.sleep(0.1)
    # Nobody is left to read what this process would return.
    os._exit(128 + signal.SIGTERM)
