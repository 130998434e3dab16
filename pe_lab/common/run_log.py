"""The log file of a run."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pe_lab.common.files import no_link

logger = logging.getLogger("pe_lab")


class RunLog(logging.Handler):
    """Appends log records to a file; a record that cannot be written is dropped silently."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError), open(self.path, "a", opener=no_link, encoding="utf-8") as file:
            file.write(self.format(record) + "\n")


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Also write every log record, tracebacks included, to a run's file."""
    handler = RunLog(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
