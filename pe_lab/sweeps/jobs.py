"""The jobs of a line: which are done, what became of the others, and the table that says so."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.markup import escape
from rich.table import Table

from pe_lab.common.console import percent
from pe_lab.common.errors import UsageError
from pe_lab.common.metrics import IN_DOMAIN, metric_name
from pe_lab.store.run_folder import RunFolder

ENDS = ("failed", "held", "broken", "killed", "interrupted", "running", "not begun")
"""How a job can end that is not finished, in the order in which they are told."""


@dataclass
class Job:
    """One job of a line.

    Args:
        number: in the line, from 1.
        words: its overrides, none that is Hydra's own.
        asked: the swept keys and their values.
        label: what it is called on the terminal.
        finished_before: whether there is nothing left to do.
        twin: the number of an earlier job of the line that is the same run.
        told: how it ended where its folder does not say.
    """

    number: int
    words: list[str]
    asked: dict[str, str]
    label: str
    folder: RunFolder
    finished_before: bool
    twin: int | None = None
    told: tuple[str, str] | None = None
    status_before: dict[str, Any] = field(default_factory=dict)

    @property
    def missing(self) -> bool:
        """Whether it is to be launched."""
        return not self.finished_before and self.twin is None

    def begun(self) -> bool:
        """Whether this line has changed its folder."""
        return self.status() != self.status_before

    def status(self) -> dict[str, Any]:
        """What its folder last recorded; empty where that cannot be read."""
        try:
            return self.folder.status()
        except UsageError:
            return {}

    def step(self) -> int:
        """The last step that a checkpoint holds."""
        step: int = self.status().get("step", 0)
        return step

    def ended(self) -> "Ended":
        """What became of it, read from its folder."""
        try:
            return self._ended()
        except UsageError as error:
            return Ended("broken", str(error))

    def _ended(self) -> "Ended":
        summary = self.folder.summary()
        if summary is not None and (self.finished_before or self.begun()):
            error = summary["metrics"].get(metric_name(IN_DOMAIN, "error"))
            return Ended("finished before" if self.finished_before else "finished", error=error)
        if self.told is not None:
            return Ended(*self.told)
        status = self.folder.status()
        at = f"at step {status['step']} of {status['steps']}" if status else ""
        if not self.begun():
            return Ended("not begun", f"it was {status['state']} {at}" if status else "")
        if status["state"] == "running":
            return Ended("killed" if self.folder.killed() else "running", at)
        if status["state"] == "finished":
            # Killed between its last two writes.
            return Ended("killed", at)
        return Ended(status["state"], status.get("error") or at)


@dataclass(frozen=True)
class Ended:
    """The state of a job, why or where, and its in-domain error."""

    state: str
    why: str = ""
    error: float | None = None

    def told(self) -> str:
        """``failed: why``, ``killed at step 7 of 20``."""
        return f"{self.state}{' ' if self.why.startswith('at ') else ': '}{self.why}".rstrip(": ")


def jobs_of(
    words: Sequence[list[str]],
    labels: Sequence[str],
    folders: Sequence[RunFolder],
    forced: Sequence[bool],
    keys: Sequence[str],
) -> list[Job]:
    """The jobs of a line and where they stand; ``keys`` are those it sweeps."""
    jobs: list[Job] = []
    first: dict[str, int] = {}
    for number, (own, label, folder, force) in enumerate(
        zip(words, labels, folders, forced, strict=True), 1
    ):
        given = {word.partition("=")[0].lstrip("+"): word.partition("=")[2] for word in own}
        asked = {key: given[key] for key in keys if key in given}
        twin = first.setdefault(str(folder.path), number)
        done = not force and (folder.path / "summary.json").exists()
        job = Job(number, own, asked, label, folder, done, twin if twin != number else None)
        job.status_before = job.status()
        jobs.append(job)
    return jobs


def closing(jobs: Sequence[Job]) -> tuple[Table, Counter[str]]:
    """One row a job, and how many there are of each state."""
    ended = {job.number: job.ended() for job in jobs}
    table = Table(title=f"{len(jobs)} jobs", title_justify="left")
    table.add_column("", justify="right")
    keys = list(dict.fromkeys(key for job in jobs for key in job.asked))
    for key in keys:
        table.add_column(escape(key))
    table.add_column("state")
    table.add_column("in_domain %", justify="right")
    counts: Counter[str] = Counter()
    for job in jobs:
        end = ended[job.twin or job.number]
        counts[end.state] += 1
        state = end.told()
        if job.twin:
            state = f"{end.state} (the same run as {job.twin})"
        asked = (escape(job.asked.get(key, "")) for key in keys)
        error = "" if end.error is None else percent(end.error)
        table.add_row(str(job.number), *asked, escape(state), error)
    return table, counts


def in_words(counts: Counter[str]) -> str:
    """``3 failed, 1 killed``: what is not finished."""
    return ", ".join(f"{counts[state]} {state}" for state in ENDS if counts[state])
