"""The tables of a suite: what is to be done and what it costs, and how it ended."""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rich.table import Table

from pe_lab.common.errors import PeLabError
from pe_lab.common.output import counted
from pe_lab.results.suite import DEFAULT, TUNING, Suite
from pe_lab.sweeps.jobs import UNFINISHED, Job, Outcome
from pe_lab.sweeps.progress import duration

LEFT = ("interrupted", "running", "not begun")
"""The states of a run that was stopped, or not begun, as the budget or a signal asked for."""
FAILED = tuple(state for state in UNFINISHED if state not in LEFT)
SPENT = ("time/train_s", "time/measure_s")
"""The metrics of a run that are seconds in steps and in measuring."""


@dataclass(frozen=True)
class Row:
    """A task and a phase before they are run: how many runs, how many of them are missing, seconds
    of a run on average and of all missing ones."""

    task: str
    phase: str
    runs: int
    missing: int
    run_s: float
    missing_s: float


def plan_table(suite: Suite, rows: Sequence[Row], workers: int | None, threads: int) -> Table:
    """What is missing, with its cost; ``threads`` of each run."""
    title = f"suite {suite.name} ({suite.digest})"
    table = Table(title=title, title_justify="left")
    for name in ("task", "phase"):
        table.add_column(name)
    for name in ("runs", "missing", "s a run", "core-hours"):
        table.add_column(name, justify="right")
    for row in rows:
        hours = f"{threads * row.missing_s / 3600:.2f}"
        numbers = (str(row.runs), str(row.missing), f"{row.run_s:.1f}", hours)
        table.add_row(row.task, row.phase, *numbers)
    runs, missing = sum(row.runs for row in rows), sum(row.missing for row in rows)
    seconds = sum(row.missing_s for row in rows)
    table.add_section()
    table.add_row("all", "", str(runs), str(missing), "", f"{threads * seconds / 3600:.2f}")
    if workers:
        at_once = f"{duration(seconds / workers)} with {workers} at a time"
        table.caption, table.caption_justify = at_once, "left"
    return table


def notes(
    suite: Suite,
    rows: Sequence[Row],
    refusals: Mapping[tuple[str, str], str],
    damaged: Mapping[str, str],
    changed: Mapping[str, int],
    untimed: Mapping[tuple[str, str], str],
) -> Iterator[str]:
    """What stands below the plan.

    Args:
        refusals: task and entry -> why it cannot be trained.
        damaged: run -> why its results cannot be read.
        changed: classes whose file has changed -> finished runs from before.
        untimed: task and entry -> why its steps could not be timed.
    """
    for (task, entry), reason in refusals.items():
        yield f"not run: {entry} on {task}: {reason}"
    for (task, entry), reason in untimed.items():
        yield f"cost not known, counted as 0: {entry} on {task}: {reason}"
    some = ", ".join(suite.protocol.more_seeds_for)
    for phase in dict.fromkeys(row.phase for row in rows if not row.runs):
        yield f"no runs: {phase} is for {some} and for yours"
    for label, reason in damaged.items():
        yield f"damaged: {label}: {reason}"
    for names, n in changed.items():
        if names:
            yield (
                f"{counted(n, 'finished run')} made before the file of {names} changed: their "
                "numbers are those of that code, and count; runs_dir=ANOTHER begins with none"
            )


@dataclass
class Stage:
    """A task and a phase that were run.

    Args:
        untuned: entries without a rate: their tuning is not over, or failed at every rate.
        shipped: runs whose results the package has.
        wall_s: seconds that its jobs took together.
    """

    task: str
    phase: str
    jobs: list[Job]
    untuned: list[str]
    shipped: int = 0
    wall_s: float = 0.0

    @cached_property
    def outcomes(self) -> list[Outcome]:
        """How each job ended."""
        return [job.outcome() for job in self.jobs]

    def counts(self) -> Counter[str]:
        """The number of jobs in each state."""
        return Counter(outcome.state for outcome in self.outcomes)

    def failures(self) -> Iterator[str]:
        """A line for each run that ended without a result."""
        for job, outcome in zip(self.jobs, self.outcomes, strict=True):
            if outcome.state in FAILED:
                yield f"{job.label}: {outcome}"

    def left(self) -> int:
        """The number of runs that were stopped or not begun."""
        counts = self.counts()
        return sum(counts[state] for state in LEFT)

    def spent_s(self) -> float:
        """Seconds in steps and measuring of the runs that were begun and finished here."""
        spent = 0.0
        for job, outcome in zip(self.jobs, self.outcomes, strict=True):
            if outcome.state == "finished" and not job.status_before:
                with suppress(PeLabError):
                    metrics = (job.folder.summary() or {"metrics": {}})["metrics"]
                    spent += sum(metrics.get(key, 0.0) for key in SPENT)
        return spent


def closing_table(stages: Sequence[Stage], workers: int | None) -> Table:
    """How many runs ended how, and what share of the workers' time was steps and measuring."""
    table = Table(title="suite, how it ended", title_justify="left")
    for name in ("task", "phase"):
        table.add_column(name)
    for name in (
        "shipped",
        "finished before",
        "finished",
        "failed",
        "left",
        "wall time",
        "in steps %",
    ):
        table.add_column(name, justify="right")
    for stage in stages:
        counts = stage.counts()
        failed = sum(counts[state] for state in FAILED)
        left = str(stage.left())
        if stage.untuned:
            left += f", untuned entries: {len(stage.untuned)}"
        wall = duration(stage.wall_s) if stage.wall_s else ""
        counted = (stage.shipped, counts["finished before"], counts["finished"], failed)
        share = _share([stage], workers)
        table.add_row(stage.task, stage.phase, *map(str, counted), left, wall, share)
    if len(stages) > 1:
        table.add_section()
        wall_s = sum(stage.wall_s for stage in stages)
        table.add_row("all", "", "", "", "", "", "", duration(wall_s), _share(stages, workers))
    return table


def untuned(
    pairs: Sequence[tuple[str, str]], phases: Sequence[str], damaged: Mapping[str, str]
) -> str:
    """Which entries have no rate, and what to do.

    Args:
        pairs: of task and entry, one or more.
        phases: those that were asked for.
        damaged: runs whose results cannot be read, and why.
    """
    (task, entry), *others = pairs
    also = f" and {len(others)} more" if others else ""
    said = f"{entry} on {task}{also}: no rate is chosen, as "
    if damaged:
        run, why = next(iter(damaged.items()))
        return f"{said}a run is damaged: {run}: {why}"
    return (
        f"{said}runs of tuning are missing or failed: give phases={','.join((TUNING, *phases))}, "
        "or leave it out of pe="
    )


def leaderboard(suite: Suite, args: Any, runs_dir: str) -> str:
    """The command that shows the results, as a line.

    Args:
        args: the words of the command line as Hydra's parser splits them.
    """
    words = ["pe-lab", "leaderboard"]
    words += [f"suite={suite.name}"] if suite.name != DEFAULT else []
    words += ["--config-dir", args.config_dir] if args.config_dir is not None else []
    words += [f"runs_dir={runs_dir}"] if runs_dir != "runs" else []
    return f"look at it: {shlex.join(words)}"


def _share(stages: Sequence[Stage], workers: int | None) -> str:
    wall_s = sum(stage.wall_s for stage in stages)
    if not workers or not wall_s:
        return ""
    return f"{100 * sum(stage.spent_s() for stage in stages) / (wall_s * workers):.0f}"
