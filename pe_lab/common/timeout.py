"""Bounded waiting for calls that may hang."""

import threading
from collections.abc import Callable
from typing import Any


def call_with_timeout(
    function: Callable[[], Any], seconds: float
) -> tuple[Any, BaseException | None]:
    """Run ``function`` in a daemon thread; return its result and the exception it raised.

    After ``seconds`` the exception is a TimeoutError and the thread is abandoned.
    """
    outcome: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        try:
            outcome.append((function(), None))
        # wandb calls sys.exit when its service process fails. Signals are delivered to the main
        # thread, which waits below, so a KeyboardInterrupt is never caught here.
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, name="call_with_timeout", daemon=True)
    thread.start()
    thread.join(seconds)
    return outcome[0] if outcome else (None, TimeoutError(f"no answer within {seconds:g} s"))
