"""What ``pe-lab suite`` prints: what is missing with its cost, and how it ended."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from rich.table import Table

from pe_lab.results.suite import Suite
from pe_lab.sweeps.jobs import UNFINISHED, Job, duration

LEFT = ("interrupted", "running", "not begun")
"""The states of a run that was stopped, or not begun, as the budget or a signal asked for."""


@dataclass(frozen=True)
class Row:
    """A task and a phase before they are run: how many runs, how many of them are missing, seconds
    of a run on average and of all missing ones. Of tuning, the runs that a search is
    expected to do are counted."""

    task: str
    phase: str
    runs: float
    missing: float
    run_s: float
    missing_s: float
    part: str = ""


@dataclass
class Stage:
    """A task and a phase of a work that were run.

    Args:
        untuned: entries without a rate: their tuning is not over, or failed at every rate.
        shipped: runs whose results the package has.
    """

    task: str
    phase: str
    part: str = ""
    jobs: list[Job] = field(default_factory=list)
    untuned: list[str] = field(default_factory=list)
    shipped: int = 0
    wall_s: float = 0.0

    def counts(self) -> Counter[str]:
        """The number of jobs in each state; ``left``: those that were stopped or not begun."""
        counts = Counter(job.outcome().state for job in self.jobs)
        counts["left"] = sum(counts.pop(state, 0) for state in LEFT)
        return counts

    def failures(self) -> list[str]:
        """A line for each run that ended without a result."""
        outcomes = [(job.label, job.outcome()) for job in self.jobs]
        failed = {*UNFINISHED} - {*LEFT}
        return [f"{label}: {outcome}" for label, outcome in outcomes if outcome.state in failed]


def plan_table(suite: Suite, rows: Sequence[Row], workers: int | None, threads: int) -> Table:
    """What is missing, with its cost; ``threads`` of each run."""
    table, parts = _table(f"suite {suite.name} ({suite.digest})", rows)
    for name in ("runs", "missing", "s a run", "core-hours"):
        table.add_column(name, justify="right")

    def add(names: Sequence[str], some: Sequence[Row], run_s: str = "") -> None:
        seconds = threads * sum(row.missing_s for row in some)
        runs, missing = sum(row.runs for row in some), sum(row.missing for row in some)
        numbers = (f"{runs:.0f}", f"{missing:.0f}", run_s, f"{seconds / 3600:.2f}")
        table.add_row(*names[-2 - parts :], *numbers)

    for part, of_part in groupby(rows, lambda row: row.part):
        some = [*of_part]
        for row in some:
            add((part, row.task, row.phase), [row], f"{row.run_s:.1f}")
        table.add_section()
        if parts:
            add((part, "all", ""), some)
            table.add_section()
    add(("all" if parts else "", "" if parts else "all", ""), rows)
    if workers:
        seconds = sum(row.missing_s for row in rows)
        table.caption = f"{duration(seconds / workers)} with {workers} at a time"
        table.caption_justify = "left"
    return table


def closing_table(stages: Sequence[Stage]) -> Table:
    """How many runs ended how."""
    table, parts = _table("suite, how it ended", stages)
    for name in ("shipped", "finished before", "finished", "failed", "left", "wall time"):
        table.add_column(name, justify="right")
    for stage in stages:
        counts, left = stage.counts(), ""
        if stage.untuned:
            left = f", untuned entries: {len(stage.untuned)}"
        done = (stage.shipped, counts["finished before"], counts["finished"])
        numbers = (*map(str, done), str(len(stage.failures())), f"{counts['left']}{left}")
        names = (stage.part, stage.task, stage.phase)[-2 - parts :]
        table.add_row(*names, *numbers, duration(stage.wall_s))
    return table


def _table(title: str, rows: Sequence[Row | Stage]) -> tuple[Table, bool]:
    """With columns for the names of a row; and whether one is for parts."""
    parts = any(row.part for row in rows)
    table = Table(title=title, title_justify="left")
    for name in ("part", "task", "phase")[-2 - parts :]:
        table.add_column(name)
    return table, parts
