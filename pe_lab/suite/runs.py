"""The runs of a suite: each task with each entry is composed once, its runs differ in rate, seed
and steps; what is known of those that are over; and the runs of each phase of the protocol."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from itertools import product
from statistics import median
from typing import Any

import polars as pl
from omegaconf import DictConfig

from pe_lab.config.check import check_composed
from pe_lab.config.compose import compose
from pe_lab.config.overrides import replace_mappings
from pe_lab.config.schema import plain
from pe_lab.core.errors import PeLabError, UsageError
from pe_lab.core.metrics import IN_DOMAIN, metric_name
from pe_lab.core.rng import generator
from pe_lab.experiment.run import folder_of
from pe_lab.results.leaderboard.entries import BASELINE, relative_cost, steps_of
from pe_lab.results.leaderboard.file import shipped_rows
from pe_lab.results.leaderboard.scores import precedence
from pe_lab.results.leaderboard.tuning import FAILED, Measured
from pe_lab.results.suite import (
    AGAIN,
    SCORE,
    TUNING,
    Suite,
    task_digest,
)
from pe_lab.store.run_folder import RunFolder
from pe_lab.suite.work import DEFAULT
from pe_lab.sweeps.jobs import Job
from pe_lab.train.plan import Plan, plan

Seconds = tuple[float, float]
"""Of a step, and of the measurement at the end."""
SET_BY_RUN = ("train.lr", "train.steps", "seed", "eval.every")
"""The keys that the runs of a ``Base`` set."""


@dataclass(frozen=True)
class SuiteRun:
    """One run of a suite.

    Args:
        phase: what it is for: ``tuning``, ``score``, ``steps_x2``, ..
        words: its overrides.
    """

    task: str
    entry: str
    phase: str
    lr: float
    seed: int
    steps: int
    words: tuple[str, ...]
    folder: RunFolder

    def __str__(self) -> str:
        return f"{self.task} {self.entry} {self.phase} lr {self.lr:g} seed {self.seed}"

    @property
    def run_id(self) -> str:
        """Its name, unique among all runs."""
        return "-".join(self.folder.path.parts[-3:])

    def job(self, number: int) -> Job:
        """The same as a job of a sweep, with its present state."""
        words = replace_mappings(list(self.words))
        done = (self.folder.path / "summary.json").exists()
        return Job(number, words, {}, str(self), self.folder, done, self.steps)


@dataclass(frozen=True)
class Base:
    """A task with an entry, composed.

    Args:
        words: the overrides of all its runs, without those of ``SET_BY_RUN``.
        plan: of one of its runs.
    """

    task: str
    entry: str
    words: tuple[str, ...]
    plan: Plan

    @property
    def steps(self) -> int:
        """Of the task."""
        return self.plan.config.train.steps

    def run(self, phase: str, lr: float, seed: int, steps: int | None = None) -> SuiteRun:
        """The run with this rate and this seed; ``steps``: other than those of the task."""
        steps = steps or self.steps
        config = self.plan.config
        train = replace(config.train, lr=lr, steps=steps)  # type: ignore[type-var]
        planned = replace(self.plan, config=replace(config, train=train, seed=seed))  # type: ignore[type-var]
        # Measured at its end only: measuring before it changes no number.
        values = (lr, steps, seed, steps)
        words = (f"{key}={value!r}" for key, value in zip(SET_BY_RUN, values, strict=True))
        folder = folder_of(planned)
        return SuiteRun(
            self.task, self.entry, phase, lr, seed, steps, (*self.words, *words), folder
        )


class Composer:
    """Composes tasks with entries, each once.

    Args:
        args: the words of the command line as Hydra's parser splits them; its overrides are those
            of every run that are not the suite's (``tracker=none``, ``hydra.launcher.n_jobs=4``).
    """

    def __init__(self, args: Any, suite: Suite) -> None:
        self.args, self.suite = args, suite
        self.refusals: dict[tuple[str, str], str] = {}
        """Why an entry cannot be trained on a task, by task and entry."""
        self._bases: dict[tuple[str, ...], Base | None] = {}
        self.first: tuple[Any, DictConfig, Plan] | None = None
        """Of the first that was composed: the arguments, the configuration and the plan."""

    def base(self, task: str, entry: str, *changes: str) -> Base | None:
        """The task with the entry; None where the entry refuses the task (``refusals``).

        Args:
            changes: overrides of the task, in place of its words for the same keys.

        Raises:
            UsageError: the entry does not exist, or the task is not the one that the suite has or
                lacks one of its splits.
        """
        key = (task, entry, *changes)
        if key not in self._bases:
            self._bases[key] = self._composed(task, entry, changes)
        return self._bases[key]

    def _composed(self, task: str, entry: str, changes: tuple[str, ...]) -> Base | None:
        suite = self.suite
        words = suite.run_words(task, entry)
        keys = {word.partition("=")[0] for word in changes}
        kept = [word for word in words if word.partition("=")[0] not in keys]
        args = copy(self.args)
        args.overrides, args.multirun = [*kept, *changes, *self.args.overrides], False
        (cfg,) = compose(args)
        config = check_composed(cfg)
        try:
            planned = plan(config)
        except UsageError as error:
            self.refusals[task, entry] = str(error)
            return None
        self.first = self.first or (args, cfg, planned)
        if not changes:
            digest = task_digest(plain(planned.resolved), planned.task.contents())
            if digest != suite.tasks[task].digest:
                raise UsageError(
                    f"the task {task} composes to {digest}, and the suite {suite.name} has "
                    f"{suite.tasks[task].digest}: remove what changes it (a yaml in --config-dir, "
                    "another text), or give this suite another name and that digest (in "
                    "quotes)"
                )
            suite.check_splits(task, planned.config.task["splits"])
        ours = [word for word in (*kept, *changes) if word.partition("=")[0] not in SET_BY_RUN]
        others = [word for word in self.args.overrides if not word.startswith("hydra")]
        return Base(task, entry, (*ours, *others), planned)


class Known:
    """Runs that are over: what they measured, and the seconds they took.

    Args:
        shipped: whether the results of runs of the shipped file count.
    """

    def __init__(self, suite: Suite, shipped: bool) -> None:
        rows = shipped_rows(suite)[0].filter(split=IN_DOMAIN)
        self._shipped = _results(rows) if shipped else {}
        times = rows.filter(pl.col("phase").is_in([TUNING, SCORE])).drop_nulls("train_s")
        medians = times.group_by("task", "entry").agg(
            (pl.col("train_s") / pl.col("steps")).median(), pl.col("measure_s").median()
        )
        self._seconds: dict[tuple[str, str], Seconds] = {
            (task, entry): (step, last) for task, entry, step, last in medians.iter_rows()
        }
        self.suite = suite
        for task in suite.tasks:
            # Runs that shared their machine took longer than the pilot.
            found, pilot = self._seconds.get((task, BASELINE)), self._piloted(task)
            if found and pilot and pilot[0] < found[0]:
                self._seconds[task, BASELINE] = pilot
        self._here: dict[tuple[str, str], dict[str, Seconds]] = defaultdict(dict)
        self.damaged: dict[str, str] = {}
        """Runs whose results cannot be read, and why."""

    def is_shipped(self, run: SuiteRun) -> bool:
        """Whether the package has the result of this run."""
        return run.run_id in self._shipped

    def summary(self, run: SuiteRun) -> dict[str, Any] | None:
        """Of a run that is finished here; a damaged one is noted in ``damaged``."""
        try:
            return run.folder.summary()
        except PeLabError as error:
            self.damaged[str(run)] = str(error)
            return None

    def measured(self, run: SuiteRun) -> Measured | None:
        """Error and loss in domain, of the result that counts (``precedence``); None: the run is
        not over."""
        found = dict(self._shipped.get(run.run_id, {}))
        summary = self.summary(run)
        if summary is not None:
            metrics = summary["metrics"]
            pair = _pair(*(metrics[metric_name(IN_DOMAIN, key)] for key in ("error", "loss")))
            found[precedence(True, False)] = pair
            step_s = metrics["time/train_s"] / summary["steps"]
            self._here[run.task, run.entry][run.run_id] = step_s, metrics["time/measure_s"]
        else:
            status = run.job(0).status()
            if status.get("state") == "failed" and not status.get("by_machine"):
                found[precedence(False, False)] = FAILED
        return found[min(found)] if found else None

    def seconds(self, base: Base, steps: int) -> float | None:
        """What a run of this many steps takes: by tuning runs of the entry that are finished here,
        else by shipped ones, else by those in the first column and the column's cost, else by the
        faster of rope's and the suite's pilot, and the relative cost. None: the task has none of
        them."""
        name, column = self.suite.split(base.entry)
        if found := self._of(base.task, base.entry):
            times = 1.0
        else:
            times = self.suite.columns[column].cost
            found = self._of(base.task, name)
        if found is None:
            times *= relative_cost(name, base.plan.dims.train_len) or 1.0
            found = self._of(base.task, BASELINE) or self._piloted(base.task)
        return None if found is None else times * (found[0] * steps + found[1])

    def _piloted(self, task: str) -> Seconds | None:
        one = self.suite.tasks[task]
        return None if one.seconds is None else (one.seconds / steps_of(self.suite, task), 0.0)

    def _of(self, task: str, entry: str) -> Seconds | None:
        if here := self._here[task, entry].values():
            return median(step for step, _ in here), median(last for _, last in here)
        return self._seconds.get((task, entry))


def _results(rows: pl.DataFrame) -> Mapping[str, Mapping[int, Measured]]:
    """Of each shipped run its results by ``precedence``."""
    found: dict[str, dict[int, Measured]] = {}
    for run_id, state, error, loss in rows.select("run_id", "state", "error", "loss").iter_rows():
        place = precedence(state == "finished", True)
        found.setdefault(run_id, {}).setdefault(place, _pair(error, loss))
    return found


def _pair(error: float | None, loss: float | None) -> Measured:
    """With what a run that failed, or whose loss is not finite, counts as."""
    return FAILED[0] if error is None else error, FAILED[1] if loss is None else loss


EVERY = 10
"""Of this many cells, a task with an entry, one is run ``again``."""


class Phases:
    """What each phase of the protocol runs."""

    def __init__(self, suite: Suite, composer: Composer) -> None:
        self.suite, self.composer = suite, composer

    def entries(self, phase: str, entries: list[str]) -> list[str]:
        """Those of the entries that a phase has runs of: beyond ``DEFAULT`` the encodings of
        ``more_seeds_for``, and those that are not the suite's."""
        ours = {*self.suite.entries} - {*self.suite.protocol.more_seeds_for}
        every = phase in (*DEFAULT, AGAIN)
        return [e for e in entries if every or self.suite.split(e)[0] not in ours]

    def tuned(self, base: Base) -> Iterator[SuiteRun]:
        """The tuning runs that an entry may have on a task."""
        protocol = self.suite.protocol
        for rate, seed in product(protocol.all_rates, protocol.tuning_seeds):
            yield base.run(TUNING, rate, seed)

    def runs(self, phase: str, base: Base, lr: float, seeds: int | None = None) -> list[SuiteRun]:
        """The runs of a phase, beside tuning, of an entry on a task at the chosen rate.

        Args:
            seeds: how many; None: as the protocol says.
        """
        protocol = self.suite.protocol
        if phase == "more_seeds":
            more = range(protocol.seeds, protocol.more_seeds)
            return [base.run(SCORE, lr, seed) for seed in more]
        return [
            at.run(name, lr, seed, steps)
            for at, name, steps in self._kinds(phase, base)
            for seed in range(seeds or protocol.seeds)
        ]

    def _kinds(self, phase: str, base: Base) -> Iterator[tuple[Base, str, int | None]]:
        """What is run on every seed of the score: of what, its name, and the steps if others."""
        if phase in (SCORE, AGAIN):
            if phase == SCORE or self._is_drawn(base):
                yield base, SCORE, None
        elif phase == "longer":
            for times in self.suite.protocol.longer:
                yield base, f"steps_x{times}", times * base.steps

    def _is_drawn(self, base: Base) -> bool:
        """Whether a cell is one of those that are run again, whatever its result is."""
        return generator(0, self.suite.version, base.task, base.entry).integers(EVERY) == 0
