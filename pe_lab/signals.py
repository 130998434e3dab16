"""Ctrl-C and SIGTERM ask the run to stop where it can be resumed."""

import signal
import threading
from types import FrameType

from pe_lab.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopOnSignal:
    """Between enter and exit the first signal is only noted, for ``stopping`` to return;
    a second one acts at once, as if nothing had been installed."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> "StopOnSignal":
        # Python lets only the main thread set handlers; elsewhere signals act as they did.
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._note) for s in _SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)  # type: ignore[arg-type]

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise Interrupted(signum)
        self.received = signum

    def stopping(self) -> Interrupted | None:
        """What to raise, once a signal has come."""
        return None if self.received is None else Interrupted(self.received)
