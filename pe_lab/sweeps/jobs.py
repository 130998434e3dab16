"""The jobs of a sweep: which are finished, how the others ended, their progress, the closing table;
and launching them, again where a pool lost a worker."""

import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from pe_lab.config.overrides import as_typed
from pe_lab.core.console import console, percent
from pe_lab.core.errors import PeLabError, RunError
from pe_lab.core.metrics import IN_DOMAIN, mean_ood, metric_name
from pe_lab.core.output import counted
from pe_lab.experiment.run import folder_of
from pe_lab.experiment.signals import stopping
from pe_lab.store.run_folder import RunFolder
from pe_lab.train.plan import Plan

UNFINISHED = ("failed", "held", "broken", "killed", "interrupted", "running", "not begun")
"""The states of a job that is not finished, in the order of the summary."""


@dataclass
class Job:
    """One job of a sweep.

    Args:
        number: in the sweep, from 1.
        words: its overrides, without those of Hydra itself.
        swept: the swept keys and their values.
        label: its name on the terminal.
        finished_before: whether nothing is left to do.
        steps: of its training.
        twin: the number of an earlier job of the sweep that is the same run.
        returned: the state and the reason where its folder does not have them.
    """

    number: int
    words: list[str]
    swept: dict[str, str]
    label: str
    folder: RunFolder
    finished_before: bool
    steps: int = 0
    twin: int | None = None
    returned: tuple[str, str] | None = None
    status_before: dict[str, Any] = field(default_factory=dict)

    @property
    def missing(self) -> bool:
        """Whether it is to be launched."""
        return not self.finished_before and self.twin is None

    def has_begun(self) -> bool:
        """Whether this sweep has changed its folder."""
        return self.status() != self.status_before

    def status(self) -> dict[str, Any]:
        """The last recorded status of its folder; empty where it cannot be read."""
        try:
            return self.folder.status()
        except PeLabError:
            return {}

    def step(self) -> int:
        """The step of the last checkpoint."""
        return int(self.status().get("step", 0))

    def outcome(self) -> "Outcome":
        """How it ended, read from its folder."""
        try:
            return self._outcome()
        except PeLabError as error:
            return Outcome("broken", str(error))

    def _outcome(self) -> "Outcome":
        summary = self.folder.summary()
        if summary is not None and (self.finished_before or self.has_begun()):
            metrics = summary["metrics"]
            error = metrics.get(metric_name(IN_DOMAIN, "error"))
            state = "finished before" if self.finished_before else "finished"
            return Outcome(state, error=error, ood=mean_ood(metrics, summary["splits"]))
        if self.returned is not None:
            return Outcome(*self.returned)
        status = self.folder.status()
        at = f"at step {status['step']} of {status['steps']}" if status else ""
        if not self.has_begun():
            return Outcome("not begun", f"it was {status['state']} {at}" if status else "")
        if status["state"] == "running":
            return Outcome("killed" if self.folder.killed() else "running", at)
        if status["state"] == "finished":
            # Killed between its last two writes.
            return Outcome("killed", at)
        return Outcome(status["state"], status.get("error") or at)


@dataclass(frozen=True)
class Outcome:
    """The state of a job, the reason or the step, its in-domain error and the mean of those out
    of domain."""

    state: str
    reason: str = ""
    error: float | None = None
    ood: float | None = None

    def __str__(self) -> str:
        """``failed: reason``, ``killed at step 7 of 20``."""
        separator = " " if self.reason.startswith("at ") else ": "
        return f"{self.state}{separator}{self.reason}".rstrip(": ")


def make_jobs(plans: Sequence[Plan], words: Sequence[list[str]], keys: Sequence[str]) -> list[Job]:
    """The jobs of a sweep over ``keys``, with their present state.

    Args:
        words: the overrides of each job.
    """
    jobs: list[Job] = []
    first: dict[str, int] = {}
    for number, (plan, overrides) in enumerate(zip(plans, words, strict=True), 1):
        folder, label = folder_of(plan), _label(plan, overrides, words)
        typed = (word.partition("=") for word in as_typed(overrides))
        values = {key.lstrip("+"): value for key, _, value in typed}
        swept = {key: values[key] for key in keys if key in values}
        twin = first.setdefault(str(folder.path), number)
        done = not plan.config.force and (folder.path / "summary.json").exists()
        job = Job(number, overrides, swept, label, folder, done, plan.config.train.steps)
        job.twin = twin if twin != number else None
        job.status_before = job.status()
        jobs.append(job)
    return jobs


def closing_table(
    jobs: Sequence[Job], outcomes: Mapping[int, Outcome]
) -> tuple[Table, Counter[str]]:
    """One row per job, and the number of jobs in each state; ``outcomes`` by job number."""
    table = Table(title=counted(len(jobs), "job"), title_justify="left")
    table.add_column("", justify="right")
    keys = list(dict.fromkeys(key for job in jobs for key in job.swept))
    for key in keys:
        table.add_column(key)
    table.add_column("state")
    for column in ("in_domain %", "OOD mean %"):
        table.add_column(column, justify="right")
    counts: Counter[str] = Counter()
    for job in jobs:
        outcome = outcomes[job.twin or job.number]
        counts[outcome.state] += 1
        state = f"{outcome.state} (the same run as {job.twin})" if job.twin else str(outcome)
        values = (job.swept.get(key, "") for key in keys)
        errors = ("" if e is None else percent(e) for e in (outcome.error, outcome.ood))
        table.add_row(str(job.number), *values, state, *errors)
    return table, counts


