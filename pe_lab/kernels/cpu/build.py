"""The C++ kernels as shared libraries: compiled at first use and cached for later processes.

A kernel includes no header of torch and takes raw pointers, so that a build takes seconds. It is
called through ctypes, which lets other Python threads run meanwhile. Libraries are cached in
``PE_LAB_CACHE``, or in ``pe-lab`` in the user's cache folder, one for each source, compiler,
processor and version of torch. The compiler is ``PE_LAB_CXX`` (empty: none), ``CXX``, or the first
one found.
"""

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
import time
from pathlib import Path

import filelock
import torch

from pe_lab.core.files import replace_file

logger = logging.getLogger("pe_lab")

SOURCES = Path(__file__).parent / "src"
POSIX = os.name == "posix"
COMPILERS = ("c++", "g++", "clang++")
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
BUILD = "pe-lab-build-"
"""The folders of builds begin with this."""
ABANDONED_S = 3600.0
LOCK_TIMEOUT_S = 120.0
"""Longer than any build: a process that has waited this long compiles as well."""


class NoLibraryError(Exception):
    """Why there is no library, in a few words."""


@functools.cache
def library(name: str) -> ctypes.CDLL | None:
    """The library of the source ``<name>.cpp``; None, with one warning, if it cannot be built."""
    try:
        compiler = find_compiler()
        file = f"{name}-{_key(name, compiler)}.so"
        try:
            path = _trusted_folder() / file
        except (RuntimeError, OSError) as error:
            return _build(name, compiler, None, error)
        loaded = _load(path)
        if loaded is not None:
            return loaded
        with contextlib.ExitStack() as stack:
            # Without a lock, two processes may compile the same library: a file is moved into place
            # only when it is complete.
            with contextlib.suppress(OSError, NotImplementedError):
                stack.enter_context(
                    filelock.FileLock(path.with_suffix(".lock"), timeout=LOCK_TIMEOUT_S)
                )
            return _load(path) or _build(name, compiler, path)
    except (NoLibraryError, OSError) as error:
        logger.warning("no CPU kernel %r (%s); falling back to PyTorch", name, error)
        return None


