"""``pe-lab suite``: what is missing of a suite, cheapest task first, through a launcher."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from pe_lab.common.console import busy, console
from pe_lab.common.errors import Interrupted, PeLabError, RunError, UsageError, sentence
from pe_lab.common.files import check_folder, check_writable
from pe_lab.common.output import counted
from pe_lab.config.schema import cpus
from pe_lab.experiment.provenance import changed_code
from pe_lab.results.leaderboard.scores import Measured, chosen_rate
from pe_lab.results.relative_cost import BASELINE
from pe_lab.results.suite import TUNING, Suite
from pe_lab.sweeps.launchers import JOBLIB
from pe_lab.sweeps.progress import Progress, duration
from pe_lab.sweeps.retry import launch_all
from pe_lab.sweeps.suite.cost import Costs
from pe_lab.sweeps.suite.known import Known
from pe_lab.sweeps.suite.phases import Phase, phases
from pe_lab.sweeps.suite.request import Request
from pe_lab.sweeps.suite.runs import Base, Composer, SuiteRun
from pe_lab.sweeps.suite.tables import (
    Row,
    Stage,
    closing_table,
    leaderboard,
    notes,
    plan_table,
    untuned,
)
from pe_lab.sweeps.sweep import Sweep, check_launcher


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
    with busy(f"composing {pairs} pairs of task and entry, timing"):
        if TUNING not in request.phases and (without_rate := runner.untuned()):
            raise UsageError(untuned(without_rate, request.phases, runner.known.damaged))
        rows = runner.planned()
    console().print(plan_table(suite, rows, runner.workers, runner.threads))
    damaged = runner.known.damaged
    for note in notes(
        suite, rows, runner.composer.refusals, damaged, runner.changed, runner.costs.failures
    ):
        console().print(note, soft_wrap=True)
    if not any(row.missing for row in rows):
        if damaged:
            raise PeLabError(
                f"{counted(len(damaged), 'run')} damaged: give pe-lab verify set_aside=true first"
            )
        console().print("nothing is missing")
    elif not request.dry:
        check_writable(runner.runs_dir)
        runner.run()


@dataclass
class Runner:
    """A request on its way."""

    args: Any
    suite: Suite
    request: Request
    costs: Costs = field(default_factory=Costs)
    stages: list[Stage] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.composer = Composer(self.args, self.suite)
        self.phases = phases(self.suite, self.composer)
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
        # Ray's and SLURM's depend on others.
        self.workers = launcher.n_jobs if launcher._target_ == JOBLIB else 1 if alone else None
        self.threads = cpus(first.config.threads)
        self.changed: Counter[str] = Counter()
        """Classes whose file changed since (empty: none) -> finished runs of before."""
        self._rates: dict[tuple[str, str], float] = {}
        self._left_s: dict[tuple[str, str], float] = {}

    def planned(self) -> list[Row]:
        """A row for each task and phase, the cheapest task first."""
        rows: dict[str, list[Row]] = defaultdict(list)
        for task in self.request.tasks:
            for name in self.request.phases:
                rows[task].append(self._row(task, self.phases[name]))
        order = sorted(rows, key=lambda task: sum(row.run_s for row in rows[task]))
        self.request.tasks[:] = order
        return [row for task in order for row in rows[task]]

    def _row(self, task: str, phase: Phase) -> Row:
        runs = missing = 0
        all_s = missing_s = 0.0
        for base in self._bases(task, phase):
            rate = self.rate(base)
            for run in phase.runs(base, rate or self.suite.protocol.rates[0]):
                seconds = self.costs.of(base, self.composer.base(task, BASELINE), run.steps)
                runs, all_s = runs + 1, all_s + seconds
                chosen = phase.name == TUNING or rate is not None
                here = not run.job(0).missing
                if chosen and here:
                    self.known.summary(run)
                    self.changed[changed_code(run.folder, base.plan.resolved)] += 1
                if not (chosen and (here or self.known.is_shipped(run))):
                    missing, missing_s = missing + 1, missing_s + seconds
        self._left_s[task, phase.name] = missing_s
        return Row(task, phase.name, runs, missing, all_s / max(runs, 1), missing_s)

    def _bases(self, task: str, phase: Phase) -> list[Base]:
        entries = phase.entries(self.suite, self.request.entries)
        found = (self.composer.base(task, entry) for entry in entries)
        return [base for base in found if base is not None]

    def rate(self, base: Base) -> float | None:
        """The chosen rate; None while tuning runs are missing, and where all failed."""
        key = base.task, base.entry
        if key not in self._rates:
            measured: dict[float, list[Measured]] = defaultdict(list)
            for run in self.phases[TUNING].runs(base, 0.0):
                if (one := self.known.measured(run)) is None:
                    return None
                if (summary := self.known.summary(run)) is not None:
                    self.costs.finished(run.task, run.entry, summary)
                measured[run.lr].append(one)
            if (rate := chosen_rate(measured)) is None:
                return None
            self._rates[key] = rate
        return self._rates[key]

    def untuned(self) -> list[tuple[str, str]]:
        """Task and entry of those that have runs in the phases, and no rate."""
        found: dict[tuple[str, str], None] = {}
        any_rate = self.suite.protocol.rates[0]
        for task, name in product(self.request.tasks, self.request.phases):
            for base in self._bases(task, self.phases[name]):
                if self.rate(base) is None and self.phases[name].runs(base, any_rate):
                    found[task, base.entry] = None
        return list(found)

    def run(self) -> None:
        """Launch what is missing, and print how it ended."""
        budget = self.request.budget_s
        until = None if budget is None else time.time() + budget
        sweep = Sweep(self.first_args, self.cfg, self.runs_dir, f"suite-{self.suite.name}")
        ended: Exception | Interrupted | None = None
        try:
            with sweep.running():
                sweep.callbacks.on_multirun_start(config=sweep.cfg, config_name="config")
                for task, name in product(self.request.tasks, self.request.phases):
                    self._stage(sweep, task, self.phases[name], until)
                sweep.callbacks.on_multirun_end(config=sweep.cfg, config_name="config")
        except (Exception, Interrupted) as error:
            ended = error
        console().print(closing_table(self.stages, self.workers))
        failures = [line for stage in self.stages for line in stage.failures()]
        for line in failures:
            console().print(line, soft_wrap=True)
        console().print(leaderboard(self.suite, self.first_args, self.runs_dir), soft_wrap=True)
        if isinstance(ended, Interrupted):
            console().print("stopped by a signal: run the same command to continue")
            raise ended
        if ended is not None:
            raise RunError(f"the launcher failed: {sentence(ended)}") from ended
        again = "the same command runs only what is missing"
        left, left_s = sum(stage.left() for stage in self.stages), sum(self._left_s.values())
        if until is not None and time.time() >= until and left_s:
            console().print(f"the budget is over, {self._core_hours(left_s)} left: {again}")
            left = 0
        if failures:
            raise PeLabError(f"{counted(len(failures), 'run')} not finished, listed above: {again}")
        if left:
            raise PeLabError(f"{counted(left, 'run')} not done by the launcher: {again}")

    def _stage(self, sweep: Sweep, task: str, phase: Phase, until: float | None) -> None:
        runs: list[SuiteRun] = []
        without_rate = []
        for base in self._bases(task, phase):
            rate = self.rate(base)
            if rate is None and phase.name != TUNING:
                without_rate.append(base.entry)
            else:
                runs += phase.runs(base, rate or 0.0)
        # Seed by seed: stopped at any time, all entries have about equally many.
        runs.sort(key=lambda run: run.seed)
        here = [run for run in runs if not self.known.is_shipped(run)]
        jobs = [run.job(number) for number, run in enumerate(here, 1)]
        stage = Stage(task, phase.name, jobs, without_rate, len(runs) - len(here))
        self.stages.append(stage)
        missing = [job for job in jobs if job.missing]
        if missing and (until is None or time.time() < until):
            console().print(f"{task}, {phase.name}: {counted(len(missing), 'run')} to do")
            began = time.monotonic()
            try:
                with Progress(missing, len(jobs), self._tail(task, phase)).shown():
                    launch_all(missing, sweep.launch(jobs, until))
            finally:
                stage.wall_s = time.monotonic() - began
        # Its runs say which rate is chosen, and what others cost.
        for entry in self.request.entries if phase.name == TUNING else ():
            self._rates.pop((task, entry), None)
        for name in self.request.phases:
            self._row(task, self.phases[name])

    def _tail(self, task: str, phase: Phase) -> Callable[[Progress], str]:
        """What is left of the suite, for the lines of progress."""
        left_s = self._left_s[task, phase.name]
        others_s = sum(self._left_s.values()) - left_s

        def tail(progress: Progress) -> str:
            share = 1 - progress.done / len(progress.jobs)
            return f"of the suite {self._core_hours(others_s + left_s * share)} left"

        return tail

    def _core_hours(self, seconds: float) -> str:
        text = f"{self.threads * seconds / 3600:.1f} core-hours"
        return text + (f", about {duration(seconds / self.workers)}" if self.workers else "")
