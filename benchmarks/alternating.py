"""Sides that run in turn: blocks of steps, each round in the other order, ratios round by round.

Busy neighbours and a drifting clock disturb the two blocks of a round alike, so a ratio is taken
within each round, of processor times, and the median of the rounds' ratios is reported.
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


def environment(**also: str) -> dict[str, str]:
    """That of this process, one thread, without settings of the allocator."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    return {**kept, "OMP_NUM_THREADS": "1", **also}


class SideError(Exception):
    """A side's process is no more."""


class Side:
    """A process that makes steps and runs them when asked (see side.py); it starts when it is first
    asked.

    Args:
        setting: ``ours``: the process is prepared as a run of ours is, freed memory is kept;
            ``shipped``: as Python, glibc and PyTorch are; ``tuned``: that, and freed memory kept.
            Denormals are flushed in all of them, and all have one thread.
        variables: of the environment.
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
        """The answer to a request; ``SideError`` where the process has ended, having said why."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **request}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise SideError(f"a side of the comparison ended ({do}, {request}): see above")
        return json.loads(line)

    def make(self, what: str, **given: Any) -> "Runner":
        """``module.function(**given)`` of benchmarks, made there."""
        facts = self.ask("make", what=what, given=given)
        self.made += 1
        return Runner(self, self.made - 1, facts)

    def clear(self) -> None:
        """Have it forget what it made."""
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
    """A step that was made in a side."""

    side: Side
    number: int
    facts: dict[str, Any]

    def run(self, times: int) -> tuple[float, float]:
        """Milliseconds a step, of the processor and on the wall."""
        cpu, wall = self.side.ask("run", number=self.number, times=times)
        return cpu, wall

    def peak(self) -> int:
        """Bytes of tensors that a step needs at one time (see gauges.py)."""
        return int(self.side.ask("peak", number=self.number))


@dataclass(frozen=True)
class Times:
    """Milliseconds a step of every side, a number a round."""

    cpu: dict[str, list[float]] = field(default_factory=dict)
    wall: dict[str, list[float]] = field(default_factory=dict)

    def ms(self, name: str) -> float:
        """Median of the processor's time."""
        return statistics.median(self.cpu[name])

    def ratio(self, above: str, below: str) -> float:
        """Median over the rounds of one side's processor time over the other's."""
        pairs = zip(self.cpu[above], self.cpu[below], strict=True)
        return statistics.median(a / b for a, b in pairs)

    def kept(self) -> dict[str, Any]:
        """For the JSON file: medians, and how many rounds they are of."""
        return {
            "rounds": len(next(iter(self.cpu.values()))),
            "cpu_ms": {name: round(self.ms(name), 3) for name in self.cpu},
            "wall_ms": {name: round(statistics.median(ms), 3) for name, ms in self.wall.items()},
        }


def alternated(runners: Mapping[str, Runner], seconds: float, fewest: int = 3) -> Times:
    """Every side in turn for about so many seconds, in at least ``fewest`` rounds."""
    takes = {}
    for name, runner in runners.items():
        first = runner.run(1)[1]
        # The first step compiles, takes memory, fills caches; a long one is measured by it.
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
