"""What is said during a run, tracebacks too, in the run's own file."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

logger = logging.getLogger("pe_lab")


class RunLog(logging.Handler):
    """Adds lines to a file as long as the disk takes them: nothing is told about a line lost."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.paused = False

    def emit(self, record: logging.LogRecord) -> None:
        if not self.paused:
            with suppress(OSError), open(self.path, "a") as file:
                file.write(self.format(record) + "\n")

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Other runs have their turn: what is said is not about this one."""
        self.paused = True
        try:
            yield
        finally:
            self.paused = False


@contextmanager
def logging_to(path: Path) -> Iterator[RunLog]:
    """Add what is said to a run's file."""
    handler = RunLog(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    with everything_said():
        logger.addHandler(handler)
        try:
            yield handler
        finally:
            logger.removeHandler(handler)


@contextmanager
def everything_said() -> Iterator[None]:
    """Let tracebacks through to the handlers. Entered once around runs that take turns, it has
    the level stay until the last of them has ended."""
    level = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def warned_once() -> Iterator[None]:
    """For runs of one process: what all of them warn of is shown once. Each run's file has it."""
    shown: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        line = record.getMessage()
        known = line in shown
        shown.add(line)
        return not known

    handlers = [*logger.handlers, *logging.getLogger().handlers]
    for handler in handlers:
        handler.addFilter(is_new)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(is_new)
