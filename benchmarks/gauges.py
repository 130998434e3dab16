"""Measures of one step: processor time, wall time, peak bytes of tensors, resident memory."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pe_lab.evaluation.contract.cost import peak as peak

Step = Callable[[], object]


def clocks(steps: Sequence[Step]) -> tuple[float, float]:
    """Processor time and wall time, in milliseconds a step."""
    cpu, wall = time.process_time(), time.perf_counter()
    for step in steps:
        step()
    spent = time.process_time() - cpu, time.perf_counter() - wall
    return 1e3 * spent[0] / len(steps), 1e3 * spent[1] / len(steps)


def resident() -> tuple[int, int]:
    """Resident memory of this process in bytes, now and at its peak (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    known = dict(line.split(":", 1) for line in lines)
    now, most = (1024 * int(known[key].split()[0]) for key in ("VmRSS", "VmHWM"))
    return now, most


def reset_peak() -> None:
    """Restart the peak of ``resident`` (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")
