"""Work by others that may hang: waited for so long and no longer."""

import threading
from collections.abc import Callable
from typing import Any


def bounded(work: Callable[[], Any], seconds: float) -> tuple[Any, BaseException | None]:
    """What ``work`` returned, or what it raised; after ``seconds`` it is left to itself."""
    outcome: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        try:
            outcome.append((work(), None))
        # wandb calls sys.exit where its own process ended badly. Signals reach the main
        # thread, which waits below, so an interrupt is never caught here.
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, name="wandb", daemon=True)
    thread.start()
    thread.join(seconds)
    return outcome[0] if outcome else (None, TimeoutError(f"no answer within {seconds:g} s"))
