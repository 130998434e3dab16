"""Which runs a suite asks for, what the missing ones cost, and training them phase by phase.

A run is known by its task, entry, phase, learning rate and seed. Shipped results count as done.
"""

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path

import polars as pl

from pe_lab.config.compose import CommandLine, Composer, check_composed, composing
from pe_lab.core.console import busy, console
from pe_lab.core.errors import PeLabError, UsageError, check_known, counted
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.experiment.environment import prepare_process
from pe_lab.experiment.run import find_folder
from pe_lab.results.format import Table
from pe_lab.results.table import runs_of, task_digest
from pe_lab.suite.rows import read_shipped, rows_of
from pe_lab.suite.scores import BASELINE, choose_rates, collect_tuning, next_tuning, unite
from pe_lab.suite.suite import LONGER, MORE_SEEDS, PHASES, SCORE, TUNING, Suite
from pe_lab.sweeps.jobs import Job, Outcome
from pe_lab.sweeps.sweep import Sweep
from pe_lab.train.plan import Plan, make_plan
from pe_lab.train.trainer import seconds_a_step

ENDED = ("finished", "finished before")


@dataclass(frozen=True)
class Stage:
    """Some entries on a task in a phase.

    Args:
        group: its number in the order of the suite's work.
        entries: with their columns: ``cope``, ``cope+conv``.
        seeds: of the score; None: as many as the protocol says.
    """

    group: int
    part: str
    task: str
    phase: str
    entries: list[str]
    seeds: int | None = None


def select_stages(
    suite: Suite,
    tasks: Sequence[str] = (),
    entries: Sequence[str] = (),
    columns: Sequence[str] = (),
    phases: Sequence[str] = (),
    parts: Sequence[str] = (),
) -> list[Stage]:
    """Return the stages of a suite of what is named; an empty list names all.

    Args:
        entries: ``cope`` for all columns, ``cope+conv`` for one.

    Raises:
        UsageError: a name is unknown, or no part has what is named.
    """
    check_known("tasks={}", tasks, suite.tasks)
    check_known("columns={}", columns, suite.columns)
    check_known("phases={}", phases, PHASES)
    check_known("part={}", parts, [number for number, _ in suite.groups])
    stages = []
    for at, (number, group) in enumerate(suite.groups):
        own = [suite.split(entry)[0] for entry in entries] if group.yours else []
        bases = dict.fromkeys([*group.entries, *(e for e in own if e not in suite.entries)])
        of_columns = [column for column in group.columns if not columns or column in columns]
        pairs = [(base, suite.named(base, column)) for base, column in product(bases, of_columns)]
        chosen = [
            entry
            for base, entry in pairs
            if entry is not None and (not entries or base in entries or entry in entries)
        ]
        named_phases = [phase for phase in phases if {*group.phases} == {TUNING, SCORE}]
        of_phases = [phase for phase in PHASES if phase in (named_phases or group.phases)]
        wanted = (not parts or number in parts) and (not phases or {*of_phases} <= {*phases})
        stages += [
            Stage(at, number, task, phase, chosen, group.seeds)
            for task, phase in product(group.tasks, of_phases)
            if wanted and chosen and (not tasks or task in tasks)
        ]
    if not stages:
        raise UsageError(f"suite {suite.name}: no part has these tasks, entries and columns")
    return stages


@dataclass(frozen=True)
class SuiteRun:
    """One run of a suite."""

    task: str
    entry: str
    phase: str
    lr: float
    seed: int
    steps: int

    def __str__(self) -> str:
        return f"{self.task} {self.entry} {self.phase} lr {self.lr:g} seed {self.seed}"


