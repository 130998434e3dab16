"""Ctrl-C, SIGTERM and SIGHUP stop a run where it can be resumed, and keep a sweep from starting
jobs."""

import _thread
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from pe_lab.core.console import logger
from pe_lab.core.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Process:
    """The state of this process, shared by all runs and sweeps in it.

    ``noted`` is the signal received, ``depth`` the number of nested StopOnSignal, ``launcher`` the
    process id of a worker's launcher, ``busy`` whether the worker is doing a job.
    """

    def __init__(self) -> None:
        self.noted: int | None = None
        self.depth = 0
        self.launcher: int | None = None
        self.busy = False


_here = _Process()


def _heeded() -> list[signal.Signals]:
    """Those that are not ignored, as nohup does with SIGHUP and ``&`` in a script with SIGINT."""
    return [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


def stopping() -> Interrupted | None:
    """The exception to raise after a signal; None before one."""
    return None if _here.noted is None else Interrupted(_here.noted)


class StopOnSignal:
    """Within this context the first signal is only noted, for ``stopping``; a second one raises
    Interrupted. The outermost exit clears it."""

    def __init__(self, handler: Callable[[int, FrameType | None], None] | None = None) -> None:
        self._handler = handler or _note
        self._before: dict[int, object] = {}

    def __enter__(self) -> "StopOnSignal":
        _here.depth += 1
        # Python lets only the main thread set handlers.
        if threading.current_thread() is threading.main_thread():
            # submitit's handler: SLURM will stop this job soon and requeue it.
            requeue = [signal.SIGUSR2] if callable(signal.getsignal(signal.SIGUSR2)) else []
            self._before = {s: signal.signal(s, self._handler) for s in (*_heeded(), *requeue)}
        return self

    def __exit__(self, *error: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)  # type: ignore[arg-type]
        _here.depth -= 1
        if _here.depth == 0:
            noted, _here.noted = _here.noted, None
            if noted == signal.SIGUSR2:
                # It ends the process, so only once the checkpoint is written.
                self._before[noted](noted, None)  # type: ignore[operator]


def _note(signum: int, frame: FrameType | None) -> None:
    # A worker receives Ctrl-C from the terminal and again from its launcher.
    if _here.noted is not None and _here.launcher is None:
        raise Interrupted(signum)
    _here.noted = _here.noted or signum


@contextmanager
def passing_to_workers() -> Iterator[None]:
    """For a launcher of worker processes: a signal is noted and passed on to them, and this
    process waits until they have finished; a second signal ends it at once.

    A pool that loses a worker kills the others while they may be writing. A worker must therefore
    survive signals while it starts: they are blocked here, and in the children, which inherit the
    mask, until ``begin_worker`` handles them. A thread waits for them here; threads of numerical
    libraries may still receive one, which then reaches the handler.
    """
    done, signals = threading.Event(), _heeded()

    def watch() -> None:
        while True:
            signum = signal.sigwait(signals)
            if done.is_set():
                return
            if not _passed_on(signum):
                _thread.interrupt_main(signal.Signals(signum))

    def handle(signum: int, frame: FrameType | None) -> None:
        if not _passed_on(signum):
            raise Interrupted(signum)

    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
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
    """Note the signal and send SIGTERM to the workers; False if it is not the first."""
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


def begin_worker(launcher: int) -> None:
    """Make this process a worker of the process ``launcher``: signals are noted, now and between
    jobs; if the launcher dies, a job is stopped as by a signal and the worker ends.

    At the start of a worker: one whose launcher dies before it sends a job would wait for minutes.
    """
    if _here.launcher is None:
        _here.launcher = launcher
        StopOnSignal().__enter__()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        threading.Thread(target=_follow, args=(launcher,), name="follow", daemon=True).start()


@contextmanager
def as_worker(launcher: int) -> Iterator[None]:
    """Do a job as a worker of the process ``launcher`` (see ``begin_worker``)."""
    begin_worker(launcher)
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
    # No process is left to read the result.
    os._exit(128 + signal.SIGTERM)
