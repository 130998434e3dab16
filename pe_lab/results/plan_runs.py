"""The runs of a plan: which there are, and whether the plan came before them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from pe_lab.common.errors import UsageError
from pe_lab.common.output import counted
from pe_lab.results.leaderboard import file
from pe_lab.results.leaderboard.entries import phase_of, placed
from pe_lab.results.leaderboard.rows import suite_rows
from pe_lab.results.leaderboard.scores import chosen_rates, once
from pe_lab.results.plans import FOLDER, Plan, planned_note, plans_in, started
from pe_lab.results.presentation.formats import Cell, Table
from pe_lab.results.reader import read_records, without_collection
from pe_lab.results.suite import Suite, load_suite


@dataclass(frozen=True)
class PlanRun:
    """A run that a plan names, in any state and at any rate.

    Args:
        place: its folder, or its run id and ``(shipped)``.
        run_id: its name among all runs.
    """

    place: str
    run_id: str
    state: str
    task: str
    entry: str
    seed: int
    started: float | None


def runs_of(plan: Plan, runs_dir: Path | None, suite: Suite) -> list[PlanRun]:
    """The runs below ``runs_dir`` that the plan names, finished or not, and those that are shipped:
    one that is both, and began at the same time, once. None: shipped ones alone."""
    here = [run for names, run in _runs(runs_dir, suite) if plan.names(names)]
    seen = {(run.run_id, run.started) for run in here}
    there = [run for names, run in _shipped_runs(suite) if plan.names(names)]
    return here + [run for run in there if (run.run_id, run.started) not in seen]


def known_seeds(plan: Plan, runs_dir: Path, suite: Suite) -> dict[int, str]:
    """The seeds at which a run of the plan's tasks and encodings began or is shipped, each with
    such a run. A run is deterministic: made again, it has the same numbers."""
    runs = [*_shipped_runs(suite), *_runs(runs_dir, suite)]
    return {run.seed: run.place for names, run in runs if plan.is_about(names)}


def with_fresh_seeds(plan: Plan, first_seed: int | None, runs_dir: Path, suite: Suite) -> Plan:
    """The plan with as many seeds from ``first_seed`` on; None: after all whose numbers are known.

    Raises:
        UsageError: one of them is known, or for tuning.
    """
    known = known_seeds(plan, runs_dir, suite)
    first = max(known, default=-1) + 1 if first_seed is None else first_seed
    seeds = tuple(range(first, first + len(plan.seeds)))
    if seen := [seed for seed in seeds if seed in known]:
        raise UsageError(
            f"first_seed={first}: the numbers of seed {seen[0]} are known already, "
            f"{known[seen[0]]}, and a plan is of runs to come; leave first_seed out, or set it to "
            f"{max(known) + 1} or more"
        )
    if tuning := [seed for seed in seeds if seed in suite.protocol.tuning_seeds]:
        raise UsageError(
            f"first_seed={first}: seed {tuning[0]} is for tuning, and a plan is of fresh seeds; "
            f"set first_seed to {tuning[-1] + 1} or more"
        )
    return plan.model_copy(update={"seeds": seeds})


def rows_of_plans(runs_dir: Path | None, suite: Suite) -> pl.DataFrame:
    """The runs of the folder and those that are shipped, each once, a row for each split. None:
    shipped ones alone."""
    shipped = shipped_rows(suite)
    others = shipped.clear() if runs_dir is None else suite_rows(runs_dir, suite)
    return once(shipped, others)[0]


def _shipped_runs(suite: Suite) -> list[tuple[dict[str, Any], PlanRun]]:
    """The shipped runs, one of several results each, with what ``Plan.names`` reads."""
    rows = shipped_rows(suite).unique(["run_id", "machine", "revision"], maintain_order=True)
    keys = ("run_id", "state", "task", "entry", "seed", "started")
    return [
        (row, PlanRun(f"{row['run_id']} (shipped)", **{key: row[key] for key in keys}))
        for row in rows.iter_rows(named=True)
    ]


def _runs(runs_dir: Path | None, suite: Suite) -> list[tuple[dict[str, Any], PlanRun]]:
    """The suite's runs in any state, with what ``Plan.names`` reads."""
    if runs_dir is None or not runs_dir.is_dir():
        return []
    with without_collection():
        records = read_records(runs_dir)
    found = []
    for record, setting, place in placed(records, suite):
        facts = record.facts
        seed, path = facts["seed"], Path(facts["path"])
        seed_init = setting.keys.get("seed.init", seed)
        names = {
            "suite": suite.version,
            "task": place.task,
            "entry": place.entry,
            "seed": seed,
            "seed_init": seed_init,
            "phase": phase_of(suite, place, seed, seed_init, setting.config["train"]),
        }
        run_id = "-".join(path.parts[-3:])
        of = (place.task, place.entry, seed, started(path))
        run = PlanRun(str(path), run_id, facts["state"], *of)
        found.append((names, run))
    return found


