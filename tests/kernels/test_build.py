"""Kernels are compiled once, and not needed."""

import logging
from pathlib import Path

import pytest

from pe_lab.kernels import build

SOURCE = 'extern "C" int answer() { return 42; }\n'


class Builds:
    """A folder of sources, a cache, and a compiler that notes its calls and fails at the first."""

    def __init__(self, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.sources, self.calls, self.log = folder / "sources", folder / "calls", caplog
        self.compiler = folder / "compiler"
        self.sources.mkdir()
        self.source = self.sources / "question.cpp"
        self.source.write_text(SOURCE)
        note = f'case "$*" in *-shared*) echo compiled >> "{self.calls}";; esac'
        self.compiler.write_text(
            f'#!/bin/sh\nmkdir "{folder}/failed" && exit 1\n{note}\nexec c++ "$@"\n'
        )
        self.compiler.chmod(0o755)

    def answer(self) -> tuple[int | None, list[str]]:
        """As a new process: what the library answers (None: there is none), and warnings."""
        self.log.clear()
        build.library.cache_clear()
        with self.log.at_level(logging.INFO, "pe_lab"):
            library = [build.library("question") for _ in range(2)][1]
        warned = [r.getMessage() for r in self.log.records if r.levelno == logging.WARNING]
        return library and library.answer(), warned

    def compiled(self) -> int:
        return len(self.calls.read_text().split()) if self.calls.exists() else 0


@pytest.fixture
def builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Builds:
    made = Builds(tmp_path, caplog)
    monkeypatch.setattr(build, "SOURCES", made.sources)
    monkeypatch.setenv("PE_LAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PE_LAB_CXX", str(made.compiler))
    return made


@pytest.fixture(autouse=True)
def _forget_libraries() -> None:
    build.library.cache_clear()


def test_a_library_is_compiled_once_for_each_source(builds: Builds) -> None:
    assert builds.answer() == (42, [])
    assert builds.answer() == (42, [])
    assert builds.compiled() == 1
    builds.source.write_text(SOURCE.replace("42", "43"))
    assert builds.answer() == (43, [])
    (builds.sources / "common.h").write_text("\n")
    assert builds.answer() == (43, [])
    assert builds.compiled() == 3


@pytest.mark.parametrize("compiler", ["", "no-such-compiler", "false"])
def test_without_a_compiler_there_is_one_warning(
    compiler: str, builds: Builds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PE_LAB_CXX", compiler)
    library, warned = builds.answer()
    assert library is None
    assert len(warned) == 1
    assert warned[0].endswith("the plain code is used")


def test_a_failed_build_says_why_and_leaves_nothing(builds: Builds, tmp_path: Path) -> None:
    builds.source.write_text("nonsense")
    library, (warned,) = builds.answer()
    assert library is None
    assert "error" in warned
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cache_that_cannot_be_written_costs_the_kernels(
    builds: Builds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PE_LAB_CACHE", str(builds.source / "cache"))
    library, warned = builds.answer()
    assert (library, len(warned)) == (None, 1)