class Known:
    """The runs whose results are known, and what they took.

    Args:
        own: the rows of ``runs_dir``; failed runs among them are trained again.
        use_shipped: whether shipped results count as done.

    Attributes:
        relative: (task, entry) -> the time of a step relative to rope's, of entries of the user.
    """

    def __init__(self, suite: Suite, own: pl.DataFrame, *, use_shipped: bool = True) -> None:
        self.suite, self.shipped = suite, read_shipped(suite)
        self.use_shipped, self.begun = use_shipped, set[SuiteRun]()
        self.relative = dict[tuple[str, str], float]()
        self.update(own.filter(pl.col("state") == "finished"))

    def update(self, own: pl.DataFrame) -> None:
        """Take these as the rows of ``runs_dir``."""
        shipped = self.shipped if self.use_shipped else self.shipped.clear()
        self.own, rows = own, unite(shipped, own)
        self.tuning = collect_tuning(rows, self.suite.protocol)
        tuned = choose_rates(rows, self.suite).filter(rates=len(self.suite.protocol.rates))
        rates = tuned.drop_nulls("chosen").select("task", "entry", "chosen").iter_rows()
        self.rates = {(task, entry): lr for task, entry, lr in rates}
        known = rows.select([*SuiteRun.__annotations__]).unique()
        self.done = {SuiteRun(*row) for row in known.iter_rows()}

    def wanted(self, stage: Stage, entry: str, lr: float) -> list[SuiteRun]:
        """Return the runs of a stage after tuning, at this rate."""
        protocol, task, phase = self.suite.protocol, stage.task, stage.phase
        base, steps = self.suite.split(entry)[0], self.suite.steps(task, entry)
        seeds = range(stage.seeds or protocol.seeds)
        times: tuple[int, ...] = (1,)
        if phase in (MORE_SEEDS, LONGER):
            if base in self.suite.entries and base not in protocol.more_seeds_for:
                return []
            if phase == LONGER:
                times = protocol.longer
            else:
                seeds = range(protocol.seeds, protocol.more_seeds)
        return [
            SuiteRun(task, entry, SCORE if n == 1 else f"steps_x{n}", lr, seed, n * steps)
            for n, seed in product(times, seeds)
        ]

    def missing(self, stage: Stage, entry: str) -> list[SuiteRun]:
        """Return the runs of a stage that can be trained now; none before a rate is chosen, and of
        tuning those of the next round."""
        pair, runs = (stage.task, entry), list[SuiteRun]()
        if stage.phase == TUNING:
            tuning = next_tuning(self.suite, stage.task, self.tuning.get(pair, {}))
            runs = [
                SuiteRun(*pair, TUNING, lr, seed, self.suite.steps(*pair)) for lr, seed in tuning
            ]
        elif pair in self.rates:
            runs = self.wanted(stage, entry, self.rates[pair])
        return [run for run in runs if run not in self.done and run not in self.begun]

    def next_runs(self, stage: Stage) -> list[SuiteRun]:
        """Return what is missing of a stage now, seed by seed over all entries."""
        runs = [run for entry in stage.entries for run in self.missing(stage, entry)]
        return sorted(runs, key=lambda run: run.seed)

    @cached_property
    def _seconds(self) -> dict[tuple[str, str], float]:
        """(task, entry) -> the median time of a run for each step, by own runs if there are any."""
        second = (pl.col("train_s") + pl.col("measure_s").fill_null(0)) / pl.col("steps")
        medians = [
            of.filter(pl.col("split") == IN_DOMAIN).group_by("task", "entry").agg(second.median())
            for of in (self.shipped, self.own)
        ]
        rows = (row for of in medians for row in of.drop_nulls().iter_rows())
        return {(task, entry): seconds for task, entry, seconds in rows}

    def seconds(self, task: str, entry: str) -> float:
        """Return what a run takes: by runs of the entry on the task, else by those of rope or the
        suite's pilot, with the relative cost of the entry and of the column."""
        steps, of_task = self.suite.steps(task, entry), self.suite.tasks[task]
        # Of rope the faster one counts: runs that ship shared their machine.
        pilot = (of_task.seconds or 0.0) / of_task.steps
        rope = min(self._seconds.get((task, BASELINE), pilot), pilot or math.inf)
        base, column = self.suite.split(entry)
        times = self.suite.columns[column].cost * self.relative.get((task, base), 1.0)
        return steps * self._seconds.get((task, entry), times * rope)

    def cost_table(self, stages: Sequence[Stage]) -> Table:
        """Return a row for each stage: how many runs it has, how many of them are missing, and what
        these cost. A search is counted with the runs that it needs on average."""
        rows = []
        for stage in stages:
            counts = [self._counts(stage, entry) for entry in stage.entries]
            runs, missing, hours = (sum(column) for column in zip(*counts, strict=True))
            rows.append((stage.part, stage.task, stage.phase, round(runs), round(missing), hours))
        names = ["part", "task", "phase", "runs", "missing", "core_hours"]
        frame = pl.DataFrame(rows, names, orient="row")
        total = frame.select("runs", "missing", "core_hours").sum()
        total = total.with_columns(part=pl.lit(""), task=pl.lit("all"), phase=pl.lit(""))
        formats = dict.fromkeys(names[not self.suite.parts :], str) | {
            "core_hours": "{:.2f}".format
        }
        title = f"suite {self.suite.name} ({self.suite.digest})"
        return Table(pl.concat([frame, total], how="diagonal"), formats, title)

    def _counts(self, stage: Stage, entry: str) -> tuple[float, float, float]:
        """Return how many runs an entry has, how many are missing, and their core-hours."""
        left, pair = float(len(self.missing(stage, entry))), (stage.task, entry)
        if stage.phase == TUNING:
            runs = float(sum(map(len, self.tuning.get(pair, {}).values())))
            search = self.suite.protocol.search
            left = max(left, search.runs - runs) if left and search is not None else left
            runs += left
        else:
            runs = float(len(self.wanted(stage, entry, 0.0)))
            left = left if pair in self.rates else runs
        times = self.suite.protocol.longer[0] if stage.phase == LONGER else 1
        return runs, left, left * times * self.seconds(*pair) / 3600


