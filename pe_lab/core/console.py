"""Output: console, log lines and progress."""

import functools
import logging
import sys
import time
from contextlib import AbstractContextManager, nullcontext

from rich.console import Console
from rich.logging import RichHandler

logger = logging.getLogger("pe_lab")
LINE_INTERVAL_S = 10.0


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave the exit status to the program; rich ends it with 1."""
        raise BrokenPipeError


@functools.cache
def console() -> Console:
    """The console of this process, shared so that tables and log lines do not mix; 160 columns wide
    where the output is not a terminal."""
    return _Console(
        width=None if sys.stdout.isatty() else 160, highlight=False, markup=False, emoji=False
    )


def log_handler() -> logging.Handler:
    """Log lines from INFO on; plain where the output is not a terminal."""
    # A closed pipe ends no run.
    logging.raiseExceptions = False
    handler: logging.Handler = logging.StreamHandler(sys.stdout)
    if console().is_terminal:
        handler = RichHandler(console=console(), show_time=False, show_level=False, show_path=False)
    handler.setLevel(logging.INFO)
    return handler


def busy(what: str) -> AbstractContextManager[object]:
    """Shows what is waited for, on a terminal and as long as it takes."""
    return console().status(what) if console().is_terminal else nullcontext()


class StepProgress:
    """Logs step, loss, steps per second and the time left every few seconds."""

    def __init__(
        self, name: str, steps: int, start: int, line_every: float = LINE_INTERVAL_S
    ) -> None:
        self.name, self.steps, self.start, self.line_every = name, steps, start, line_every
        self.began = self.line_at = time.monotonic()

    def step(self, step: int, loss: float) -> None:
        """Log the step and the last logged loss (nan before the first), if a line is due."""
        now = time.monotonic()
        if now - self.line_at >= self.line_every:
            self.line_at = now
            rate = (step - self.start) / (now - self.began)
            logger.info(
                "%s  step %d/%d  loss %s  %.1f steps/s  %.0f s left",
                self.name, step, self.steps, f"{loss:.4f}".replace("nan", "-"), rate,
                (self.steps - step) / rate,
            )  # fmt: skip


def percent(share: float | None) -> str:
    """A share as a percentage with enough digits to tell 0.03 from 0."""
    if share is None:
        return "-"
    # Less than a rounding error of a float is 0: older runs have bounds such as 5e-20.
    return f"{100 * share:.2f}" if 1e-16 < share < 0.1 else f"{100 * share:.1f}"
