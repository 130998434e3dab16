"""What a step takes on a GPU: milliseconds by its own events, and bytes."""

import statistics
import time
from collections.abc import Mapping

import torch

from benchmarks.gauges import Step

WARM_UP = 3
"""Steps that are not counted: they compile, and choose algorithms."""


class Clock:
    """Of one device; on a CPU, for a dry run, the wall's.

    Args:
        rounds: blocks of each step, in turn with those of the others.
        block_ms: about as long is a block.
    """

    def __init__(self, device: torch.device, rounds: int, block_ms: float) -> None:
        self.device, self.rounds, self.block_ms = device, rounds, block_ms

    def medians(self, steps: Mapping[str, Step]) -> dict[str, float]:
        """Milliseconds a step, the median of the rounds."""
        times = {}
        for name, step in steps.items():
            self.block(step, WARM_UP)
            times[name] = max(1, round(self.block_ms / self.block(step, 1)))
        taken: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(self.rounds):
            for name, step in steps.items():
                taken[name].append(self.block(step, times[name]))
        return {name: statistics.median(of) for name, of in taken.items()}

    def block(self, step: Step, times: int) -> float:
        """Milliseconds a step of so many in a row."""
        if self.device.type != "cuda":
            began = time.perf_counter()
            for _ in range(times):
                step()
            return 1e3 * (time.perf_counter() - began) / times
        first, last = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        first.record()
        for _ in range(times):
            step()
        last.record()
        torch.cuda.synchronize()
        return float(first.elapsed_time(last)) / times

    def peak_mb(self, step: Step) -> float | None:
        """Megabytes at most while it runs, beyond what is there before; None: not known."""
        if self.device.type != "cuda":
            return None
        step()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
