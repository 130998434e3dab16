"""What a step takes: processor time, time on the wall, bytes of tensors, resident memory."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

Step = Callable[[], None]


def clocks(steps: Sequence[Step]) -> tuple[float, float]:
    """Milliseconds a step: of the processor, and on the wall."""
    cpu, wall = time.process_time(), time.perf_counter()
    for step in steps:
        step()
    spent = time.process_time() - cpu, time.perf_counter() - wall
    return 1e3 * spent[0] / len(steps), 1e3 * spent[1] / len(steps)


@contextmanager
def quiet() -> Iterator[None]:
    """Without what the profiler writes to stderr from C++ at each start and stop."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def peak(step: Step) -> int:
    """The most bytes of tensors alive during a step, beyond those alive before it, as PyTorch's
    profiler counts every allocation."""
    with quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    assert seen.profiler is not None
    events = seen.profiler.kineto_results.events()
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    alive = most = 0
    for _, change in sorted(changes, key=lambda pair: pair[0]):
        alive += change
        most = max(most, alive)
    return most


def resident() -> tuple[int, int]:
    """Bytes of this process that are in memory, now and at most so far (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    known = dict(line.split(":", 1) for line in lines)
    now, most = (1024 * int(known[key].split()[0]) for key in ("VmRSS", "VmHWM"))
    return now, most


def forget_most() -> None:
    """Have ``resident`` count its most from here on (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")
