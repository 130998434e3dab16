"""What every test may use."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from program import Here, Outcome

from pe_lab.cli import main


@pytest.fixture
def here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Here]:
    """``here(*words)``: the command line in this process, from an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["pe-lab"])
    loggers = [logging.getLogger(), logging.getLogger("pe_lab")]
    before = [(logger.level, list(logger.handlers)) for logger in loggers]

    def run(*words: str) -> Outcome:
        capsys.readouterr()
        status = main(words)
        out, err = capsys.readouterr()
        return Outcome(status, out, err)

    yield run
    # Hydra configures logging for the whole process.
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = handlers
