"""Ctrl-C, SIGTERM and SIGHUP stop a run where it can be resumed, and keep a sweep from starting
jobs."""

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
Handler = Callable[[int, FrameType | None], None]


class _Process:
    """The state of this process, shared by all runs and sweeps in it."""

    received: int | None = None
    """The first signal."""
    depth = 0
    """How many ``stop_on_signal`` are nested."""
    is_worker = False


def get_interrupt() -> Interrupted | None:
    """Return the exception to raise after a signal; None before one."""
    return None if _Process.received is None else Interrupted(_Process.received)


def _receive(signum: int, frame: FrameType | None) -> None:
    # A worker receives Ctrl-C from the terminal and again from its launcher.
    if _Process.received is not None and not _Process.is_worker:
        raise Interrupted(signum)
    _Process.received = _Process.received or signum


@contextmanager
def stop_on_signal(handler: Handler = _receive) -> Iterator[None]:
    """Within this context the first signal is noted, for ``get_interrupt``; a second one raises
    Interrupted. The outermost exit clears it."""
    previous_handlers: dict[int, object] = {}
    _Process.depth += 1
    # Python lets only the main thread set handlers.
    if threading.current_thread() is threading.main_thread():
        # nohup ignores SIGHUP, and ``&`` in a script SIGINT. SIGUSR2 is handled by submitit: SLURM
        # will stop this job soon and requeue it.
        handled = [s for s in _SIGNALS if signal.getsignal(s) is not signal.SIG_IGN]
        handled += [signal.SIGUSR2] if callable(signal.getsignal(signal.SIGUSR2)) else []
        previous_handlers = {number: signal.signal(number, handler) for number in handled}
    try:
        yield
    finally:
        for number, previous in previous_handlers.items():
            signal.signal(number, previous)  # type: ignore[arg-type]
        _Process.depth -= 1
        if _Process.depth == 0:
            received, _Process.received = _Process.received, None
            if received == signal.SIGUSR2:
                # It ends the process, so only once the checkpoint is written.
                previous_handlers[received](received, None)  # type: ignore[operator]


@contextmanager
def pass_signals_on() -> Iterator[None]:
    """For a launcher of worker processes: a signal is noted and passed on to them, and this
    process waits until they have finished; a second signal ends it at once."""

    def handle(signum: int, frame: FrameType | None) -> None:
        if _Process.received is not None:
            raise Interrupted(signum)
        _Process.received = signum
        logger.warning("stopping: what runs writes its checkpoint (once more: end at once)")
        for child in multiprocessing.active_children():
            with suppress(ProcessLookupError):
                os.kill(child.pid or 0, signal.SIGTERM)

    with stop_on_signal(handle):
        yield


def become_worker(launcher: int) -> None:
    """Make this process a worker of the process ``launcher``: signals are noted, now and between
    jobs, and it ends when the launcher is killed."""
    _Process.is_worker, _Process.depth = True, 1
    for number in _SIGNALS:
        signal.signal(number, _receive)
    threading.Thread(target=_follow, args=(launcher,), name="follow", daemon=True).start()


def _follow(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(0.5)
    os._exit(128 + signal.SIGTERM)
