"""Ctrl-C, SIGTERM and SIGHUP stop a run where it can be resumed, and keep a sweep from starting
jobs."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from pe_lab.core.console import logger
from pe_lab.core.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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


def raise_interrupt() -> None:
    """Raise Interrupted after a signal."""
    if (stop := get_interrupt()) is not None:
        raise stop


def _receive(signum: int, frame: FrameType | None) -> None:
    """Note the first signal and pass it on to worker processes, which write their checkpoints."""
    # A worker receives Ctrl-C from the terminal and again from its launcher.
    if _Process.received is not None and not _Process.is_worker:
        raise Interrupted(signum)
    if not _Process.is_worker:
        logger.warning("stopping: what is done is kept (once more: end at once)")
    _Process.received = _Process.received or signum
    for child in multiprocessing.active_children():
        with suppress(ProcessLookupError):
            os.kill(child.pid or 0, signal.SIGTERM)


@contextmanager
def stop_on_signal() -> Iterator[None]:
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
        previous_handlers = {number: signal.signal(number, _receive) for number in handled}
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


def become_worker(launcher: int) -> None:
    """Make this process a worker of the process ``launcher``: signals are noted, now and between
    jobs, and it ends when the launcher is killed."""
    _Process.is_worker, _Process.depth = True, 1
    # As in ``stop_on_signal``: a worker inherits what nohup ignores.
    for number in (s for s in _SIGNALS if signal.getsignal(s) is not signal.SIG_IGN):
        signal.signal(number, _receive)
    threading.Thread(target=_follow, args=(launcher,), name="follow", daemon=True).start()


def _follow(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(0.5)
    os._exit(128 + signal.SIGTERM)
