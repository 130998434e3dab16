"""The progress of a sweep, read from the folders of its jobs: whatever launches them, here or on
other machines."""

import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from pe_lab.common.console import console
from pe_lab.store.run_folder import RunFolder
from pe_lab.sweeps.jobs import Job

POLL_INTERVAL_S = 5.0
LINE_INTERVAL_S = 60.0
MAX_NAMED = 4
"""Running jobs whose steps a line has."""
_TAIL = 16384
"""Bytes at the end of metrics.jsonl that hold its last rows."""


class Progress:
    """Which of these jobs are done and running, and how fast.

    Args:
        jobs: those to be launched.
        total: of the sweep, with those that were finished before.
    """

    def __init__(self, jobs: Sequence[Job], total: int) -> None:
        self.jobs, self.total = jobs, total
        self.began = time.monotonic()
        self.first = {job.number: _step(job.folder) for job in jobs}
        self.done = 0

    def line(self) -> str:
        """``3 of 8 jobs done, 2 running (flipflop rope seed 1, step 240 of 400; ..), 3 left, about
        4 min to go``."""
        running, steps, remaining = [], 0, 0
        self.done = 0
        for job in self.jobs:
            status = job.status()
            begun = status != job.status_before
            if begun and status.get("state") == "running":
                at = min(_step(job.folder), job.steps)
                running.append(f"{job.label}, step {at} of {job.steps}")
                steps += max(0, at - self.first[job.number])
                remaining += job.steps - at
            elif begun or job.returned is not None:
                self.done += 1
                steps += max(0, _step(job.folder) - self.first[job.number])
            else:
                remaining += job.steps - self.first[job.number]
        done = self.total - len(self.jobs) + self.done
        parts = [f"{done} of {self.total} jobs done"]
        if running:
            others = ["..."] if len(running) > MAX_NAMED else []
            parts.append(f"{len(running)} running ({'; '.join(running[:MAX_NAMED] + others)})")
        parts.append(f"{len(self.jobs) - self.done - len(running)} left")
        if steps and remaining:
            left_s = remaining * (time.monotonic() - self.began) / steps
            parts.append(f"about {duration(left_s)} to go")
        return ", ".join(parts)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Print the line every ``LINE_INTERVAL_S``."""
        stop = threading.Event()
        watch = threading.Thread(target=self._watch, args=(stop,), daemon=True)
        watch.start()
        try:
            yield
        finally:
            stop.set()
            watch.join()

    def _watch(self, stop: threading.Event) -> None:
        printed = time.monotonic()
        while not stop.wait(POLL_INTERVAL_S):
            if time.monotonic() - printed >= LINE_INTERVAL_S:
                printed, line = time.monotonic(), self.line()
                if self.done < len(self.jobs):
                    console().print(line, soft_wrap=True)


def _step(folder: RunFolder) -> int:
    """The last step with a row in metrics.jsonl; 0 before the first."""
    with suppress(OSError), open(folder.metrics, "rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL))
        if rows := re.findall(rb'^\{"step": (\d+),', file.read(), re.MULTILINE):
            return int(rows[-1])
    return 0


def duration(seconds: float) -> str:
    """``40 s``, ``12 min``, ``3.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
