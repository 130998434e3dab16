"""Whether runs are trained faster together, and how many at once: measured on throw-away copies."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pe_lab.common.signals import stopping
from pe_lab.store.run_folder import RunFolder
from pe_lab.training.batched import Batched
from pe_lab.training.plan import Plan
from pe_lab.training.trainer import Trainer

TRIES = 3
"""How often both ways are timed, in turn; the median counts. Once before them warms up."""

IN_A_ROW = 3
"""Steps of a run alone that are timed at once: the first of them finds the caches cold."""

WORTH = 0.95
"""Twice as many at once must take at most this share of the time a step and run."""


@dataclass(frozen=True)
class Pace:
    """Seconds that a step of one run takes, ``at_once`` of them together and alone."""

    at_once: int
    together_s: float
    alone_s: float


def measured_pace(plans: Sequence[Plan], device: torch.device, most: int) -> Pace:
    """How runs of these plans are trained fastest. Twice as many are tried as long as that pays,
    so that memory is not filled for nothing.

    Args:
        plans: they differ in seed and rate alone; two at least.
        most: runs at once.
    """
    limit, n = min(most, len(plans)), 2
    best: Pace | None = None
    alone, together = _copy(plans[0], device), list[Trainer]()
    while True:
        n = min(n, limit)
        together += [_copy(plan, device) for plan in plans[len(together) : n]]
        try:
            pace = _timed(together, alone)
        except torch.OutOfMemoryError:
            if best is None:
                raise
            return best
        if best is not None and pace.together_s > WORTH * best.together_s:
            return best
        if n == limit:
            return pace
        best, n = pace, 2 * n


def _copy(plan: Plan, device: torch.device) -> Trainer:
    """A trainer of the run's that writes nothing: it has no folder."""
    return Trainer(plan, device, RunFolder(Path()), {}, stopping)


def _timed(together: list[Trainer], alone: Trainer) -> Pace:
    batched, n = Batched(together), len(together)

    def steps_alone() -> None:
        for _ in range(IN_A_ROW):
            alone.train_step()

    def batched_step() -> None:
        batched.step([trainer.parts() for trainer in together])

    seconds: dict[Callable[[], None], list[float]] = {batched_step: [], steps_alone: []}
    for _ in range(1 + TRIES):
        for steps, taken in seconds.items():
            if (stop := stopping()) is not None:
                raise stop
            began = time.perf_counter()
            steps()
            taken.append(time.perf_counter() - began)
    of_batched, of_alone = (statistics.median(taken[1:]) for taken in seconds.values())
    return Pace(n, of_batched / n, of_alone / IN_A_ROW)
