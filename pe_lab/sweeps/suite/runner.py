"""``pe-lab suite``: what is missing of a suite, cheapest task first, through a launcher."""

import shlex
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from rich.table import Table

from pe_lab.common.console import busy, console
from pe_lab.common.errors import Interrupted, PeLabError, UsageError
from pe_lab.common.files import check_folder, check_writable
from pe_lab.common.output import counted
from pe_lab.config.schema import cpus
from pe_lab.experiment.provenance import changed_code
from pe_lab.results.leaderboard.scores import Measured, chosen_rate
from pe_lab.results.suite import DEFAULT, TUNING, Suite
from pe_lab.sweeps.jobs import UNFINISHED, Job, Progress, duration, launch_all
from pe_lab.sweeps.launchers import JOBLIB, check_launcher
from pe_lab.sweeps.suite.runs import Base, Composer, Known, Phases, SuiteRun
from pe_lab.sweeps.sweep import Sweep, conclude

AGAIN = "the same command runs only what is missing"
LEFT = ("interrupted", "running", "not begun")
"""The states of a run that was stopped, or not begun, as the budget or a signal asked for."""


@dataclass(frozen=True)
class Request:
    """What is asked for.

    Args:
        entries: encodings and controls.
        budget_s: seconds after which no run is begun; None: no limit.
        dry: only print what is to be done.
        shipped: runs whose results the package has are not run again.
    """

    tasks: list[str]
    entries: list[str]
    phases: list[str]
    budget_s: float | None = None
    dry: bool = False
    shipped: bool = True


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


@dataclass
class Stage:
    """A task and a phase that were run.

    Args:
        untuned: entries without a rate: their tuning is not over, or failed at every rate.
        shipped: runs whose results the package has.
    """

    task: str
    phase: str
    jobs: list[Job]
    untuned: list[str]
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


def run_suite(args: Any, suite: Suite, request: Request) -> None:
    """Do what is missing.

    Args:
        args: the words of the command line as Hydra's parser splits them: the launcher, and keys
            that are not part of a run's identity.

    Raises:
        UsageError: the request is wrong; nothing was done.
        PeLabError: runs failed; the same command does what is missing.
        Interrupted: a signal came; the same command continues.
    """
    runner = Runner(args, suite, request)
    check_folder(runner.runs_dir)
    pairs = len(request.tasks) * len(request.entries)
    with busy(f"composing {pairs} pairs of task and entry"):
        if TUNING not in request.phases:
            runner.check_tuned()
        rows = runner.planned()
    console().print(plan_table(suite, rows, runner.workers, runner.threads))
    for note in runner.notes(rows):
        console().print(note, soft_wrap=True)
    if not any(row.missing for row in rows):
        if damaged := runner.known.damaged:
            raise PeLabError(
                f"{counted(len(damaged), 'run')} damaged: give pe-lab verify set_aside=true first"
            )
        console().print("nothing is missing")
    elif not request.dry:
        check_writable(runner.runs_dir)
        runner.run()


def plan_table(suite: Suite, rows: Sequence[Row], workers: int | None, threads: int) -> Table:
    """What is missing, with its cost; ``threads`` of each run."""
    table = Table(title=f"suite {suite.name} ({suite.digest})", title_justify="left")
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
        table.caption = f"{duration(seconds / workers)} with {workers} at a time"
        table.caption_justify = "left"
    return table


def closing_table(stages: Sequence[Stage]) -> Table:
    """How many runs ended how."""
    table = Table(title="suite, how it ended", title_justify="left")
    for name in ("task", "phase"):
        table.add_column(name)
    for name in ("shipped", "finished before", "finished", "failed", "left", "wall time"):
        table.add_column(name, justify="right")
    for stage in stages:
        counts, left = stage.counts(), ""
        if stage.untuned:
            left = f", untuned entries: {len(stage.untuned)}"
        done = (stage.shipped, counts["finished before"], counts["finished"])
        numbers = (*map(str, done), str(len(stage.failures())), f"{counts['left']}{left}")
        table.add_row(stage.task, stage.phase, *numbers, duration(stage.wall_s))
    return table


