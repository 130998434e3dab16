"""Measures of one step: processor time, wall time, peak bytes of tensors, resident memory."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

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


def peak(step: Callable[[], object]) -> int:
    """The most bytes of tensors alive during a step, beyond those that exist before it.

    PyTorch's profiler counts every allocation.
    """
    with _quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    assert seen.profiler is not None
    events = seen.profiler.kineto_results.events()
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    alive = most = 0
    for _, change in sorted(changes, key=lambda pair: pair[0]):
        alive += change
        most = max(most, alive)
    return most


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress what the profiler writes to stderr from C++ when it starts and stops."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
