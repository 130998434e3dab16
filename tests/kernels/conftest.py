"""Builds of kernels, in a folder each."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from builds import Place

from pe_lab.kernels.cpu import build


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    place = Place(tmp_path)
    monkeypatch.setattr(build, "SOURCES", place.sources)
    monkeypatch.setenv("PE_LAB_CACHE", str(place.cache))
    monkeypatch.setenv("PE_LAB_CXX", str(place.compiler))
    build.library.cache_clear()
    yield place
    build.library.cache_clear()


@pytest.fixture
def answer(
    place: Place, caplog: pytest.LogCaptureFixture
) -> Callable[[], tuple[int | None, list[str]]]:
    """As a new process would: what the library answers (None: there is none), what was warned."""

    def ask() -> tuple[int | None, list[str]]:
        caplog.clear()
        build.library.cache_clear()
        with caplog.at_level(logging.INFO, "pe_lab"):
            found = [build.library("question") for _ in range(2)][1]
        warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        return found and found.answer(), warned

    return ask
