"""The campaign of ``make test-chaos``: reproducible cases, faults, what counts as a violation, and
half a minute of it."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from program import ROOT

from tests.chaos.case import Case, Violation, check
from tests.chaos.preload import build
from tests.chaos.warm import FAULTS, Ended

WRITE = """
import ctypes, os, sys
ctypes.CDLL(None).chaos_arm(os.getcwd().encode(), int(sys.argv[1]), ctypes.c_long(2), None)
file = os.open("file", os.O_WRONLY | os.O_CREAT)
try:
    print(os.write(file, b"12345678"))
except OSError as error:
    print(-error.errno)
"""
EXPECTED = {
    "count": 8, "full": -errno.ENOSPC, "quota": -errno.EDQUOT, "read_only": -errno.EROFS,
    "eio_once": -errno.EIO, "eio_stays": -errno.EIO, "short_write": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None or sys.platform != "linux":
        pytest.skip("needs Linux and a C compiler")
    return build(tmp_path_factory.mktemp("preload"))


@pytest.mark.parametrize("kind", FAULTS)
def test_the_second_file_operation_fails(kind: str, library: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    words = [sys.executable, "-c", WRITE, str(FAULTS.index(kind))]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    if kind in EXPECTED:
        assert (done.returncode, int(done.stdout)) == (0, EXPECTED[kind])
    else:
        signals = {"kill": 9, "torn_write": 9, "sigterm": 15, "sigint": 2, "sighup": 1}
        assert done.returncode == -signals[kind]
        # Python handles SIGINT after the write.
        written = {"torn_write": b"1234", "sigint": b"12345678"}
        assert (tmp_path / "file").read_bytes() == written.get(kind, b"")


def test_a_case_follows_from_its_name(tmp_path: Path) -> None:
    one, again, other = (Case("kills", n, 3, tmp_path).rng.random() for n in (1, 1, 2))
    assert one == again != other


@pytest.mark.parametrize(
    ("status", "output", "orphans", "message"),
    [
        (0, "Traceback (most recent call last)\nKeyError: 1", (), "traceback: KeyError: 1"),
        (1, "pe-lab: KeyError: 1 (debug=true shows where)", (), "raw exception"),
        (3, "pe-lab: no", (), "exit status 3: pe-lab: no"),
        (-11, "", (), "exit status -11"),
        (1, " ", (), "without a word"),
        (0, "a \x1b[31m", (), "escape sequence"),
        (0, "", ("sleep 9",), "orphans"),
    ],
)
def test_violations(status: int, output: str, orphans: tuple[str, ...], message: str) -> None:
    with pytest.raises(Violation, match=message.replace("[", r"\[")):
        check(Ended((), status, output, 0.0, 0, orphans), (0, 1, 2))


def test_what_is_no_violation() -> None:
    check(Ended((), 2, "pe-lab: seed=x is not allowed: set it to a number", 0.0, 0, ()), (0, 1, 2))


@pytest.mark.extended
def test_half_a_minute_without_a_violation(library: Path) -> None:
    words = ["minutes=0.5", "seed=0"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", *words], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