def cache_folder() -> Path:
    """Where libraries are cached. RuntimeError for a user without a home."""
    if chosen := os.environ.get("PE_LAB_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "pe-lab"


def _trusted_folder() -> Path:
    """The cache's folder, created if missing. PermissionError if other users could have written
    a library there that this process would run."""
    folder = cache_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid not in (os.geteuid(), 0):
        raise PermissionError(f"{folder} belongs to another user; name yours in PE_LAB_CACHE")
    if status.st_mode & OTHERS_WRITE:
        raise PermissionError(f"other users may write to {folder}; name another in PE_LAB_CACHE")
    return folder


def find_compiler() -> list[str]:
    """The compiler's command line."""
    if not POSIX:
        raise NoLibraryError(f"not supported on {platform.system()}")
    chosen = os.environ.get("PE_LAB_CXX", os.environ.get("CXX"))
    if chosen is not None:
        try:
            words = shlex.split(chosen)
        except ValueError as error:
            raise NoLibraryError(f"PE_LAB_CXX or CXX is {chosen!r}: {error}") from None
        if not words or shutil.which(words[0]) is None:
            raise NoLibraryError(f"compiler {chosen!r} of PE_LAB_CXX or CXX not found")
        return words
    for name in COMPILERS:
        if shutil.which(name) is not None:
            return [name]
    raise NoLibraryError("no C++ compiler; install g++ or clang++, or name one in PE_LAB_CXX")


def flags() -> list[str]:
    """The compiler's options, for the processor of this machine."""
    # On Arm, gcc and clang spell the option differently.
    intel = platform.machine() in ("x86_64", "i686")
    native = "-march=native" if intel else "-mcpu=native"
    return ["-std=c++17", "-O3", native, "-fno-math-errno", "-fPIC", "-pthread"]


def _key(name: str, compiler: list[str]) -> str:
    """A digest of everything that a library depends on. The compiler's predefined macros show its
    version and the instruction sets that it found in this processor."""
    digest = hashlib.sha256(torch.__version__.encode())
    for source in [SOURCES / f"{name}.cpp", *sorted(SOURCES.glob("*.h"))]:
        digest.update(source.read_bytes())
    words = [*compiler, *flags()]
    digest.update("\0".join(words).encode())
    digest.update(_run([*words, "-dM", "-E", "-x", "c++", os.devnull]))
    return digest.hexdigest()[:16]


def _run(words: list[str]) -> bytes:
    try:
        # In a new session, so that Ctrl-C does not stop the compiler, as if it had failed.
        done = subprocess.run(words, capture_output=True, timeout=600, start_new_session=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise NoLibraryError(f"{words[0]} did not run: {error}") from None
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").splitlines() or ["no error message"]
        reason = next((line for line in lines if "error" in line), lines[0])
        raise NoLibraryError(f"{words[0]} failed with status {done.returncode}: {reason.strip()}")
    return done.stdout


def _load(path: Path) -> ctypes.CDLL | None:
    """None if the file is missing, incomplete (the loader would crash), not loadable, or may have
    been written by another user."""
    digest = path.with_suffix(".sha256")
    with contextlib.suppress(OSError):
        if all(map(_ours, (path, digest))) and digest.read_bytes() == _digest(path):
            return ctypes.CDLL(str(path))
    return None


def _ours(path: Path) -> bool:
    status = path.lstat()
    regular = stat.S_ISREG(status.st_mode) and not status.st_mode & OTHERS_WRITE
    return regular and status.st_uid in (os.geteuid(), 0)


def _digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).hexdigest().encode()


def _build(
    name: str, compiler: list[str], path: Path | None, reason: Exception | None = None
) -> ctypes.CDLL:
    """Compile, cache as ``path`` if possible, and load."""
    begun = time.monotonic()
    source = SOURCES / f"{name}.cpp"
    _remove_abandoned()
    with tempfile.TemporaryDirectory(prefix=BUILD, ignore_cleanup_errors=True) as folder:
        fresh = Path(folder) / f"{name}.so"
        logger.info("compiling CPU kernel %r, some seconds, once for this machine", name)
        _run([*compiler, *flags(), "-shared", str(source), "-o", str(fresh)])
        logger.info(
            "compiled CPU kernel %r in %.1f s",
            name,
            time.monotonic() - begun,
        )
        try:
            if path is not None:
                _store(fresh, path)
        except OSError as error:
            reason = error
        cached = None if path is None else _load(path)
        if cached is not None:
            return cached
        logger.warning("CPU kernel %r is compiled again by every process: %s", name, reason)
        # A loaded library remains when its file is deleted.
        return ctypes.CDLL(str(fresh))


def _store(fresh: Path, path: Path) -> None:
    for suffix, content in ((".sha256", _digest(fresh)), (".so", fresh.read_bytes())):
        replace_file(path.with_suffix(suffix), content)
        path.with_suffix(suffix).chmod(0o600)


def _remove_abandoned() -> None:
    """Remove the folders of builds that were killed, an hour later."""
    for folder in Path(tempfile.gettempdir()).glob(f"{BUILD}*"):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            if status.st_uid == os.geteuid() and status.st_mtime < time.time() - ABANDONED_S:
                shutil.rmtree(folder)


@functools.cache
def fork() -> int:
    """The address of GOMP_parallel in the OpenMP runtime that torch itself uses (see parallel.h);
    0 if torch has none, or another kind."""
    folder = Path(torch.__file__).parent / "lib"
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        with contextlib.suppress(OSError, AttributeError):
            found = ctypes.CDLL(str(folder / name)).GOMP_parallel
            return ctypes.cast(found, ctypes.c_void_p).value or 0
    return 0
