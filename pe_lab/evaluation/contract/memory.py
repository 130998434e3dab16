"""Peak memory of a step."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch.profiler import ProfilerActivity, profile


def peak(step: Callable[[], object]) -> int:
    """Peak bytes of tensors during a step beyond those that exist before it, as PyTorch's profiler
    counts every allocation."""
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
