"""Command lines of pe-lab in forked children of a process that has imported everything: a run of a
few steps then takes a fraction of a second, and can be killed or made to fail at any moment."""

import ctypes
import mmap
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pe_lab.cli.main
import pe_lab.cli.report
import pe_lab.cli.results
import pe_lab.cli.train
import pe_lab.experiment.run

FAULTS = ("count", "full", "quota", "read_only", "eio_once", "eio_stays", "short_write",
          "kill", "torn_write", "sigterm", "sigint", "sighup")  # fmt: skip
"""In the order of preload.c."""
SECONDS, CPU_SECONDS = 300, 60
"""Limits of a command line; one that reaches them hangs."""
ORPHANS_S = 10
"""How long a process may outlive the command that started it: on a busy machine a worker takes
seconds until it can notice."""
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Fault:
    """What happens at the n-th file operation below the folder ``runs``."""

    kind: str
    at: int


@dataclass(frozen=True)
class Ended:
    """How a command line ended."""

    words: tuple[str, ...]
    status: int
    output: str
    seconds: float
    operations: int
    """File operations counted while a fault was armed."""
    orphans: tuple[str, ...]


_shared = mmap.mmap(-1, 8)
_operations = ctypes.c_long.from_buffer(_shared)


def become_reaper() -> None:
    """Processes whose parent ends become children of this one, where they are noticed."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def run(
    words: Sequence[str],
    cwd: Path,
    *,
    fault: Fault | None = None,
    kill_after: float | None = None,
    instead: Callable[[], Any] | None = None,
    memory: int = resource.RLIM_INFINITY,
) -> Ended:
    """Run a command line in a forked child.

    Args:
        kill_after: seconds after which SIGKILL is sent.
        instead: called in place of parsing the words; the rest of ``main`` stays.
        memory: bytes of addresses; a browser's engine, which draws charts, takes 36 GB of them.
    """
    output = cwd / "output"
    _operations.value = 0
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _child(tuple(words), cwd, output, fault, instead, memory)
    status = None
    while status is None:
        passed = time.monotonic() - began
        if kill_after is not None and passed >= kill_after:
            os.kill(pid, signal.SIGKILL)
            kill_after = None
        if passed > SECONDS:
            os.killpg(pid, signal.SIGKILL)
        found, code = os.waitpid(pid, os.WNOHANG)
        if found:
            status = os.waitstatus_to_exitcode(code)
        else:
            time.sleep(0.002)
    seconds = time.monotonic() - began
    if seconds > SECONDS:
        status = -signal.SIGXCPU
    text = output.read_bytes()[-200_000:].decode(errors="replace") if output.exists() else ""
    return Ended(tuple(words), status, text, seconds, _operations.value, _orphans())


def _child(
    words: tuple[str, ...], cwd: Path, output: Path, fault: Fault | None, instead: Any, memory: int
) -> None:
    """Never returns. Functions registered with atexit are left out: some would wait for threads,
    which a forked process does not have."""
    status = 99
    try:
        os.setsid()
        os.chdir(cwd)
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(file, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.argv = ["pe-lab"]
        if instead is not None:
            pe_lab.cli.main._dispatch = lambda words: instead()
        if fault is not None:
            ctypes.CDLL(None).chaos_arm(
                str(cwd / "runs").encode(), FAULTS.index(fault.kind), ctypes.c_long(fault.at),
                ctypes.byref(_operations),
            )  # fmt: skip
        status = pe_lab.cli.main.main(words)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _orphans() -> tuple[str, ...]:
    """The command lines of the processes that are left after a while; they are ended."""
    until = time.monotonic() + ORPHANS_S
    while time.monotonic() < until:
        try:
            if not os.waitpid(-1, os.WNOHANG)[0]:
                time.sleep(0.01)
        except ChildProcessError:
            return ()
    left = []
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        left.append(words.strip()[:200])
        os.kill(int(pid), signal.SIGKILL)
        os.waitpid(int(pid), 0)
    return tuple(left)
