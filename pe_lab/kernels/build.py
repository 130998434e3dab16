"""The C++ kernels as shared libraries: compiled at first use and cached for later processes.

A kernel includes no header of torch and takes raw pointers, so that a build takes seconds. It is
called through ctypes, which lets other Python threads run meanwhile. The cache is ``PE_LAB_CACHE``,
or ``pe-lab`` in the user's cache folder. The compiler is ``PE_LAB_CXX`` (empty: none), ``CXX``, or
the first one found.
"""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

logger = logging.getLogger("pe_lab")

SOURCES = Path(__file__).parent / "src"
COMPILERS = ("c++", "g++", "clang++")
# gcc and clang spell the option for this machine's processor differently on Arm.
NATIVE = "-march=native" if platform.machine() in ("x86_64", "i686") else "-mcpu=native"
FLAGS = ["-std=c++17", "-O3", NATIVE, "-fno-math-errno", "-fPIC", "-pthread"]


@functools.cache
def library(name: str) -> ctypes.CDLL | None:
    """The library of the source ``<name>.cpp``; None, with one warning, if it cannot be built.

    It is tried twice, as a compiler may fail once beside other work. The plain code has other
    dropout masks, so that a resumed run would have other numbers.
    """
    for last in (False, True):
        try:
            compiler = find_compiler()
            path = cache_folder() / f"{name}-{digest(name, compiler)}.so"
            if not path.exists():
                compile_library(name, compiler, path)
            return ctypes.CDLL(str(path))
        except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
            if last:
                logger.warning("no kernel %r (%s): the plain code is used", name, error)
    return None


def find_compiler() -> list[str]:
    """The compiler's command line."""
    chosen = os.environ.get("PE_LAB_CXX", os.environ.get("CXX"))
    for command in COMPILERS if chosen is None else (chosen,):
        words = shlex.split(command)
        if words and shutil.which(words[0]):
            return words
    raise RuntimeError("no C++ compiler: install g++ or clang++, or name one in PE_LAB_CXX")


def cache_folder() -> Path:
    """The folder of compiled libraries."""
    if chosen := os.environ.get("PE_LAB_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "pe-lab"


def digest(name: str, compiler: list[str]) -> str:
    """A digest of everything that a library depends on. The compiler's predefined macros show its
    version and the instruction sets that it found in this processor."""
    parts = [path.read_bytes() for path in [SOURCES / f"{name}.cpp", *sorted(SOURCES.glob("*.h"))]]
    macros = run_compiler([*compiler, *FLAGS, "-dM", "-E", "-x", "c++", os.devnull])
    words = " ".join([*compiler, *FLAGS, torch.__version__]).encode()
    return hashlib.sha256(b"\0".join([*parts, macros, words])).hexdigest()[:16]


def compile_library(name: str, compiler: list[str], path: Path) -> None:
    """Compile ``<name>.cpp``, and move the library to ``path`` when it is complete."""
    logger.info("compiling the kernel %r: some seconds, once on this machine", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        fresh = Path(folder) / path.name
        run_compiler([*compiler, *FLAGS, "-shared", str(SOURCES / f"{name}.cpp"), "-o", str(fresh)])
        fresh.replace(path)


def run_compiler(words: list[str]) -> bytes:
    # In a new session, so that Ctrl-C does not stop the compiler, as if it had failed.
    done = subprocess.run(words, capture_output=True, timeout=600, start_new_session=True)
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").splitlines() or ["no error message"]
        reason = next((line for line in lines if "error" in line), lines[0])
        raise RuntimeError(f"{words[0]} failed with status {done.returncode}: {reason.strip()}")
    return done.stdout


@functools.cache
def fork() -> int:
    """The address of GOMP_parallel in the OpenMP runtime that torch itself uses (see parallel.h);
    0 if torch has none, or another kind."""
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        try:
            function = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name)).GOMP_parallel
        except (OSError, AttributeError):
            continue
        return ctypes.cast(function, ctypes.c_void_p).value or 0
    return 0
