"""What a recipe costs: processor time of all of its jobs on this machine, extrapolated.

Jobs that differ in nothing but the seed are taken to cost the same. Of one of them the trainer
takes a few steps (after one that is not counted) and measures a few sequences of every split, on
one thread. The median step times ``train.steps`` and a sequence's time times all that a run
measures, during training and at the end, is what a job costs; a recipe costs the sum over its jobs.
Processor time, which a busy neighbour disturbs less than the clock on the wall. A job's start and
what it writes are left out, as is drawing the data (``make bench``: at most 1 % of a step).

A batch of more than ``--tokens`` tokens is cut to that many, and the step's time multiplied: what
does not grow with the batch is then counted too often, what a cache holds only of the small one
too little.

``--write`` puts the result into the header of each recipe (the line ``# cost: ..``).
"""

import argparse
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.cpu import cpu_name
from pe_lab.cli.train import checked_jobs
from pe_lab.common.console import console
from pe_lab.config.schema import Config, plain, validated
from pe_lab.experiment.machine import prepare
from pe_lab.store.run_folder import RunFolder
from pe_lab.training.batches import evaluation_set
from pe_lab.training.plan import Plan, plan
from pe_lab.training.trainer import Trainer

RECIPES = Path(__file__).resolve().parent.parent / "conf" / "experiment"
SECONDS = 2.0
"""Processor seconds of steps, at least, unless ``STEPS`` are done before."""
STEPS = 20
TOKENS = 4096


@dataclass(frozen=True)
class Cost:
    """Of one job, in processor seconds."""

    steps: int
    step: float
    measuring: float
    counted: int
    """How many steps were timed."""
    cut: bool
    """Whether their batches were smaller than the run's."""

    @property
    def seconds(self) -> float:
        return self.steps * self.step + self.measuring


def names() -> list[str]:
    return sorted(
        path.relative_to(RECIPES).with_suffix("").as_posix() for path in RECIPES.rglob("*.yaml")
    )


def distinct(jobs: Sequence[Config]) -> list[tuple[Config, int]]:
    """The jobs less those that differ in the seed alone, each with how many it stands for."""
    kinds = [repr(plain(job) | {"seed": None}) for job in jobs]
    return [(jobs[kinds.index(kind)], n) for kind, n in Counter(kinds).items()]


class NoLog:
    """Keeps no row."""

    size = 0

    def write(self, row: dict[str, Any]) -> None: ...

    def sync(self) -> None: ...


def cost(config: Config, seconds: float, tokens: int) -> Cost:
    """Of one job, from a few of its steps with batches of so many tokens at most."""
    device = prepare(config)
    whole = config.train.batch_size
    batch = min(whole, max(1, tokens // plan(config).dims.train_len))
    keys = plain(config)
    keys["train"] |= {"batch_size": batch, "accumulate": 1}
    planned = plan(validated(keys))
    sets = {s: evaluation_set(planned.task, s, at_once(planned, s)) for s in planned.splits}
    clock: list[float] = []

    def stopping() -> TimeoutError | None:
        enough = len(clock) > STEPS or (len(clock) > 1 and clock[-1] - clock[0] > seconds)
        return TimeoutError() if enough else None

    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(planned, device, RunFolder(Path(folder)), sets, stopping)
        with suppress(TimeoutError):
            trainer.fit(NoLog(), lambda step, loss: clock.append(time.process_time()))
    steps = [after - before for before, after in pairwise(clock)]
    clock.clear()
    measuring = 0.0
    for split, data in sets.items():
        began = time.process_time()
        trainer.evaluator.answers(split)
        measuring += measured(planned, split) / len(data) * (time.process_time() - began)
    step = statistics.median(steps) * whole / batch
    return Cost(config.train.steps, step, measuring, len(steps), batch < whole)


def at_once(planned: Plan, split: str) -> int:
    """So many sequences of a split as are measured at once."""
    length = planned.task.split(split).n_tokens
    return max(1, planned.config.eval.batch_tokens // length)


def measured(planned: Plan, split: str) -> int:
    """How many sequences of a split a run measures in all."""
    config = planned.config
    times = (config.train.steps - 1) // config.eval.every
    quick = planned.sequences(split, config.eval.quick_sequences)
    return times * quick + planned.sequences(split, config.eval.sequences)


def jobs_of(recipe: str) -> list[Config]:
    """Every job of the recipe, checked."""
    return checked_jobs(["-m", f"experiment={recipe}", "device=cpu", "threads=1"])


def duration(seconds: float) -> str:
    for unit, size in (("core-days", 86400), ("core-hours", 3600), ("core-minutes", 60)):
        if seconds >= 2 * size:
            return f"{two_digits(seconds / size)} {unit}"
    return f"{two_digits(seconds)} core-seconds"


def two_digits(number: float) -> str:
    return f"{float(f'{number:.2g}'):g}"


def sentence(costs: Sequence[tuple[Cost, int]]) -> str:
    """The header's line."""
    total = sum(cost.seconds * n for cost, n in costs)
    jobs = sum(n for _, n in costs)
    counts = [cost.counted for cost, _ in costs]
    steps = f"{min(counts)} to {max(counts)} steps"
    if min(counts) == max(counts):
        steps = "1 step" if counts[0] == 1 else f"{counts[0]} steps"
    cut = ", batches cut" if any(cost.cut for cost, _ in costs) else ""
    return (
        f"# cost: {duration(total)} for all {jobs} jobs, extrapolated from {steps} of each"
        f"{cut}; {cpu_name()}, {date.today():%Y-%m}"
    )


def write(recipe: str, line: str) -> None:
    path = RECIPES / f"{recipe}.yaml"
    text, found = re.subn(r"^# cost: .*$", line, path.read_text("utf-8"), flags=re.MULTILINE)
    if found != 1:
        sys.exit(f"{path} has {found} lines that begin with '# cost: ', not one")
    path.write_text(text, "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recipes", description=__doc__)
    parser.add_argument("--recipes", nargs="+", choices=names(), default=names())
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of steps, for each job")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="in a batch, at most")
    parser.add_argument("--write", action="store_true", help="into the recipes' headers")
    args = parser.parse_args()
    shown = Table("recipe", "jobs", "ms a step", "all of it", title=cpu_name())
    for recipe in args.recipes:
        todo = distinct(jobs_of(recipe))
        told = track(todo, recipe, console=Console(stderr=True), transient=True)
        found = [(cost(job, args.seconds, args.tokens), n) for job, n in told]
        each = [1e3 * cost.step for cost, _ in found]
        total = sum(cost.seconds * n for cost, n in found)
        jobs = sum(n for _, n in found)
        shown.add_row(recipe, str(jobs), f"{min(each):.0f} .. {max(each):.0f}", duration(total))
        if args.write:
            write(recipe, sentence(found))
    console().print(shown)


if __name__ == "__main__":
    main()
