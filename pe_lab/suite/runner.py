"""``pe-lab suite``: what is missing of a suite, cheapest task first, through a launcher."""

import shlex
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from pe_lab.config.schema import cpus
from pe_lab.core.console import busy, console
from pe_lab.core.errors import Interrupted, PeLabError, UsageError
from pe_lab.core.files import check_writable
from pe_lab.core.output import counted
from pe_lab.experiment.environment import changed_code
from pe_lab.results.leaderboard.tuning import FAILED, Measured, chosen_rate, next_runs
from pe_lab.results.suite import AGAIN, DEFAULT, TUNING, Suite
from pe_lab.suite.runs import Base, Composer, Known, Phases, SuiteRun
from pe_lab.suite.tables import Row, Stage, closing_table, plan_table
from pe_lab.suite.work import Work
from pe_lab.sweeps.jobs import launch_all, printing_progress
from pe_lab.sweeps.launchers import JOBLIB, check_launcher
from pe_lab.sweeps.sweep import Sweep, conclude

NONE_AGAIN = "no runs: again is for a tenth of the shipped cells, and none of these is among them"
RESUMES = "the same command runs only what is missing"


@dataclass(frozen=True)
class Request:
    """What is asked for.

    Args:
        work: in the order in which it is done.
        budget_s: seconds after which no run is begun; None: no limit.
        dry: only print what is to be done.
        shipped: runs whose results the package has are not run again.
    """

    work: list[Work]
    budget_s: float | None = None
    dry: bool = False
    shipped: bool = True


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
    pairs = {pair for one in request.work for pair in product(one.tasks, one.entries)}
    with busy(f"composing {len(pairs)} pairs of task and entry"):
        rows = runner.planned()
        refusal = runner.untuned()
    if refusal and not request.dry:
        raise UsageError(refusal)
    console().print(plan_table(suite, rows, runner.workers, runner.threads))
    for note in runner.notes(rows):
        console().print(note, soft_wrap=True)
    if refusal:
        console().print(f"refused without dry=true: {refusal}", soft_wrap=True)
    if not any(row.missing for row in rows):
        if damaged := runner.known.damaged:
            raise PeLabError(
                f"{counted(len(damaged), 'run')} damaged: pe-lab runs check=true names them"
            )
        console().print("nothing else is missing" if runner.unbuilt() else "nothing is missing")
    elif not request.dry:
        check_writable(runner.runs_dir)
        runner.run()
    if unbuilt := runner.unbuilt():
        raise PeLabError(f"{', '.join(unbuilt)} cannot be run: the reason is above")


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
        pairs = (pair for one in self.request.work for pair in product(one.tasks, one.entries))
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
        self._rows: dict[tuple[int, str, str], Row] = {}

    def planned(self) -> list[Row]:
        """A row for each task and phase of each work, the cheapest task of a work first."""
        for number, one in enumerate(self.request.work):
            costs: dict[str, float] = defaultdict(float)
            for task, phase in product(one.tasks, one.phases):
                costs[task] += self._row(number, task, phase).run_s
            one.tasks.sort(key=lambda task, costs=costs: costs[task])  # type: ignore[misc]
        return [self._rows[key] for key in self._steps()]

    def _steps(self) -> Iterator[tuple[int, str, str]]:
        """What is done one after the other: the number of the work, the task and the phase."""
        for number, one in enumerate(self.request.work):
            for task, phase in product(one.tasks, one.phases):
                yield number, task, phase

    def _row(self, number: int, task: str, phase: str) -> Row:
        work = self.request.work[number]
        runs, missing, all_s, missing_s = 0.0, 0.0, 0.0, 0.0
        any_rate = self.suite.protocol.rates[0]
        for base in self._bases(work, task, phase):
            seconds, rate = self.known.seconds(base, base.steps) or 0.0, self.rate(base)
            if phase == TUNING:
                left: float = len(self.missing_tuning(base))
                here = sum(len(of) for of in self.measured(base).values())
                if left and self.suite.protocol.search is not None:
                    left = max(left, self.suite.protocol.search.runs - here)
                runs, missing = runs + here + left, missing + left
                all_s, missing_s = all_s + (here + left) * seconds, missing_s + left * seconds
                for run in self.phases.tuned(base):
                    self._is_over(run, base)
                continue
            for run in self._runs(phase, base, rate or any_rate, work.seeds):
                seconds = self.known.seconds(base, run.steps) or 0.0
                runs, all_s = runs + 1, all_s + seconds
                if rate is None or not self._is_over(run, base, phase):
                    missing, missing_s = missing + 1, missing_s + seconds
        row = Row(task, phase, runs, missing, all_s / max(runs, 1), missing_s, work.part)
        self._rows[number, task, phase] = row
        return row

    def _runs(self, phase: str, base: Base, lr: float, seeds: int | None) -> list[SuiteRun]:
        """Those of a phase beside tuning; ``again`` has only those whose results ship."""
        runs = self.phases.runs(phase, base, lr, seeds)
        return [run for run in runs if phase != AGAIN or self.known.is_shipped(run)]

    def _is_over(self, run: SuiteRun, base: Base, phase: str = TUNING) -> bool:
        if here := not run.job(0).missing:
            self.known.summary(run)
            self.changed[changed_code(run.folder, base.plan.resolved)] += 1
        return here or (phase != AGAIN and self.known.is_shipped(run))

    def _bases(self, work: Work, task: str, phase: str) -> list[Base]:
        found = (
            self.composer.base(task, entry) for entry in self.phases.entries(phase, work.entries)
        )
        return [base for base in found if base is not None]

    def measured(self, base: Base) -> dict[float, dict[int, Measured]]:
        """What finished tuning runs measured, by rate and seed."""
        found: dict[float, dict[int, Measured]] = defaultdict(dict)
        for run in self.phases.tuned(base):
            if (one := self.known.measured(run)) is not None:
                found[run.lr][run.seed] = one
        return found

    def missing_tuning(self, base: Base) -> list[SuiteRun]:
        """The tuning runs of the next round, and those to try again, which failed here."""
        missing = next_runs(self.suite.protocol, self.measured(base))
        return [
            run
            for run in self.phases.tuned(base)
            if (run.lr, run.seed) in missing
            or (self.known.measured(run) == FAILED and not self.known.is_shipped(run))
        ]

    def rate(self, base: Base) -> float | None:
        """The chosen rate; None while tuning runs are missing, and where all failed."""
        key = base.task, base.entry
        if key not in self._rates:
            measured = self.measured(base)
            runs = {rate: [*of.values()] for rate, of in measured.items()}
            over = not next_runs(self.suite.protocol, measured)
            if not over or (rate := chosen_rate(runs)) is None:
                return None
            self._rates[key] = rate
        return self._rates[key]

    def untuned(self) -> str:
        """A sentence where an entry has runs in the phases, and no rate, nor is tuned before."""
        any_rate = self.suite.protocol.rates[0]
        tuned: set[tuple[str, str]] = set()
        found: dict[str, None] = {}
        for one in self.request.work:
            if TUNING in one.phases:
                tuned |= {*product(one.tasks, one.entries)}
            for task, phase in product(one.tasks, one.phases):
                found |= {
                    f"{base.entry} on {task}": None
                    for base in self._bases(one, task, phase)
                    if (task, base.entry) not in tuned
                    and self.rate(base) is None
                    and self._runs(phase, base, any_rate, one.seeds)
                }
        if not found:
            return ""
        first, *others = found
        more = f" and {len(others)} more" if others else ""
        said = f"{first}{more}: no rate is chosen, as "
        for run, why in self.known.damaged.items():
            return f"{said}a run is damaged: {run}: {why}"
        phases = {phase: None for one in self.request.work for phase in one.phases}
        anywhere = " without part=" if self.suite.parts else ""
        return (
            f"{said}runs of tuning are missing or failed: give "
            f"phases={','.join({TUNING: None, **phases})}{anywhere}, "
            "or leave it out of pe="
        )

    def unbuilt(self) -> list[str]:
        """Tasks on which a model from outside fails. That an encoding refuses a task is normal."""
        refused = [(task, self.suite.split(entry)[0]) for task, entry in self.composer.refusals]
        return [f"{name} on {task}" for task, name in refused if name in self.suite.models]

    def notes(self, rows: Sequence[Row]) -> list[str]:
        """What stands below the plan."""
        refusals = self.composer.refusals.items()
        unknown = dict.fromkeys(row.task for row in rows if row.missing and not row.run_s)
        some = ", ".join(self.suite.protocol.more_seeds_for)
        again = [row for row in rows if row.phase == AGAIN]
        empty = dict.fromkeys(row.phase for row in rows if not row.runs and row.phase != AGAIN)
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
            *([NONE_AGAIN] if again and not any(row.runs for row in again) else []),
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
                for step in self._steps():
                    self._stage(sweep, *step, until)
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
            console().print(f"the budget is over, {hours} left: {RESUMES}")
            left = 0
        if failures:
            raise PeLabError(
                f"{counted(len(failures), 'run')} not finished, listed above: {RESUMES}"
            )
        if left:
            raise PeLabError(f"{counted(left, 'run')} not done by the launcher: {RESUMES}")

    def _stage(self, sweep: Sweep, number: int, task: str, phase: str, until: float | None) -> None:
        work = self.request.work[number]
        stage = Stage(task, phase, work.part)
        self.stages.append(stage)
        bases = self._bases(work, task, phase)
        if phase == TUNING:
            self._tune(sweep, stage, bases, until)
        else:
            rates = [(base, self.rate(base)) for base in bases]
            stage.untuned = [base.entry for base, rate in rates if rate is None]
            runs = [
                run
                for base, rate in rates
                if rate is not None
                for run in self._runs(phase, base, rate, work.seeds)
            ]
            self._launch(sweep, stage, runs, until)
        # Its runs say which rate is chosen, and what others cost.
        for name in work.phases:
            self._row(number, task, name)

    def _tune(self, sweep: Sweep, stage: Stage, bases: Sequence[Base], until: float | None) -> None:
        runs = [run for base in bases for run in self.phases.tuned(base)]
        self._launch(sweep, stage, [run for run in runs if self.known.measured(run)], until)
        begun = {run.run_id for run in runs if self.known.measured(run)}
        # What a round measures decides on the next one.
        while runs := [
            run for base in bases for run in self.missing_tuning(base) if run.run_id not in begun
        ]:
            begun |= {run.run_id for run in runs}
            self._launch(sweep, stage, runs, until)
        for base in bases:
            self._rates.pop((stage.task, base.entry), None)

    def _launch(
        self, sweep: Sweep, stage: Stage, runs: list[SuiteRun], until: float | None
    ) -> None:
        # Seed by seed: stopped at any time, all entries have about equally many.
        runs.sort(key=lambda run: run.seed)
        here = [r for r in runs if stage.phase == AGAIN or not self.known.is_shipped(r)]
        jobs = [run.job(number) for number, run in enumerate(here, 1)]
        stage.jobs += jobs
        stage.shipped += len(runs) - len(here)
        missing = [job for job in jobs if job.missing]
        if not missing or (until is not None and time.time() >= until):
            return
        console().print(f"{stage.task}, {stage.phase}: {counted(len(missing), 'run')} to do")
        began = time.monotonic()
        try:
            with printing_progress(missing, len(jobs)):
                launch_all(missing, sweep.launch(jobs, until))
        finally:
            stage.wall_s += time.monotonic() - began

    def _print_command(self) -> None:
        words = ["pe-lab", "leaderboard"]
        words += [f"suite={self.suite.name}"] if self.suite.name != DEFAULT else []
        folder = self.first_args.config_dir
        words += ["--config-dir", folder] if folder is not None else []
        words += [f"runs_dir={self.runs_dir}"] if self.runs_dir != "runs" else []
        console().print(f"look at it: {shlex.join(words)}", soft_wrap=True)
