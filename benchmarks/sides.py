"""Alternating measurements of two or more sides, each in a separate process.

The sides run blocks of steps in turn, every round in the reverse order of the round before. Load
from other processes and clock drift affect the blocks of one round alike, so a ratio of processor
times is taken within each round, and the median over the rounds is reported.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parent.parent
BLOCK_MS = 100
MOST_ROUNDS = 15


def environment(**changes: str) -> dict[str, str]:
    """The environment of this process with one thread and without allocator settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    return {**kept, "OMP_NUM_THREADS": "1", **changes}


class SideError(Exception):
    """The process of a side has ended."""


class Side:
    """A process that builds steps and runs them on request (side.py), started at the first one.

    Args:
        setting: ``ours``: prepared as a run of pe-lab, which keeps freed memory; ``shipped``:
            Python, glibc and PyTorch with their defaults; ``tuned``: the defaults, with freed
            memory kept. All have one thread and flush denormals.
        variables: additional environment variables.
    """

    def __init__(self, setting: str, **variables: str) -> None:
        self.setting, self.variables, self.made = setting, variables, 0

    @cached_property
    def process(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.side", self.setting],
            cwd=ROOT,
            env=environment(**self.variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, do: str, **request: Any) -> Any:
        """The answer to a request.

        Raises:
            SideError: the process has ended; its error output says why.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **request}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise SideError(f"the process of a side ended ({do}, {request}): see its error above")
        return json.loads(line)

    def make(self, what: str, **arguments: Any) -> "Runner":
        """Build ``benchmarks.<what>(**arguments)`` in the process; ``what`` is module.function."""
        facts = self.ask("make", what=what, arguments=arguments)
        self.made += 1
        return Runner(self, self.made - 1, facts)

    def clear(self) -> None:
        """Release everything that was built."""
        if self.made:
            self.ask("clear")
        self.made = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if "process" not in vars(self):
            return
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass(frozen=True)
class Runner:
    """A step that was built in the process of a side."""

    side: Side
    number: int
    facts: dict[str, Any]

    def run(self, times: int) -> tuple[float, float]:
        """Processor time and wall time, in milliseconds a step."""
        cpu, wall = self.side.ask("run", number=self.number, times=times)
        return cpu, wall

    def peak(self) -> int:
        """Peak bytes of tensors during a step (gauges.py)."""
        return int(self.side.ask("peak", number=self.number))


@dataclass(frozen=True)
class Times:
    """Milliseconds a step for each side, one number for each round."""

    cpu: dict[str, list[float]] = field(default_factory=dict)
    wall: dict[str, list[float]] = field(default_factory=dict)

    def ms(self, name: str) -> float:
        """Median processor time."""
        return statistics.median(self.cpu[name])

    def ratio(self, above: str, below: str) -> float:
        """Median over the rounds of the ratio of two sides' processor times."""
        pairs = zip(self.cpu[above], self.cpu[below], strict=True)
        return statistics.median(a / b for a, b in pairs)

    def kept(self) -> dict[str, Any]:
        """For the JSON file: the medians and the number of rounds."""
        return {
            "rounds": len(next(iter(self.cpu.values()))),
            "cpu_ms": {name: round(self.ms(name), 3) for name in self.cpu},
            "wall_ms": {name: round(statistics.median(ms), 3) for name, ms in self.wall.items()},
        }


def alternated(runners: Mapping[str, Runner], seconds: float, fewest: int = 3) -> Times:
    """Run the sides in turn for about ``seconds``, in at least ``fewest`` rounds."""
    takes = {}
    for name, runner in runners.items():
        first = runner.run(1)[1]
        # The first step compiles kernels and fills caches; it counts only where a step is long.
        takes[name] = first if first > 10 * BLOCK_MS else runner.run(1)[1]
    counts = {name: max(1, round(BLOCK_MS / take)) for name, take in takes.items()}
    a_round = sum(takes[name] * counts[name] for name in runners)
    rounds = min(MOST_ROUNDS, max(fewest, round(1e3 * seconds / a_round)))
    times = Times({name: [] for name in runners}, {name: [] for name in runners})
    for n in range(rounds):
        for name in list(runners) if n % 2 else reversed(list(runners)):
            cpu, wall = runners[name].run(counts[name])
            times.cpu[name].append(cpu)
            times.wall[name].append(wall)
    return times
