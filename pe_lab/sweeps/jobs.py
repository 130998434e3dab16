"""The jobs of a sweep: which are finished, how the others ended, and the closing table."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from pe_lab.common.console import percent
from pe_lab.common.errors import UsageError
from pe_lab.common.metrics import IN_DOMAIN, metric_name
from pe_lab.store.run_folder import RunFolder

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
        twin: the number of an earlier job of the sweep that is the same run.
        returned: the state and the reason where its folder does not have them.
    """

    number: int
    words: list[str]
    swept: dict[str, str]
    label: str
    folder: RunFolder
    finished_before: bool
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
        except UsageError:
            return {}

    def step(self) -> int:
        """The step of the last checkpoint."""
        step: int = self.status().get("step", 0)
        return step

    def outcome(self) -> "Outcome":
        """How it ended, read from its folder."""
        try:
            return self._outcome()
        except UsageError as error:
            return Outcome("broken", str(error))

    def _outcome(self) -> "Outcome":
        summary = self.folder.summary()
        if summary is not None and (self.finished_before or self.has_begun()):
            error = summary["metrics"].get(metric_name(IN_DOMAIN, "error"))
            return Outcome("finished before" if self.finished_before else "finished", error=error)
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
    """The state of a job, the reason or the step, and its in-domain error."""

    state: str
    reason: str = ""
    error: float | None = None

    def __str__(self) -> str:
        """``failed: reason``, ``killed at step 7 of 20``."""
        separator = " " if self.reason.startswith("at ") else ": "
        return f"{self.state}{separator}{self.reason}".rstrip(": ")


def make_jobs(
    words: Sequence[list[str]],
    labels: Sequence[str],
    folders: Sequence[RunFolder],
    forced: Sequence[bool],
    keys: Sequence[str],
) -> list[Job]:
    """The jobs of a sweep over ``keys``, with their present state."""
    jobs: list[Job] = []
    first: dict[str, int] = {}
    for number, (overrides, label, folder, force) in enumerate(
        zip(words, labels, folders, forced, strict=True), 1
    ):
        values = {word.partition("=")[0].lstrip("+"): word.partition("=")[2] for word in overrides}
        swept = {key: values[key] for key in keys if key in values}
        twin = first.setdefault(str(folder.path), number)
        done = not force and (folder.path / "summary.json").exists()
        job = Job(number, overrides, swept, label, folder, done, twin if twin != number else None)
        job.status_before = job.status()
        jobs.append(job)
    return jobs


def closing_table(jobs: Sequence[Job]) -> tuple[Table, Counter[str]]:
    """One row per job, and the number of jobs in each state."""
    outcomes = {job.number: job.outcome() for job in jobs}
    table = Table(title=f"{len(jobs)} jobs", title_justify="left")
    table.add_column("", justify="right")
    keys = list(dict.fromkeys(key for job in jobs for key in job.swept))
    for key in keys:
        table.add_column(key)
    table.add_column("state")
    table.add_column("in_domain %", justify="right")
    counts: Counter[str] = Counter()
    for job in jobs:
        outcome = outcomes[job.twin or job.number]
        counts[outcome.state] += 1
        state = f"{outcome.state} (the same run as {job.twin})" if job.twin else str(outcome)
        values = (job.swept.get(key, "") for key in keys)
        error = "" if outcome.error is None else percent(outcome.error)
        table.add_row(str(job.number), *values, state, error)
    return table, counts


def unfinished(counts: Counter[str]) -> str:
    """``3 failed, 1 killed``; empty where all jobs are finished."""
    return ", ".join(f"{counts[state]} {state}" for state in UNFINISHED if counts[state])
