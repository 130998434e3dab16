"""Kernels are compiled once by one process, kept where only this user writes, and not needed."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from builds import SOURCE, Place
from program import assert_has

from pe_lab.kernels.cpu import build


def test_a_library_is_compiled_once_which_is_said_before_and_after(
    place: Place, answer: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    assert answer() == (42, [])
    before, after = (record.getMessage() for record in caplog.records)
    assert before == "compiling CPU kernel 'question', some seconds, once for this machine"
    assert re.fullmatch(r"compiled CPU kernel 'question' in .* s", after)
    assert answer() == (42, [])
    assert caplog.records == []
    assert place.compiled() == 1


@pytest.mark.parametrize("change", ["source", "header", "torch", "compiler"])
def test_what_a_library_depends_on_is_in_its_name(
    change: str, place: Place, answer: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert answer() == (42, [])
    if change == "source":
        place.write(SOURCE.replace("42", "43"))
    elif change == "header":
        (place.sources / "common.h").write_text("\n")
    elif change == "torch":
        monkeypatch.setattr(torch, "__version__", "0.0")
    else:
        monkeypatch.setenv("PE_LAB_CXX", f"{place.compiler} -DNEW")
    assert answer() == (43 if change == "source" else 42, [])
    assert place.compiled() == 2


@pytest.mark.extended
def test_two_processes_at_once_compile_once(place: Place) -> None:
    place.set_compiler("sleep 1")
    processes = [place.process() for _ in range(2)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.communicate()[0] for process in processes] == ["42\n", "42\n"]
    assert place.compiled() == 1


def test_a_killed_build_leaves_nothing_that_is_taken_for_good(
    place: Place, answer: Callable
) -> None:
    place.set_compiler("sleep 2")
    process = place.process()
    process.stdin.write("\n")
    process.stdin.flush()
    while place.compiled() == 0:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert list(place.cache.glob("*.so")) == []
    place.set_compiler()
    assert answer() == (42, [])


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("PE_LAB_CXX", "", "compiler '' of PE_LAB_CXX or CXX not found"),
        ("PE_LAB_CXX", "/no/such/g++ -O1", "compiler '/no/such/g++ -O1' of"),
        ("PE_LAB_CXX", "false", "false failed with status 1: no error message"),
        ("PE_LAB_CXX", 'g++ "-O1', "PE_LAB_CXX or CXX is 'g++ \"-O1': No closing quotation"),
        ("CXX", "/no/such/c++", "compiler '/no/such/c++' of"),
        ("PATH", "", "no C++ compiler; install g++ or clang++"),
    ],
)
def test_without_a_compiler_there_is_one_warning(
    variable: str, value: str, reason: str, answer: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable != "PE_LAB_CXX":
        monkeypatch.delenv("PE_LAB_CXX")
    monkeypatch.setenv(variable, value)
    if variable == "PATH":
        monkeypatch.delenv("CXX", raising=False)
    found, (warning,) = answer()
    assert found is None
    assert warning.startswith(f"no CPU kernel 'question' ({reason}")


def test_the_compilers_own_word_is_in_the_warning(place: Place, answer: Callable) -> None:
    place.write('extern "C" int answer() { return forty_two; }')
    found, (warning,) = answer()
    assert found is None
    assert_has(warning, "error", "forty_two")


def test_an_unsupported_platform_is_reported(
    answer: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build.platform, "system", lambda: "Windows")
    monkeypatch.setattr(build, "POSIX", False)
    assert answer() == (
        None,
        ["no CPU kernel 'question' (not supported on Windows); falling back to PyTorch"],
    )


def test_a_compiler_that_writes_nonsense_is_no_compiler(place: Place, answer: Callable) -> None:
    place.compiler.write_text(
        '#!/bin/sh\nfor word; do case "$last" in -o) echo no > "$word";; esac; last=$word; done\n'
    )
    found, warnings = answer()
    assert found is None
    assert warnings[-1].startswith("no CPU kernel 'question' (")


THREADS = """
import ctypes, os, torch
from pe_lab.kernels.cpu import distance
from pe_lab.kernels.requests import Distance

def threads():
    return len(os.listdir("/proc/self/task"))

def attend():
    x = torch.randn(4, 4, 64, 16)
    distance.attend(Distance(q=x, k=x, v=x))

