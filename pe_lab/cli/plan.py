"""``pe-lab plan``: what is claimed and how it is decided, written down before the runs.

    pe-lab plan pe=path,rope tasks=parity hypothesis="path tracks parity beyond its length"
                                                       path is claimed to be better than rope; of
                                                       several, than each of the others
    pe-lab plan .. splits=long_x2 seeds=20             some splits, twenty seeds
    pe-lab plan .. first_seed=100                      from this seed on, else from the first one
                                                       after those whose numbers are known: shipped
                                                       ones and those in runs_dir
    pe-lab plan .. test=mann_whitney level=0.01        of the errors, not of how many generalise
    pe-lab plan .. threshold=0.01                      the error that counts as generalised, else
                                                       the suite's for each split
    pe-lab plan .. to=FILE.yaml suite=v1               the file, else in runs/plans/
    pe-lab plan .. --config-dir mine pe=mine,rope      an encoding of your own
    pe-lab plan check=FILE.yaml                        which of its runs there are, shipped ones
                                                       too; exit status 1 if any began before the
                                                       plan was written
    pe-lab plan result=FILE.yaml                       supported, not supported or not enough runs;
                                                       format=table, csv, json, markdown or latex

runs_dir=runs is the folder of the runs.

The file has a digest of all it says: a changed plan is none. A file that exists is not written
over. The claim is of every task and split that the plan names: it is supported if the test supports
it in each of them. Tests are one-sided: Fisher's exact test of how many seeds generalise
(test=fisher), or that of Mann, Whitney and Wilcoxon of the errors (test=mann_whitney).
"""

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Self

import polars as pl
from pydantic import Field, model_validator

from pe_lab.common.console import console
from pe_lab.common.errors import RunError, UsageError
from pe_lab.common.options import AtLeastOne, CommaSeparated, Options, parse, without_config_dir
from pe_lab.common.suggest import did_you_mean
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.results.plan_runs import (
    commands,
    rows_of_plans,
    runs_of,
    state_table,
    tuned_rates,
    why_exploratory,
    with_fresh_seeds,
)
from pe_lab.results.plan_tests import evaluate, result_table, verdict
from pe_lab.results.plans import FOLDER, Plan, Test, least_p, read_plan, write_plan
from pe_lab.results.presentation.formats import Format, print_tables
from pe_lab.results.statistics.power import POWER, smallest_difference
from pe_lab.results.suite import DEFAULT, Suite, load_suite


class PlanOptions(Options):
    """The keys of ``pe-lab plan``."""

    command = "plan"

    to: str | None = None
    hypothesis: str | None = None
    suite: str = DEFAULT
    tasks: CommaSeparated[str] | None = None
    splits: CommaSeparated[str] | None = None
    pe: CommaSeparated[str] | None = None
    seeds: AtLeastOne | None = None
    first_seed: Annotated[int, Field(ge=0, lt=2**62, description="below 2^62")] | None = None
    test: Test = "fisher"
    threshold: Annotated[float, Field(ge=0, lt=1, description="from 0, below 1")] | None = None
    level: Annotated[float, Field(gt=0, lt=0.5, description="a share between 0 and 0.5")] = 0.05
    check: str | None = None
    result: str | None = None
    runs_dir: str = "runs"
    format: Format = "table"

    @model_validator(mode="after")
    def _one_action(self) -> Self:
        if self.check is not None and self.result is not None:
            raise ValueError("plan: check=FILE or result=FILE, give one of them")
        reading = "check" if self.check is not None else "result"
        allowed = {reading, "runs_dir", "format"}
        if getattr(self, reading) is not None:
            if left := sorted(self.model_fields_set - allowed):
                raise ValueError(
                    f"plan {reading}={getattr(self, reading)} reads all else from the file: leave "
                    f"out {', '.join(left)}"
                )
        elif "format" in self.model_fields_set:
            raise ValueError("plan format=.. goes with check=FILE or result=FILE: leave it out")
        return self


def show(words: Sequence[str]) -> None:
    """Write a plan, or say what became of one.

    Raises:
        UsageError: a wrong option; the file exists, or never was a plan; no run could support the
            plan, or some of its runs began already.
        RunError: the file cannot be written, was a plan and is damaged, does not fit its digest, or
            is no plan of its runs.
    """
    config_dir, rest = without_config_dir(words)
    options = parse(PlanOptions, rest)
    folder = None if config_dir is None else Path(config_dir)
    if options.check is None and options.result is None:
        _write(options, folder)
    else:
        _read(options, folder)


def _write(options: PlanOptions, config_dir: Path | None) -> None:
    suite = load_suite(options.suite, config_dir)
    runs_dir = Path(options.runs_dir)
    plan = _plan(options, suite, _own(config_dir))
    plan = with_fresh_seeds(plan, options.first_seed, runs_dir, suite)
    name = f"{'-'.join(plan.encodings)}-{plan.digest[:8]}.yaml"
    path = runs_dir / FOLDER / name if options.to is None else Path(options.to)
    write_plan(plan, path)
    out, seeds = console(), len(plan.seeds)
    out.print(f"written  {path}", soft_wrap=True)
    out.print(f"digest   {plan.digest}", soft_wrap=True)
    if plan.test == "fisher":
        smallest = smallest_difference(seeds, level=2 * plan.level)
        can = (
            f"cannot tell P(generalises) 0.9 from 0 at level {plan.level:g}"
            if smallest is None
            else f"tell P(generalises) 0.9 from {smallest:.2g} or less at level {plan.level:g}, "
            f"with a power of {100 * POWER:.0f} %"
        )
        tests = (len(plan.encodings) - 1) * sum(map(len, plan.tasks.values()))
        alone = f", in one of {tests} tests; all {tests} must support" if tests > 1 else ""
        out.print(f"power    {seeds} seeds a side {can}{alone}", soft_wrap=True)
    flags = [] if config_dir is None else ["--config-dir", str(config_dir)]
    folder = [] if options.runs_dir == "runs" else [f"runs_dir={options.runs_dir}"]
    rates = tuned_rates(rows_of_plans(runs_dir, suite), suite)
    for number, line in enumerate(commands(plan, suite, rates, flags, folder)):
        out.print(f"{'' if number else 'runs':8} {shlex.join(line)}", soft_wrap=True)
    result = ["pe-lab", "plan", *flags, f"result={path}", *folder]
    out.print(f"result   {shlex.join(result)}", soft_wrap=True)
    if path.parent.resolve() != (runs_dir / FOLDER).resolve() or path.suffix != ".yaml":
        out.print(
            f"leaderboard and compare look for plans in {runs_dir / FOLDER}/*.yaml: its runs count "
            f"as exploratory there until {path} is there too",
            soft_wrap=True,
        )
    out.print("Commit the file, or publish its digest: that shows when it was there.")