def over_seeds(jobs: Sequence[Job]) -> None:
    """Print the table of ``pe-lab results`` of the finished jobs; nothing where no setting has two
    seeds."""
    from pe_lab.results.format import print_tables
    from pe_lab.results.groups import grouped
    from pe_lab.results.labels import named
    from pe_lab.results.table import runs_of
    from pe_lab.results.tables import Layout, tables

    runs = runs_of(dict.fromkeys(job.folder.path for job in jobs))
    runs = runs.filter(state="finished")
    if runs["setting"].n_unique() < len(runs):
        groups = grouped(runs)
        print_tables("table", tables(groups, named(runs), Layout()), groups)


def best(jobs: Sequence[Job], outcomes: Mapping[int, Outcome]) -> Job | None:
    """The finished job with the lowest mean error out of domain, else in domain."""
    finished = [job for job in jobs if outcomes[job.number].error is not None]

    def errors(job: Job) -> tuple[float, float]:
        outcome = outcomes[job.number]
        return outcome.ood or 0.0, outcome.error or 0.0

    return min(finished, key=errors, default=None)


def unfinished(counts: Counter[str]) -> str:
    """``3 failed, 1 killed``; empty where all jobs are finished."""
    return ", ".join(f"{counts[state]} {state}" for state in UNFINISHED if counts[state])


def _label(plan: Plan, words: Sequence[str], all_words: Sequence[Sequence[str]]) -> str:
    """Task, encoding, seed, and every other word that is not the same in all jobs."""
    names = plan.config.names
    common = set(all_words[0]).intersection(*all_words)
    others = [
        word for word in words
        if word not in common and word.partition("=")[0] not in ("task", "pe", "seed")
    ]  # fmt: skip
    return " ".join([names["task"], names["pe"], f"seed {plan.config.seed}", *as_typed(others)])


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
        at = {job.number: min(_step(job.folder), job.steps) for job in self.jobs}
        begun = [job for job in self.jobs if job.has_begun()]
        running = [job for job in begun if job.status().get("state") == "running"]
        left = [job for job in self.jobs if job not in begun and job.returned is None]
        self.done = len(self.jobs) - len(running) - len(left)
        parts = [f"{self.total - len(running) - len(left)} of {self.total} jobs done"]
        if running:
            named = [f"{one.label}, step {at[one.number]} of {one.steps}" for one in running]
            shown = named[:MAX_NAMED] + ["..."] * (len(named) > MAX_NAMED)
            parts.append(f"{len(running)} running ({'; '.join(shown)})")
        parts.append(f"{len(left)} left")
        steps = sum(max(0, at[number] - first) for number, first in self.first.items())
        remaining = sum(job.steps - at[job.number] for job in running + left)
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
        while not stop.wait(LINE_INTERVAL_S):
            line = self.line()
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


logger = logging.getLogger("pe_lab")

MAX_KILLS = 3
"""Times that a job may be killed without a checkpoint in between, the last time alone in a
pool; also the times that a pool may die before it begins a job."""

Launch = Callable[[Sequence[Job], bool], None]
"""Runs jobs to their end; with True, waits for folders that another process is writing."""


def launch_all(jobs: Sequence[Job], launch: Launch, batch_size: int | None = None) -> None:
    """Launch jobs until each has ended, or a signal came.

    A pool that loses a worker is lost with all that it runs; its jobs resume from their
    checkpoints in a new one. A job that was killed twice at the same step runs alone in a pool,
    and is given up if it is killed there too.

    Args:
        batch_size: jobs launched at a time; None: all.

    Raises:
        RunError: pools die before they begin a job.
    """
    todo, kills, idle_pools = list(jobs), Counter[int](), 0
    while todo and stopping() is None:
        suspects = [job for job in todo if kills[job.number] >= MAX_KILLS - 1]
        batch = [job for job in todo if job not in suspects][:batch_size] or suspects[:1]
        before = {job.number: (job.step(), job.status()) for job in batch}
        try:
            launch(batch, False)
        except BrokenProcessPool:
            todo = [job for job in todo if job not in batch or not _is_over(job)]
            killed = [job for job in batch if job in todo and job.folder.killed()]
            begun = any(job.status() != before[job.number][1] for job in batch)
            idle_pools = 0 if begun else idle_pools + 1
            if idle_pools == MAX_KILLS:
                raise RunError(
                    f"{MAX_KILLS} times a worker was killed before it began a job: is there memory "
                    "for hydra.launcher.n_jobs of them? The same command runs only what is missing"
                ) from None
            for job in killed:
                advanced = job.step() > before[job.number][0]
                kills[job.number] = 0 if advanced else kills[job.number] + 1
                if kills[job.number] >= MAX_KILLS:
                    job.returned = ("killed", f"{MAX_KILLS} times at step {job.step()}, "
                                    "the last time alone: is there memory for it?")  # fmt: skip
                    todo.remove(job)
            if stopping() is None:
                logger.warning("a worker was killed: continuing %d jobs in new workers", len(todo))
        else:
            todo = [job for job in todo if job not in batch]
    held = [job for job in jobs if job.returned is not None and job.returned[0] == "held"]
    if held and stopping() is None:
        for job in held:
            job.returned = None
        launch(held, True)


def _is_over(job: Job) -> bool:
    """Whether another try would not change how it ended."""
    return job.returned is not None or job.outcome().state in ("finished", "failed")