torch.set_num_threads(1)
attend()
alone = threads()
attend()
assert threads() == alone
torch.set_num_threads(3)
torch.randn(4096, 64) @ torch.randn(64, 4096)
torch.randn(10**6).exp()
together = threads()
attend()
assert threads() == together, "threads of its own beside torch's"
maps = {line.split()[-1] for line in open("/proc/self/maps") if "omp" in line.split()[-1]}
print(together - alone, len(maps), *maps)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_threads_are_torchs_own(tmp_path: Path) -> None:
    code = tmp_path / "threads.py"
    code.write_text(THREADS)
    done = subprocess.run([sys.executable, code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    more, runtimes = done.stdout.split()[:2]
    assert (more, runtimes) == ("2", "1"), done.stdout
    runtime = ctypes.CDLL(done.stdout.split()[2])
    assert build.fork() == ctypes.cast(runtime.GOMP_parallel, ctypes.c_void_p).value


@pytest.mark.parametrize("fault", ["cut short", "not whole", "not a library", "no digest"])
def test_a_broken_library_is_compiled_again(
    fault: str, place: Place, answer: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not loaded yet: the loader would know the file again by its name.
    with monkeypatch.context() as patched:
        patched.setattr(build.ctypes, "CDLL", lambda path: object())
        build.library("question")
    kept, digest = place.kept(), place.kept().with_suffix(".sha256")
    whole = kept.read_bytes()
    if fault == "cut short":
        kept.write_bytes(whole[:4096])
    elif fault == "not whole":
        kept.write_bytes(whole[:2000] + bytes(len(whole) - 2000))
    elif fault == "not a library":
        kept.write_bytes(b"nonsense")
        digest.write_bytes(build._digest(kept))
    else:
        digest.unlink()
    assert answer() == (42, [])
    assert place.compiled() == 2


def test_a_cache_that_cannot_be_written_costs_a_build_a_process(
    place: Place, answer: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    place.cache.write_text("a file where a folder should be")
    for built in (1, 2):
        found, (warning,) = answer()
        assert found == 42
        assert "compiled again by every process" in warning
        assert place.compiled() == built


def test_a_library_that_others_could_have_put_there_is_not_loaded(
    place: Place, answer: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert answer() == (42, [])
    assert place.cache.stat().st_mode & 0o777 == 0o700
    for built, mode in ((2, 0o777), (3, 0o770)):
        place.cache.chmod(mode)
        found, (warning,) = answer()
        assert (found, place.compiled()) == (42, built)
        assert f"other users may write to {place.cache}" in warning
    place.cache.chmod(0o755)
    assert answer() == (42, [])
    mine = os.geteuid()
    if mine == 0:
        os.chown(place.cache, 12345, -1)
    else:
        monkeypatch.setattr(build.os, "geteuid", lambda: mine + 1)
    found, (warning,) = answer()
    assert (found, place.compiled()) == (42, 4)
    assert f"{place.cache} belongs to another user" in warning


@pytest.mark.parametrize("suffix", [".so", ".sha256"])
@pytest.mark.parametrize("fault", ["owner", "mode", "link"])
def test_a_file_that_others_could_have_written_is_compiled_again(
    suffix: str, fault: str, place: Place, answer: Callable, tmp_path: Path
) -> None:
    """V15."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(build.ctypes, "CDLL", lambda path: object())
        build.library("question")
    file = place.kept().with_suffix(suffix)
    if fault == "owner":
        if os.geteuid() != 0:
            pytest.skip("only root gives files away")
        os.chown(file, 12345, -1)
    elif fault == "mode":
        file.chmod(0o660)
    else:
        file.symlink_to(file.rename(tmp_path / "elsewhere"))
    assert answer() == (42, [])
    assert place.compiled() == 2


def test_the_folder_of_a_killed_build_is_removed(
    place: Place, answer: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V14."""
    monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path))
    old, new = tmp_path / f"{build.BUILD}old", tmp_path / f"{build.BUILD}new"
    for folder in (old, new):
        folder.mkdir()
    os.utime(old, (0, 0))
    assert answer() == (42, [])
    assert (old.exists(), new.exists()) == (False, True)


def test_a_full_disk_costs_a_build_a_process(
    place: Place, answer: Callable, disk: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = disk("64k")
    folder.chmod(0o700)
    monkeypatch.setenv("PE_LAB_CACHE", str(folder))
    with pytest.raises(OSError, match="No space left"):
        (folder / "filling").write_bytes(bytes(10**6))
    found, (warning,) = answer()
    assert found == 42
    assert "No space left" in warning
    assert not list(folder.glob("*.so"))


def test_a_user_without_a_home_compiles_every_time(
    answer: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(build, "cache_folder", homeless)
    found, (warning,) = answer()
    assert found == 42
    assert "Could not determine home directory" in warning


def test_the_cache_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PE_LAB_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    assert build.cache_folder() == Path("/home/me/.cache/pe-lab")
    monkeypatch.setenv("XDG_CACHE_HOME", "/scratch")
    assert build.cache_folder() == Path("/scratch/pe-lab")
