"""The main job as a whole command, ``pe-lab task=flipflop pe=..``: as it is, with
``train.fast=false``, and, with ``--before FOLDER``, in an older checkout.

The commands alternate, each in an empty folder; kernels and bytecode are built beforehand.
"""

import ctypes
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.parts import Measured, Scope, table
from benchmarks.sides import environment

SHORT = ("train.steps=20", "train.warmup=2", "eval.sequences=64", "eval.quick_sequences=8")


def measure(scope: Scope) -> Measured:
    """A row for each encoding and variant."""
    rows, cells = [], []
    before = None if scope.before is None else checked_source(scope.before)
    for pe in scope.pick(["cope"], ["cope"], ["cope", "rope"]):
        words = ["task=flipflop", f"pe={pe}", *(SHORT if scope.name == "tiny" else ())]
        commands: dict[str, tuple[list[str], Path | None]] = {
            "as it is": (words, None),
            "train.fast=false": ([*words, "train.fast=false"], None),
        }
        if before is not None:
            commands["before"] = (words, before)
        if scope.name != "tiny":
            for _, source in commands.values():
                spent([*words, *SHORT], source)
        wall: dict[str, list[float]] = {name: [] for name in commands}
        cpu: dict[str, list[float]] = {name: [] for name in commands}
        for n in range(scope.pick(1, 1, 3)):
            for name in list(commands) if n % 2 else reversed(list(commands)):
                seconds = spent(*commands[name])
                wall[name].append(seconds[0])
                cpu[name].append(seconds[1])
        for name in commands:
            rows.append({"pe": pe, "command": name, "wall_s": wall[name], "cpu_s": cpu[name]})
            ratios = [
                statistics.median(a / b for a, b in zip(of[name], of["as it is"], strict=True))
                for of in (wall, cpu)
            ]
            medians = [statistics.median(of[name]) for of in (wall, cpu)]
            cells.append([pe, name, *(f"{value:.2f}" for value in medians + ratios)])
    columns = ["encoding", "", "wall s", "processor s", "wall / as it is", "processor / as it is"]
    return Measured(table("the main job, whole command", columns, cells), rows)


def spent(words: list[str], source: Path | None = None) -> tuple[float, float]:
    """Wall time and processor time of one command in seconds, wandb's process included (Linux).

    Args:
        source: a checkout whose pe_lab is to run; None: the installed one.
    """
    # Processes that a run leaves behind become children of this one, so that they are counted.
    pr_set_child_subreaper = 36
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1)
    path = {} if source is None else {"PYTHONPATH": str(source)}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        used, began = used_by_children(), time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "pe_lab", *words],
            cwd=folder, env=environment(**path), check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        passed = time.perf_counter() - began
        with suppress(ChildProcessError):
            while True:
                os.wait()
    return passed, used_by_children() - used


def used_by_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def checked_source(folder: Path) -> Path:
    """The checkout, after a check that a command with this source runs its files.

    Raises:
        SystemExit: part of the program would come from elsewhere.
    """
    source = folder.resolve()
    code = "import pe_lab, pe_lab.conf, pe_lab.tasks.flipflop as f; " + (
        "print(pe_lab.__file__, pe_lab.conf.__path__[0], f.__file__, sep='\\n')"
    )
    env = environment(PYTHONPATH=str(source))
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=empty, env=env, capture_output=True, text=True
        )
    files = [Path(line) for line in done.stdout.splitlines()]
    if len(files) != 3 or not all(file.is_relative_to(source) for file in files):
        found = ", ".join(map(str, files)) or done.stderr.strip().splitlines()[-1]
        raise SystemExit(
            f"--before {folder} would not run its own files ({found}): give a checkout"
        )
    return source
