"""Whole commands of pe-lab: how long they take, and how much of the processors."""

import ctypes
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.alternating import environment

MAIN_JOB = ("task=flipflop", "pe=cope")
SHORT = ("train.steps=20", "train.warmup=2", "eval.sequences=64", "eval.quick_sequences=8")


@dataclass(frozen=True)
class Command:
    """``python`` with these words in an empty folder, which is removed.

    Args:
        source: a checkout whose pe_lab is to be run; None: the installed one.
    """

    words: tuple[str, ...]
    source: Path | None = None

    @classmethod
    def pe_lab(cls, *words: str, source: Path | None = None) -> "Command":
        return cls(("-m", "pe_lab", *words), source)

    def spent(self) -> tuple[float, float]:
        """Seconds that passed, and seconds of processors, those of wandb's process too (Linux)."""
        _adopt_orphans()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            used, began = _used(), time.perf_counter()
            subprocess.run(
                [sys.executable, *self.words],
                cwd=folder,
                env=environment(**({"PYTHONPATH": str(self.source)} if self.source else {})),
                check=True,
                stdout=subprocess.DEVNULL,
            )
            passed = time.perf_counter() - began
            _await_orphans()
        return passed, _used() - used


def checked_source(folder: Path) -> Path:
    """The checkout, sure to be what a command with this source runs.

    Raises:
        SystemExit: something of the program comes from elsewhere.
    """
    source = folder.resolve()
    asked = "import pe_lab.config as c, pe_lab.conf, pe_lab.tasks.flipflop as f; " + (
        "print(c.__file__, pe_lab.conf.__path__[0], f.__file__, sep='\\n')"
    )
    env = environment(PYTHONPATH=str(source))
    with tempfile.TemporaryDirectory() as empty:
        told = subprocess.run(
            [sys.executable, "-c", asked], cwd=empty, env=env, capture_output=True, text=True
        )
    files = [Path(line) for line in told.stdout.splitlines()]
    if len(files) != 3 or not all(file.is_relative_to(source) for file in files):
        found = ", ".join(map(str, files)) or told.stderr.strip().splitlines()[-1]
        raise SystemExit(f"--before {folder} is not what would be run ({found}): give a checkout")
    return source


@dataclass(frozen=True)
class Spent:
    """Seconds of every command, a number a round: passed, and of processors."""

    wall: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)

    def ratio(self, above: str, below: str, clock: str = "wall") -> float:
        """Median over the rounds."""
        taken: dict[str, list[float]] = getattr(self, clock)
        pairs = zip(taken[above], taken[below], strict=True)
        return statistics.median(a / b for a, b in pairs)

    def median(self, name: str, clock: str = "wall") -> float:
        taken: dict[str, list[float]] = getattr(self, clock)
        return statistics.median(taken[name])


def alternated(commands: Mapping[str, Command], rounds: int) -> Spent:
    """Every command in turn, each round in the other order."""
    spent = Spent({name: [] for name in commands}, {name: [] for name in commands})
    for n in range(rounds):
        for name in list(commands) if n % 2 else reversed(list(commands)):
            wall, cpu = commands[name].spent()
            spent.wall[name].append(wall)
            spent.cpu[name].append(cpu)
    return spent


def rows(spent: Spent) -> list[dict[str, object]]:
    """For the JSON file."""
    return [
        {"command": name, "wall_s": spent.wall[name], "cpu_s": spent.cpu[name]}
        for name in spent.wall
    ]


def seconds(values: Sequence[float]) -> str:
    """Each time, for a table."""
    return " ".join(f"{value:.2f}" for value in values)


def _adopt_orphans() -> None:
    """Have what a run leaves running become this process's child, so that it can be counted."""
    pr_set_child_subreaper = 36
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1)


def _await_orphans() -> None:
    with suppress(ChildProcessError):
        while True:
            os.wait()


def _used() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