def why_exploratory(plan: Plan, runs: Sequence[PlanRun], suite: Suite) -> str:
    """Why the plan is none, as a sentence; empty: its runs are planned."""
    if plan.suite != suite.version:
        return f"it is of suite {plan.suite}, and this is {suite.version}"
    unknown = [run for run in runs if run.started is None]
    before = [run for run in runs if run.started is not None and run.started < plan.time]
    reasons = [
        f"{counted(len(those), 'run')} {what}, such as {those[0].place}"
        for those, what in (
            (before, "began before it was written"),
            (unknown, "did not record when they began"),
        )
        if those
    ]
    return "; ".join(reasons)


def planned_runs_note(paths: Iterable[str], runs_dir: Path, config_dir: str | None) -> str:
    """``planned_note`` of these folders of runs.

    Args:
        config_dir: of ``--config-dir``, where plans may have a suite of the user's.
    """
    found = planned_by(runs_dir, None if config_dir is None else Path(config_dir))
    return planned_note([found.get(Path(path)) for path in paths])


def shipped_rows(suite: Suite) -> pl.DataFrame:
    """The runs of the suite whose results are shipped, a row for each run and split."""
    return file.shipped_rows(suite)[0]


def tuned_rates(rows: pl.DataFrame, suite: Suite) -> dict[tuple[str, str], float]:
    """The rate that tuning chose for each task and entry, of those tried at every rate."""
    seeds = len(suite.protocol.tuning_seeds)
    return {
        (task, entry): rate
        for task, entry, rate, tried in chosen_rates(rows, seeds).iter_rows()
        if tried == len(suite.protocol.rates) and rate is not None
    }


def commands(
    plan: Plan,
    suite: Suite,
    rates: Mapping[tuple[str, str], float],
    flags: list[str],
    runs_dir: list[str],
) -> list[list[str]]:
    """The lines that make the plan's runs.

    Args:
        rates: of ``tuned_rates``.
    """
    entries = [f"pe={','.join(plan.encodings)}", f"tasks={','.join(plan.tasks)}"]
    line = ["pe-lab", "suite", suite.name, *flags, *entries, *runs_dir]
    if set(plan.seeds) <= set(range(suite.protocol.seeds)):
        return [line]
    # The suite tunes; other seeds than its own are runs of the same words.
    seeds = f"seed=range({plan.seeds[0]},{plan.seeds[-1] + 1})"
    pairs = [(task, entry) for task in plan.tasks for entry in plan.encodings]
    lines = [
        ["pe-lab", "-m", *flags, *suite.common, *suite.tasks[task].words, *suite.words(entry),
         f"train.lr={rates.get((task, entry), 'RATE')}", seeds, *runs_dir]
        for task, entry in pairs
    ]  # fmt: skip
    return lines if rates.keys() >= set(pairs) else [[*line, "phases=tuning"], *lines]


def state_table(plan: Plan, runs: Sequence[PlanRun]) -> Table:
    """A row for each task and encoding of the plan."""
    lines = []
    for task in plan.tasks:
        for entry in plan.encodings:
            those = [run for run in runs if (run.task, run.entry) == (task, entry)]
            finished = {run.seed for run in those if run.state == "finished"}
            others = [f"{r.state} seed {r.seed}" for r in those if r.seed not in finished]
            missing = [str(s) for s in plan.seeds if s not in {run.seed for run in those}]
            words = [task, entry, f"{len(finished)} of {len(plan.seeds)}"]
            lines.append([Cell(w) for w in (*words, ", ".join(others), ",".join(missing) or "-")])
    head = ("task", "encoding", "finished", "other states", "seeds not begun")
    return Table(f"the runs of the plan at any rate, suite {plan.suite}", head, len(head), lines)


def planned_by(runs_dir: Path, config_dir: Path | None = None) -> dict[Path, str]:
    """The folders of the planned runs below ``runs_dir``, each with the digest of its plan."""
    found: dict[Path, str] = {}
    runs: dict[str, list[tuple[dict[str, Any], PlanRun]]] = {}
    for plan in sorted(plans_in(runs_dir / FOLDER), key=lambda plan: plan.time):
        try:
            suite = load_suite(plan.suite_name, config_dir)
        except UsageError:
            continue  # of a --config-dir that is not given here
        if plan.suite == suite.version:
            if plan.suite not in runs:
                runs[plan.suite] = _runs(runs_dir, suite)
            for names, run in runs[plan.suite]:
                began = run.started is not None and run.started >= plan.time
                if began and plan.names(names):
                    found.setdefault(Path(run.place), plan.digest)
    return found