@dataclass
class Runner:
    """A request on its way."""

    args: Any
    suite: Suite
    request: Request
    stages: list[Stage] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.composer = Composer(self.args, self.suite)
        self.phases = Phases(self.suite, self.composer)
        self.known = Known(self.suite, self.request.shipped)
        # Composes the first that fits, for the launcher's keys.
        pairs = product(self.request.tasks, self.request.entries)
        if all(self.composer.base(*pair) is None for pair in pairs):
            raise UsageError(next(iter(self.composer.refusals.values())))
        assert self.composer.first is not None
        self.first_args, self.cfg, first = self.composer.first
        self.runs_dir = first.config.runs_dir
        check_launcher(self.cfg)
        launcher = self.cfg.hydra.launcher
        alone = "BasicLauncher" in launcher._target_
        # SLURM's depend on others.
        self.workers = launcher.n_jobs if launcher._target_ == JOBLIB else 1 if alone else None
        self.threads = cpus(first.config.threads)
        self.changed: Counter[str] = Counter()
        """Classes whose file changed since (empty: none) -> finished runs of before."""
        self._rates: dict[tuple[str, str], float] = {}
        self._rows: dict[tuple[str, str], Row] = {}

    def planned(self) -> list[Row]:
        """A row for each task and phase, the cheapest task first."""
        rows: dict[str, list[Row]] = defaultdict(list)
        for task in self.request.tasks:
            for name in self.request.phases:
                rows[task].append(self._row(task, name))
        order = sorted(rows, key=lambda task: sum(row.run_s for row in rows[task]))
        self.request.tasks[:] = order
        return [row for task in order for row in rows[task]]

    def _row(self, task: str, phase: str) -> Row:
        runs = missing = 0
        all_s = missing_s = 0.0
        for base in self._bases(task, phase):
            rate = self.rate(base)
            for run in self.phases.runs(phase, base, rate or self.suite.protocol.rates[0]):
                seconds = self.known.seconds(base, run.steps) or 0.0
                runs, all_s = runs + 1, all_s + seconds
                chosen = phase == TUNING or rate is not None
                here = not run.job(0).missing
                if chosen and here:
                    self.known.summary(run)
                    self.changed[changed_code(run.folder, base.plan.resolved)] += 1
                if not (chosen and (here or self.known.is_shipped(run))):
                    missing, missing_s = missing + 1, missing_s + seconds
        row = Row(task, phase, runs, missing, all_s / max(runs, 1), missing_s)
        self._rows[task, phase] = row
        return row

    def _bases(self, task: str, phase: str) -> list[Base]:
        entries = self.phases.entries(phase, self.request.entries)
        found = (self.composer.base(task, entry) for entry in entries)
        return [base for base in found if base is not None]

    def rate(self, base: Base) -> float | None:
        """The chosen rate; None while tuning runs are missing, and where all failed."""
        key = base.task, base.entry
        if key not in self._rates:
            measured: dict[float, list[Measured]] = defaultdict(list)
            for run in self.phases.runs(TUNING, base, 0.0):
                if (one := self.known.measured(run)) is None:
                    return None
                measured[run.lr].append(one)
            if (rate := chosen_rate(measured)) is None:
                return None
            self._rates[key] = rate
        return self._rates[key]

    def check_tuned(self) -> None:
        """UsageError where an entry has runs in the phases, and no rate."""
        any_rate = self.suite.protocol.rates[0]
        pairs = product(self.request.tasks, self.request.phases)
        found = {
            f"{base.entry} on {task}": None
            for task, name in pairs
            for base in self._bases(task, name)
            if self.rate(base) is None and self.phases.runs(name, base, any_rate)
        }
        if not found:
            return
        first, *others = found
        more = f" and {len(others)} more" if others else ""
        said = f"{first}{more}: no rate is chosen, as "
        for run, why in self.known.damaged.items():
            raise UsageError(f"{said}a run is damaged: {run}: {why}")
        raise UsageError(
            f"{said}runs of tuning are missing or failed: give "
            f"phases={','.join((TUNING, *self.request.phases))}, or leave it out of pe="
        )

    def notes(self, rows: Sequence[Row]) -> list[str]:
        """What stands below the plan."""
        refusals = self.composer.refusals.items()
        unknown = dict.fromkeys(row.task for row in rows if row.missing and not row.run_s)
        some = ", ".join(self.suite.protocol.more_seeds_for)
        empty = dict.fromkeys(row.phase for row in rows if not row.runs)
        changed = [
            f"{counted(n, 'finished run')} made before the file of {names} changed: their numbers "
            "are those of that code, and count; runs_dir=ANOTHER begins with none"
            for names, n in self.changed.items()
            if names
        ]
        return [
            *(f"not run: {entry} on {task}: {reason}" for (task, entry), reason in refusals),
            *(
                f"cost of {task} not known until a run of it is finished, counted as 0"
                for task in unknown
            ),
            *(f"no runs: {phase} is for {some} and for yours" for phase in empty),
            *(f"damaged: {label}: {reason}" for label, reason in self.known.damaged.items()),
            *changed,
        ]

    def run(self) -> None:
        """Launch what is missing, and print how it ended."""
        budget = self.request.budget_s
        until = None if budget is None else time.time() + budget
        sweep = Sweep(self.first_args, self.runs_dir, f"suite-{self.suite.name}")
        ended: Exception | Interrupted | None = None
        try:
            with sweep.running():
                for task, name in product(self.request.tasks, self.request.phases):
                    self._stage(sweep, task, name, until)
        except (Exception, Interrupted) as error:
            ended = error
        console().print(closing_table(self.stages))
        failures = [line for stage in self.stages for line in stage.failures()]
        for line in failures:
            console().print(line, soft_wrap=True)
        self._print_command()
        conclude(ended, "the same command")
        left = sum(stage.counts()["left"] for stage in self.stages)
        left_s = sum(row.missing_s for row in self._rows.values())
        missing = any(row.missing for row in self._rows.values())
        if until is not None and time.time() >= until and missing:
            hours = f"{self.threads * left_s / 3600:.1f} core-hours"
            console().print(f"the budget is over, {hours} left: {AGAIN}")
            left = 0
        if failures:
            raise PeLabError(f"{counted(len(failures), 'run')} not finished, listed above: {AGAIN}")
        if left:
            raise PeLabError(f"{counted(left, 'run')} not done by the launcher: {AGAIN}")

    def _stage(self, sweep: Sweep, task: str, phase: str, until: float | None) -> None:
        runs: list[SuiteRun] = []
        without_rate = []
        for base in self._bases(task, phase):
            rate = self.rate(base)
            if rate is None and phase != TUNING:
                without_rate.append(base.entry)
            else:
                runs += self.phases.runs(phase, base, rate or 0.0)
        # Seed by seed: stopped at any time, all entries have about equally many.
        runs.sort(key=lambda run: run.seed)
        here = [run for run in runs if not self.known.is_shipped(run)]
        jobs = [run.job(number) for number, run in enumerate(here, 1)]
        stage = Stage(task, phase, jobs, without_rate, len(runs) - len(here))
        self.stages.append(stage)
        missing = [job for job in jobs if job.missing]
        if missing and (until is None or time.time() < until):
            console().print(f"{task}, {phase}: {counted(len(missing), 'run')} to do")
            began = time.monotonic()
            try:
                with Progress(missing, len(jobs)).shown():
                    launch_all(missing, sweep.launch(jobs, until))
            finally:
                stage.wall_s = time.monotonic() - began
        # Its runs say which rate is chosen, and what others cost.
        for entry in self.request.entries if phase == TUNING else ():
            self._rates.pop((task, entry), None)
        for name in self.request.phases:
            self._row(task, name)

    def _print_command(self) -> None:
        words = ["pe-lab", "leaderboard"]
        words += [f"suite={self.suite.name}"] if self.suite.name != DEFAULT else []
        folder = self.first_args.config_dir
        words += ["--config-dir", folder] if folder is not None else []
        words += [f"runs_dir={self.runs_dir}"] if self.runs_dir != "runs" else []
        console().print(f"look at it: {shlex.join(words)}", soft_wrap=True)
