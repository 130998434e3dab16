"""Output: console, log lines and progress."""

import functools
import logging
import math
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TextIO, cast

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from pe_lab.core.output import Output, printable

logger = logging.getLogger("pe_lab")
LINE_INTERVAL_S = 10.0


class _Console(Console):
    def render_str(self, text: str, **options: Any) -> Text:
        """Names and messages are shown as they are, without markup and control characters."""
        return super().render_str(printable(text), **options)


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


@functools.cache
def console() -> Console:
    """The console of this process, shared so that tables, log lines and the progress bar do not
    mix; 160 columns wide where the output is not a terminal."""
    width = None if sys.stdout.isatty() else 160
    return _Console(width=width, highlight=False, markup=False, emoji=False)


def log_handler() -> logging.Handler:
    """Log lines from INFO on, above the progress bar; plain where the output is not a terminal."""
    handler: logging.Handler
    if console().is_terminal:
        handler = RichHandler(console=console(), show_time=False, show_level=False, show_path=False)
    else:
        # A worker of a sweep has no tolerant_output.
        stdout = sys.stdout if isinstance(sys.stdout, Output) else Output(sys.stdout)
        handler = logging.StreamHandler(cast("TextIO", stdout))
    handler.setLevel(logging.INFO)
    handler.setFormatter(_Formatter())
    return handler


def busy(what: str) -> AbstractContextManager[object]:
    """Shows what is waited for, on a terminal and as long as it takes."""
    return console().status(what) if console().is_terminal else nullcontext()


class StepProgress:
    """Step, loss, steps per second and the time left: a bar on a terminal, else a line every
    few seconds.

    Args:
        line_every: seconds between lines, where several processes share a terminal; None: a bar.
    """

    def __init__(self, name: str, steps: int, start: int, line_every: float | None = None) -> None:
        self.name, self.steps, self.start = name, steps, start
        self.began = self.line_at = time.monotonic()
        self.line_every = line_every or LINE_INTERVAL_S
        self.live = line_every is None and console().is_terminal
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeRemainingColumn(),
            console=console(),
            transient=True,
            disable=not self.live,
        )
        self.shown = self.bar.add_task(name, total=steps, completed=start, facts="")

    def __enter__(self) -> "StepProgress":
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def step(self, step: int, loss: float) -> None:
        """Show the step and the last logged loss."""
        now = time.monotonic()
        rate = (step - self.start) / max(now - self.began, 1e-9)
        if self.live:
            facts = f"{_loss_text(loss)}{rate:.1f} steps/s"
            self.bar.update(self.shown, completed=step, facts=facts)
        elif now - self.line_at >= self.line_every:
            self.line_at = now
            left = (self.steps - step) / max(rate, 1e-9)
            logger.info(
                "%s  step %d/%d  %s%.1f steps/s  %.0f s left",
                self.name, step, self.steps, _loss_text(loss), rate, left,
            )  # fmt: skip

    def doing(self, what: str) -> None:
        """Show what is done after training."""
        if self.live:
            self.bar.update(self.shown, facts=what)


def _loss_text(loss: float) -> str:
    """Empty before the first loss is logged."""
    return "" if math.isnan(loss) else f"loss {loss:.4f}  "


def percent(share: float | None) -> str:
    """A share as a percentage with enough digits to tell 0.03 from 0."""
    if share is None:
        return "-"
    # Less than a rounding error of a float is 0: older runs have bounds such as 5e-20.
    return f"{100 * share:.2f}" if 1e-16 < share < 0.1 else f"{100 * share:.1f}"
