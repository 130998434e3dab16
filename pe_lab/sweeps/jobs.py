"""The jobs of a sweep: which are finished, how the others ended, and the closing table."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from pe_lab.common.console import percent
from pe_lab.common.errors import PeLabError
from pe_lab.common.output import counted
from pe_lab.config.overrides import as_typed
from pe_lab.core.metrics import IN_DOMAIN, mean_ood, metric_name
from pe_lab.experiment.run import folder_of
from pe_lab.store.run_folder import RunFolder
from pe_lab.training.plan import Plan

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
        step: int = self.status().get("step", 0)
        return step

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
    from pe_lab.results.aggregate import grouped
    from pe_lab.results.frame import runs_of
    from pe_lab.results.labels import named
    from pe_lab.results.presentation.formats import print_tables
    from pe_lab.results.presentation.tables import Layout, tables

    runs = runs_of(dict.fromkeys(job.folder.path for job in jobs))
    runs = runs.filter(state="finished")
    if runs["setting"].n_unique() < len(runs):
        groups = grouped(runs)
        print_tables("table", tables(groups, named(runs), Layout()), groups, runs, [], {})


def best(jobs: Sequence[Job], outcomes: Mapping[int, Outcome]) -> Job | None:
    """The finished job with the lowest mean error out of domain, else in domain."""
    finished = [job for job in jobs if outcomes[job.number].error is not None]
    return min(finished, key=lambda job: _errors(outcomes[job.number]), default=None)


def _errors(outcome: Outcome) -> tuple[float, float]:
    return outcome.ood or 0.0, outcome.error or 0.0


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