@dataclass
class SuiteTrainer:
    """Trains the missing runs of a suite through a launcher.

    Args:
        line: the command line: keys of the launcher, and those that change no number.
        refused: (task, entry) -> why the entry cannot be trained on the task.
        failed: a line for each run that ended without a result.
    """

    line: CommandLine
    suite: Suite
    runs_dir: Path
    known: Known
    refused: dict[tuple[str, str], str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    _plans: dict[tuple[str, str], Plan | None] = field(default_factory=dict, init=False)
    _sweep: Sweep | None = field(default=None, init=False)

    def time_entries(self, stages: Sequence[Stage]) -> None:
        """Time some training steps of each missing entry that is not the suite's, and of rope."""
        pairs = dict.fromkeys(
            (s.task, e) for s in stages for e in s.entries if self.known.missing(s, e)
        )
        own = dict.fromkeys((task, self.suite.split(entry)[0]) for task, entry in pairs)
        with composing(self.line.config_dir) as composer:
            for task, entry in own.keys() - product(self.suite.tasks, self.suite.entries):
                plans = [self._plan(task, one, composer) for one in (entry, BASELINE)]
                seconds = [seconds_a_step(one, prepare_process(one.config)) for one in plans if one]
                if len(seconds) == 2:
                    self.known.relative[task, entry] = seconds[0] / seconds[1]

    def compose(self, stages: Sequence[Stage]) -> None:
        """Compose each pair of task and entry that lacks a run, and the launcher.

        Raises:
            UsageError: a task is not the one that the suite has, or the launcher is wrong.
        """
        runs = [run for stage in stages for run in self.known.next_runs(stage)]
        untuned = {(stage.task, entry) for stage in stages for entry in stage.entries}
        untuned -= self.known.rates.keys()
        if untuned and TUNING not in (stage.phase for stage in stages):
            task, entry = min(untuned)
            raise UsageError(f"{entry} on {task} has no tuned rate: give phases=tuning,score")
        pairs = dict.fromkeys((run.task, run.entry) for run in runs)
        said = f"composing {len(pairs)} pairs of task and entry"
        with busy(said), composing(self.line.config_dir) as composer:
            self._plans = {pair: self._plan(*pair, composer) for pair in pairs}
        for pair in list(pairs)[:1]:
            name = f"suite-{self.suite.name}"
            self._sweep = Sweep(self.line, self._words(*pair), str(self.runs_dir), name)

    def _words(self, task: str, entry: str) -> list[str]:
        return [*self.suite.run_words(task, entry), *self.line.words]

    def _plan(self, task: str, entry: str, composer: Composer) -> Plan | None:
        """Return the plan of an entry's runs on a task; None if it refuses the task."""
        config = check_composed(composer.job(self._words(task, entry)))
        try:
            planned = make_plan(config)
        except UsageError as error:
            self.refused[task, entry] = str(error)
            return None
        digest = task_digest(planned.resolved, planned.task.contents())
        if digest != self.suite.tasks[task].digest:
            raise UsageError(
                f"the task {task} composes to {digest}, suite {self.suite.name} has "
                f"{self.suite.tasks[task].digest}: remove what changes it, or give your suite this "
                "digest (in quotes)"
            )
        return planned

    def train(self, stages: Sequence[Stage]) -> None:
        """Train all missing runs, the cheapest task of each part first.

        Raises:
            PeLabError: some runs did not finish; the same command trains what is missing.
            Interrupted: a signal came; the same command continues.
        """
        if self._sweep is None:
            return
        for stage in sorted(stages, key=lambda stage: (stage.group, self._cost(stage))):
            self._train_stage(stage, self._sweep)
        refused = (f"not run: {t} {entry}: {why}" for (t, entry), why in self.refused.items())
        for line in (*self.failed, *refused):
            console().print(line, soft_wrap=True)
        if self.failed:
            raise PeLabError(f"{counted(len(self.failed), 'run')} not finished: repeat the command")

    def _cost(self, stage: Stage) -> float:
        return sum(self.known.seconds(stage.task, entry) for entry in stage.entries)

    def _train_stage(self, stage: Stage, sweep: Sweep) -> None:
        # What a round of tuning measures decides which runs the next one has.
        while runs := self.known.next_runs(stage):
            began, jobs = time.monotonic(), self._jobs(runs)
            try:
                if missing := [job for job in jobs if not job.is_over()]:
                    sweep.launch(missing, len(jobs))
            finally:
                outcomes = {job.label: sweep.outcome(job) for job in jobs}
                if jobs:
                    states = Counter(outcome.state for outcome in outcomes.values())
                    said = ", ".join(f"{n} {state}" for state, n in states.items())
                    minutes = (time.monotonic() - began) / 60
                    console().print(f"{stage.task}, {stage.phase}: {said}, {minutes:.1f} min")
                self._record(runs, jobs, outcomes)

    def _record(
        self, runs: Sequence[SuiteRun], jobs: Sequence[Job], outcomes: Mapping[str, Outcome]
    ) -> None:
        """Take what jobs measured, and note those that did not finish."""
        ended = ((label, one) for label, one in outcomes.items() if one.state not in ENDED)
        self.failed += [f"{label}: {outcome}" for label, outcome in ended]
        self.known.begun |= {*runs}
        trained = runs_of(job.folder.path for job in jobs)
        rows = rows_of(self.suite, trained, self.line.config_dir)
        others = self.known.own.join(rows, on="run_id", how="anti")
        self.known.update(pl.concat([others, rows]))

    def _jobs(self, runs: Sequence[SuiteRun]) -> list[Job]:
        """Return the runs, but for those whose entry refuses the task, as jobs of a sweep."""
        plans = [(run, one) for run in runs if (one := self._plans[run.task, run.entry])]
        jobs = []
        for number, (run, planned) in enumerate(plans, 1):
            train = replace(planned.config.train, lr=run.lr, steps=run.steps)  # type: ignore[type-var]
            config = replace(planned.config, train=train, seed=run.seed)  # type: ignore[type-var]
            folder = find_folder(replace(planned, config=config))
            # A run of a suite is measured at its end alone.
            values = {"train.lr": run.lr, "train.steps": run.steps, "seed": run.seed}
            own = [f"{key}={value!r}" for key, value in {**values, "eval.every": run.steps}.items()]
            kept = [
                word for word in self._words(run.task, run.entry)
                if word.partition("=")[0] != "train.steps" and not word.startswith("hydra")
            ]  # fmt: skip
            words = [*kept, *own]
            jobs.append(Job(number, words, str(run), str(folder.path), config.force))
        return jobs
