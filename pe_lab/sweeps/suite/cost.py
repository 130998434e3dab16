"""What a run of a suite costs here, in seconds: from finished runs, else from steps that are timed,
and the relative costs of the encodings."""

import math
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from pe_lab.common.errors import sentence
from pe_lab.experiment.provenance import prepare
from pe_lab.results.leaderboard.entries import relative_cost
from pe_lab.store.run_folder import RunFolder
from pe_lab.sweeps.suite.runs import Base
from pe_lab.training.batches import evaluation_set
from pe_lab.training.plan import Plan
from pe_lab.training.trainer import Trainer

WARM_UP, STEPS = 2, 6
"""Steps before and while the time is taken."""
PART = 16
"""Of each split, one sequence in so many is measured to time it."""
Seconds = tuple[float, float]
"""Of a step, and of the measurement at the end."""


class Costs:
    """Seconds of the runs of a suite on this machine."""

    def __init__(self) -> None:
        self._finished: dict[tuple[str, str], list[Seconds]] = defaultdict(list)
        self._timed: dict[tuple[str, str], Seconds] = {}
        self.failures: dict[tuple[str, str], str] = {}
        """Why an entry could not be timed on a task."""

    def finished(self, task: str, entry: str, summary: Mapping[str, Any]) -> None:
        """Note what a finished run took."""
        metrics = summary["metrics"]
        seconds = metrics["time/train_s"] / summary["steps"], metrics["time/measure_s"]
        self._finished[task, entry].append(seconds)

    def of(self, base: Base, baseline: Base | None, steps: int) -> float:
        """Seconds of a run of this many steps. Of one that is trained on longer sequences than the
        task's: in proportion to their length.

        Args:
            baseline: the task with ``BASELINE``, timed for entries whose relative cost is known;
                None: this entry is timed. One that fails then costs 0 (``failures``).
        """
        if baseline is not None and base.plan.dims.train_len != baseline.plan.dims.train_len:
            longer = base.plan.dims.train_len / baseline.plan.dims.train_len
            return longer * self.of(replace(base, plan=baseline.plan), baseline, steps)
        key = base.task, base.entry
        if found := self._finished.get(key):
            return median(step for step, _ in found) * steps + median(last for _, last in found)
        relative = relative_cost(base.entry, base.plan.dims.train_len)
        if relative is None or baseline is None:
            relative, baseline = 1.0, base
        key = baseline.task, baseline.entry
        if key not in self._timed:
            try:
                self._timed[key] = timed(baseline.plan)
            except Exception as error:
                # The others are run all the same; a run of this one says what is wrong.
                self._timed[key], self.failures[key] = (0.0, 0.0), sentence(error)
        step, measuring = self._timed[key]
        return relative * (step * steps + measuring)


def timed(plan: Plan) -> Seconds:
    """Train a few steps and measure a part of each split, without a run folder.

    On a CPU, seconds are those of this thread on its processor: what idle cores take by the clock,
    whatever else runs now.
    """
    device, threads = prepare(plan.config), torch.get_num_threads()
    clock = time.thread_time if device.type == "cpu" else time.perf_counter
    sizes = plan.config.eval
    with TemporaryDirectory() as folder, torch.random.fork_rng():
        n = {split: plan.sequences(split, sizes.sequences) for split in plan.splits}
        sets = {split: evaluation_set(plan.task, split, math.ceil(n[split] / PART)) for split in n}
        trainer = Trainer(plan, device, RunFolder(Path(folder)), sets, lambda: None)
        torch.set_num_threads(threads)
        steps = []
        for _ in range(WARM_UP + STEPS):
            began = clock()
            trainer.train_step()
            steps.append(clock() - began)
        measuring = 0.0
        for split, data in sets.items():
            began = clock()
            trainer.evaluator.answers(split).measured()
            measuring += (clock() - began) * n[split] / len(data)
    return median(steps[WARM_UP:]), measuring