def _read(options: PlanOptions, config_dir: Path | None) -> None:
    path, runs_dir = Path(options.check or options.result or ""), Path(options.runs_dir)
    if "runs_dir" in options.model_fields_set and not runs_dir.is_dir():
        raise UsageError(f"runs_dir={runs_dir} is not a folder: give the one the runs are in")
    plan = read_plan(path)
    suite = load_suite(plan.suite_name, config_dir)
    runs = runs_of(plan, runs_dir, suite)
    reason = why_exploratory(plan, runs, suite)
    said = f"exploratory, the plan does not count: {reason}" if reason else "planned"
    no_plan = f"{path} is no plan of these runs: {reason}"
    facts = {"hypothesis": plan.hypothesis, "digest": plan.digest, "planned": not reason}
    nothing = None
    if options.check is not None:
        states = pl.DataFrame([asdict(run) for run in runs])
        said += "" if runs else ": none of its runs is here yet"
        notes = [f"digest {plan.digest}", f"written {plan.written}", said]
        print_tables(options.format, [state_table(plan, runs)], states, nothing, notes, facts)
        if reason:
            raise RunError(no_plan)
        return
    if plan.suite != suite.version:
        raise RunError(no_plan)
    rows = evaluate(plan, rows_of_plans(runs_dir, suite), suite)
    missing = dict.fromkeys(f"{r['task']}: {r['missing']}" for r in rows.filter(
        pl.col("missing").is_not_null()).iter_rows(named=True))  # fmt: skip
    notes = [*missing, f"{said}: {verdict(rows)}"]
    table = result_table(plan, rows)
    print_tables(options.format, [table], rows, nothing, notes, {**facts, "verdict": verdict(rows)})


def _own(config_dir: Path | None) -> list[str]:
    """The encodings of the user's folder."""
    return [] if config_dir is None else [path.stem for path in config_dir.glob("pe/*.yaml")]


def _plan(options: PlanOptions, suite: Suite, own: Sequence[str]) -> Plan:
    # Imported here: torch takes a second.
    from pe_lab.experiment.machine import environment

    if not (options.hypothesis or "").strip():
        raise UsageError('plan needs hypothesis="..": what is claimed, in words')
    encodings = options.pe or []
    if len(encodings) < 2:
        raise UsageError("plan needs pe=A,B: A is claimed to be better than B")
    known = [*suite.encodings, *suite.controls, *own]
    for entry in encodings:
        if entry not in known:
            raise UsageError(f"pe={entry}: {did_you_mean(entry, known)}")
    for task in options.tasks or []:
        if task not in suite.tasks:
            raise UsageError(f"tasks={task}: {did_you_mean(task, suite.tasks)}")
    tasks = {task: _splits(options, suite, task) for task in options.tasks or suite.tasks}
    named = {split for of_task in tasks.values() for split in of_task}
    for split in options.splits or []:
        if split not in named:
            scored = [s for t in tasks for s in (IN_DOMAIN, *suite.tasks[t].generalises)]
            raise UsageError(f"splits={split}: {did_you_mean(split, dict.fromkeys(scored))}")
    for task in options.tasks or []:
        if not tasks[task]:
            scored = [IN_DOMAIN, *suite.tasks[task].generalises]
            raise UsageError(
                f"tasks={task} has none of splits={','.join(options.splits or [])}: choose from "
                f"{', '.join(scored)}"
            )
    seeds = suite.protocol.seeds if options.seeds is None else options.seeds
    if least_p(seeds) > options.level:
        enough = next(n for n in range(1, 1000) if least_p(n) <= options.level)
        raise UsageError(
            f"seeds={seeds}: no outcome of {seeds} seeds a side has a p of at most "
            f"level={options.level:g}, so nothing could support the plan; set seeds to {enough} or "
            "more"
        )
    return Plan(
        hypothesis=(options.hypothesis or "").strip(),
        suite=suite.version,
        encodings=tuple(encodings),
        tasks={task: of_task for task, of_task in tasks.items() if of_task},
        seeds=tuple(range(seeds)),
        test=options.test,
        level=options.level,
        written=datetime.now(UTC).isoformat(),
        git_revision=environment(1, "cpu")[0]["git_revision"],
    )


def _splits(options: PlanOptions, suite: Suite, task: str) -> dict[str, float]:
    """The splits of a task that the plan names, with their thresholds; without ``splits``, all that
    are scored out of domain."""
    of_task = suite.tasks[task]
    found = {
        split: threshold
        for split in options.splits or of_task.generalises
        if (threshold := of_task.threshold(split)) is not None
    }
    return found if options.threshold is None else dict.fromkeys(found, options.threshold)
