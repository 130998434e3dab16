"""The jobs of a sweep: how they are listed, how each ended, and the table that closes it."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from omegaconf import OmegaConf
from rich.table import Table

from pe_lab.config.compose import CommandLine, check_composed, composing
from pe_lab.core.console import percent
from pe_lab.core.errors import PeLabError, counted
from pe_lab.core.metrics import IN_DOMAIN, mean_ood, metric_name
from pe_lab.experiment.environment import warnings_about
from pe_lab.experiment.load_run import check_origin
from pe_lab.experiment.run import find_folder
from pe_lab.store.run_folder import RunFolder
from pe_lab.train.plan import Plan, make_plan

UNFINISHED = ("failed", "broken", "killed", "interrupted", "running", "not begun")
"""The states of a job that is not finished, in the order of the summary."""
MOST_ROWS = 40
"""The most rows of the closing table; of more jobs, the unfinished ones come first."""
MOST_STARTS = 3
"""A job whose process is killed this often at the same step is given up."""
_SEED = re.compile(r"seed=(0|[1-9]\d{0,17})")
_SEEDS = {"seed_init", "seed_data"}


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


@dataclass(frozen=True)
class Job:
    """One job of a sweep, as its workers are given it.

    Args:
        number: in the sweep, from 1.
        words: its overrides, without those of Hydra itself.
        label: its name on the terminal.
        path: its folder.
        force: whether it is run again although it is finished.
    """

    number: int
    words: list[str]
    label: str
    path: str
    force: bool = False

    @cached_property
    def folder(self) -> RunFolder:
        return RunFolder(Path(self.path))

    def written_since(self, began: float) -> bool:
        """Whether its folder was written since a sweep began, by the clock of the file system."""
        try:
            return (self.folder.path / "status.json").stat().st_mtime >= began
        except OSError:
            return False

    def is_over(self, began: float = math.inf) -> bool:
        """Whether nothing is left to do in a sweep: it finished, it failed, or its process was
        killed ``MOST_STARTS`` times at the same step.

        Args:
            began: when the sweep did; the default: it has not begun.
        """
        here = self.written_since(began)
        if (self.folder.path / "summary.json").exists():
            return here or not self.force
        status = self.folder.status() if here else {}
        if status.get("state") != "running":
            return status.get("state") == "failed"
        steps = [start["step"] for start in self.folder.starts() if start["time"] >= began]
        return steps[-MOST_STARTS:] == [status["step"]] * MOST_STARTS and self.folder.killed()

    def outcome(self, began: float) -> Outcome:
        """How it ended, read from its folder.

        Args:
            began: when the sweep did.
        """
        here = self.written_since(began)
        try:
            summary, status = self.folder.summary(), self.folder.status()
        except PeLabError as error:
            return Outcome("broken", str(error))
        if summary is not None and (here or not self.force):
            metrics = summary["metrics"]
            in_domain = metrics.get(metric_name(IN_DOMAIN, "error"))
            state = "finished" if here else "finished before"
            return Outcome(state, "", in_domain, mean_ood(metrics, summary["splits"]))
        if not here:
            return Outcome("not begun", f"it was {status['state']}" if status else "")
        at = f"at step {status['step']} of {status['steps']}"
        return Outcome(self.folder.state("not begun"), status.get("error") or at)


def list_jobs(line: CommandLine) -> tuple[list[Job], list[str], Plan]:
    """The jobs of a command line, checked, the warnings about them, and the plan of the last.

    Jobs that differ in their seed alone are composed and checked once.

    Raises:
        UsageError: a job is wrong.
    """
    plans: dict[tuple[str, ...], Plan] = {}
    jobs, warnings = list[Job](), dict[str, None]()
    with composing(line.config_dir) as composer:
        lines = composer.lines(line)
        common = {*lines[0]}.intersection(*lines)
        for number, words in enumerate(lines, 1):
            seeds = [match for word in words if (match := _SEED.fullmatch(word))]
            shared = tuple(word for word in words if not _SEED.fullmatch(word))
            if shared not in plans:
                cfg = composer.job(words)
                made = check_origin(make_plan(check_composed(cfg)))
                warnings |= dict.fromkeys(warnings_about(made))
                # Weights of thousands of settings would fill the memory.
                planned = replace(made, encodings=[])
                # A key beside the seed may have its value from the seed, or be one of its two.
                follows = re.search(r"\$\{[^}]*\bseed\b", OmegaConf.to_yaml(cfg))
                if seeds and not (follows or cfg.train.get("from") or _SEEDS & {*cfg}):
                    plans[shared] = planned
            else:
                config = replace(plans[shared].config, seed=int(seeds[0][1]))  # type: ignore[type-var]
                planned = replace(plans[shared], config=config)
            names, folder = planned.config.names, find_folder(planned)
            others = [word for word in words if word not in common
                      and word.partition("=")[0] not in ("task", "pe", "seed")]  # fmt: skip
            label = " ".join([names["task"], names["pe"], f"seed {planned.config.seed}", *others])
            jobs.append(Job(number, words, label, str(folder.path), planned.config.force))
    return jobs, [*warnings], planned


def closing_table(
    jobs: Sequence[Job], outcomes: Mapping[str, Outcome]
) -> tuple[Table, Counter[str]]:
    """One row for each job, ``MOST_ROWS`` at most, and the number of jobs in each state.

    Args:
        outcomes: by path.
    """
    counts = Counter(outcomes[job.path].state for job in jobs)
    first = {job.path: job.number for job in reversed(jobs)}
    keys = swept_keys([job.words for job in jobs])
    shown = sorted(jobs, key=lambda job: outcomes[job.path].state not in UNFINISHED)
    table = Table("", *keys, "state", title=counted(len(jobs), "job"), title_justify="left")
    for column in ("in_domain %", "OOD mean %"):
        table.add_column(column, justify="right")
    for job in sorted(shown[:MOST_ROWS], key=lambda job: job.number):
        outcome, number = outcomes[job.path], first[job.path]
        values = dict(word.lstrip("+").partition("=")[::2] for word in job.words)
        same = f"{outcome.state} (the same run as {number})"
        state = str(outcome) if number == job.number else same
        errors = ("" if e is None else percent(e) for e in (outcome.error, outcome.ood))
        table.add_row(str(job.number), *(values.get(key, "") for key in keys), state, *errors)
    if len(jobs) > MOST_ROWS:
        states = ", ".join(f"{n} {state}" for state, n in counts.most_common())
        table.caption = f"{MOST_ROWS} of {len(jobs)} jobs, unfinished ones first; in all {states}"
    return table, counts


def swept_keys(words: Sequence[Sequence[str]]) -> list[str]:
    """The keys whose values differ among the words of these jobs."""
    values: dict[str, set[str]] = {}
    for word in (word for job in words for word in job):
        key, _, value = word.lstrip("+").partition("=")
        values.setdefault(key, set()).add(value)
    return [key for key, each in values.items() if len(each) > 1]
