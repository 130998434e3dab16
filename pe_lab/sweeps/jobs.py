"""The jobs of a sweep: their state, their progress, and launching them again where a pool died."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from pe_lab.core.console import logger, percent
from pe_lab.core.errors import PeLabError, RunError
from pe_lab.core.metrics import IN_DOMAIN, mean_ood, metric_name
from pe_lab.core.suggest import counted
from pe_lab.experiment.run import find_folder
from pe_lab.experiment.signals import get_interrupt
from pe_lab.store.run_folder import RunFolder
from pe_lab.train.plan import Plan

UNFINISHED = ("failed", "held", "broken", "killed", "interrupted", "running", "not begun")
"""The states of a job that is not finished, in the order of the summary."""


@dataclass(frozen=True)
class Outcome:
    """The state of a job, the reason or the step, its in-domain error and the mean of those out
    of domain."""

    state: str
    reason: str = ""
    error: float | None = None
    ood: float | None = None

    def __str__(self) -> str:
        """``failed: reason``, ``killed: at step 7 of 20``."""
        return f"{self.state}: {self.reason}" if self.reason else self.state


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

    def __post_init__(self) -> None:
        self.status_before = self.status()

    @property
    def missing(self) -> bool:
        """Whether it is to be launched."""
        return not self.finished_before and self.twin is None

    def has_begun(self) -> bool:
        """Return whether this sweep has changed its folder."""
        return self.status() != self.status_before

    def status(self) -> dict[str, Any]:
        """Return the last recorded status of its folder; empty where it cannot be read."""
        try:
            return self.folder.status()
        except PeLabError:
            return {}

    def outcome(self) -> Outcome:
        """Return how it ended, read from its folder."""
        try:
            summary = self.folder.summary()
        except PeLabError as error:
            return Outcome("broken", str(error))
        if summary is not None and (self.finished_before or self.has_begun()):
            metrics = summary["metrics"]
            in_domain = metrics.get(metric_name(IN_DOMAIN, "error"))
            state = "finished before" if self.finished_before else "finished"
            return Outcome(state, "", in_domain, mean_ood(metrics, summary["splits"]))
        if self.returned is not None:
            return Outcome(*self.returned)
        status = self.status()
        if not self.has_begun():
            return Outcome("not begun", f"it was {status['state']}" if status else "")
        state, at = status["state"], f"at step {status['step']} of {status['steps']}"
        # A run that says finished and has no summary was killed between its last two writes.
        if state == "finished" or self.folder.killed():
            return Outcome("killed", at)
        return Outcome(state, status.get("error") or at)


def make_jobs(plans: Sequence[Plan], words: Sequence[list[str]], keys: Sequence[str]) -> list[Job]:
    """Return the jobs of a sweep over ``keys``, with their present state.

    Args:
        words: the overrides of each job.
    """
    jobs: list[Job] = []
    first: dict[str, int] = {}
    common = set(words[0]).intersection(*words)
    for number, (plan, overrides) in enumerate(zip(plans, words, strict=True), 1):
        folder, names = find_folder(plan), plan.config.names
        typed = dict(word.lstrip("+").partition("=")[::2] for word in overrides)
        others = [word for word in overrides if word not in common
                  and word.partition("=")[0] not in ("task", "pe", "seed")]  # fmt: skip
        label = " ".join([names["task"], names["pe"], f"seed {plan.config.seed}", *others])
        swept = {key: typed[key] for key in keys if key in typed}
        done = not plan.config.force and (folder.path / "summary.json").exists()
        twin = first.setdefault(str(folder.path), number)
        twin_or_none = None if twin == number else twin
        jobs.append(Job(number, overrides, swept, label, folder, done, twin_or_none))
    return jobs


def closing_table(
    jobs: Sequence[Job], outcomes: Mapping[int, Outcome]
) -> tuple[Table, Counter[str]]:
    """Return one row per job, and the number of jobs in each state; ``outcomes`` by job number."""
    keys = list(dict.fromkeys(key for job in jobs for key in job.swept))
    table = Table("", *keys, "state", title=counted(len(jobs), "job"), title_justify="left")
    for column in ("in_domain %", "OOD mean %"):
        table.add_column(column, justify="right")
    counts = Counter(outcomes[job.twin or job.number].state for job in jobs)
    for job in jobs:
        outcome = outcomes[job.twin or job.number]
        state = f"{outcome.state} (the same run as {job.twin})" if job.twin else str(outcome)
        values = (job.swept.get(key, "") for key in keys)
        errors = ("" if e is None else percent(e) for e in (outcome.error, outcome.ood))
        table.add_row(str(job.number), *values, state, *errors)
    return table, counts


def launch_all(
    jobs: Sequence[Job],
    launch: Callable[[Sequence[Job]], None],
    batch_size: int | None = None,
) -> None:
    """Launch jobs until each has ended, or a signal came.

    A pool that loses a worker is lost with all that it runs. These jobs resume from their
    checkpoints alone in a new one, so that the one that kills its worker is found and given up.

    Args:
        launch: runs jobs to their end.
        batch_size: jobs launched at a time; None: all.

    Raises:
        RunError: a pool dies before it begins a job.
    """
    waiting, suspects = list(jobs), list[Job]()
    while (waiting or suspects) and get_interrupt() is None:
        batch = suspects[:1] or waiting[:batch_size]
        try:
            launch(batch)
            ended = batch
        except BrokenProcessPool:
            ended = [job for job in batch if job.outcome().state in ("finished", "failed")]
            killed = [job for job in batch if job.folder.killed()]
            if not (killed or ended):
                raise RunError(
                    "a worker was killed before it began a job: is there memory for "
                    "hydra.launcher.n_jobs of them? The same command runs only what is missing"
                ) from None
            logger.warning("a worker was killed: its jobs continue, one at a time")
            if killed and batch == suspects[:1]:
                step = killed[0].status().get("step", 0)
                killed[0].returned = "killed", f"alone at step {step}"
                ended = batch
            suspects += [job for job in killed if job not in suspects]
        waiting = [job for job in waiting if job not in ended and job not in suspects]
        suspects = [job for job in suspects if job not in ended]
