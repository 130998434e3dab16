"""``pe-lab leaderboard``: the shipped results of a suite, and yours among them.

    pe-lab leaderboard                                 which encodings work on each task
    pe-lab leaderboard view=families                   success rate by family of tasks, of the ten
                                                       with the most runs; all=true; pe=cope,mine
    pe-lab leaderboard family=recall                   the tasks of a family, or of several
    pe-lab leaderboard task=flipflop                   a column for each split; split=long_x4: these
    pe-lab leaderboard details=true                    also failures, tests, other phases, plans,
                                                       machines and revisions
    pe-lab leaderboard sort=recall                     by this family (of family=.. a task, of
                                                       task=.. a split); sort=suite: as its yaml
    pe-lab leaderboard claims=true                     preregistered claims and their tests
    pe-lab leaderboard view=tuning task=flipflop       the in-domain error at each learning rate
    pe-lab leaderboard thresholds=0.5                  all thresholds halved: what depends on them
    pe-lab leaderboard format=markdown                 table, csv, json, markdown or latex
    pe-lab leaderboard to=FILE.html                    a page: heat map, rates by threshold; for
                                                       each task its table and every seed as a dot
    pe-lab leaderboard to=FILE.svg                     its heat map; also .png, .pdf; pe=cope,rope
    pe-lab leaderboard to=FILE.parquet                 write these runs, and their SHA-256 beside
    pe-lab leaderboard shipped=false                   the runs of runs_dir alone

The tables include the runs of the suite in runs_dir=runs; pe-lab suite v2 pe=mine makes them. An
entry is marked (yours) if no run of it ships, (+12 yours) if twelve do not. suite=v2 is
conf/suite/v2.yaml; --config-dir FOLDER adds the suites in FOLDER/suite/. csv and json have a row
for each task, entry and split, with shares instead of %. With task=, pe= or family=, another table
has the verdicts of pe-lab why where runs were diagnosed (docs/why.md). docs/method.md defines what
the other tables show; there are no ranks and no single score.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import polars as pl
from pydantic import PositiveFloat

from pe_lab.cli.leaderboard_files import write_page, write_picture, write_runs
from pe_lab.config.choices import choices
from pe_lab.core.errors import UsageError
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.core.options import CommaSeparated, Flag, Options, parse, without_config_dir
from pe_lab.core.output import counted
from pe_lab.core.suggest import check_known
from pe_lab.results.leaderboard import families, file
from pe_lab.results.leaderboard.claims import decide, read_claims, shipped_claims
from pe_lab.results.leaderboard.rows import SCHEMA, Found, suite_runs
from pe_lab.results.leaderboard.scores import Scores, scores
from pe_lab.results.presentation.formats import Format, Table, print_tables
from pe_lab.results.presentation.leaderboard import (
    conclusion,
    overview,
    overview_notes,
    task_table,
)
from pe_lab.results.presentation.leaderboard_details import (
    absent_note,
    claims_table,
    lacking,
    left_out,
    phases_table,
    provenance,
    tuning_table,
)
from pe_lab.results.presentation.needs import doubts, headline, needs_table
from pe_lab.results.presentation.verdicts import Verdicts, verdict_table, with_verdicts
from pe_lab.results.suite import DEFAULT, SCORE, Suite, load_suite
from pe_lab.results.table import FINDINGS, shipped_findings
from pe_lab.suite.verdicts import of_scores, shipped_diagnoses

SHOWN = 10
"""Entries of a table without all=true."""


class LeaderboardOptions(Options):
    """The keys of ``pe-lab leaderboard``."""

    command = "leaderboard"

    suite: str = DEFAULT
    family: CommaSeparated[str] | None = None
    task: CommaSeparated[str] | None = None
    split: CommaSeparated[str] | None = None
    pe: CommaSeparated[str] | None = None
    all: Flag = False
    details: Flag = False
    runs_dir: str = "runs"
    shipped: Flag = True
    claims: Flag = False
    view: Literal["needs", "families", "tuning"] | None = None
    sort: str | None = None
    thresholds: PositiveFloat = 1.0
    format: Format = "table"
    to: Path | None = None

    @property
    def shown(self) -> str:
        """The view: without one, what each task needs, or the tables of what is asked for."""
        asked = self.model_fields_set & {"family", "task", "split", "pe", "all", "sort"}
        return self.view or ("families" if asked else "needs")


def show(words: Sequence[str]) -> None:
    """Print the tables, or write the file.

    Raises:
        UsageError: a wrong option, or no such suite, family, task or split.
    """
    config_dir, rest = without_config_dir(words)
    options = parse(LeaderboardOptions, rest)
    suite = load_suite(options.suite, None if config_dir is None else Path(config_dir))
    if options.thresholds != 1:
        suite = suite.with_thresholds(options.thresholds)
    tasks = _tasks(suite, options)
    _check_together(options)
    _check_sort(suite, tasks, options)
    if "runs_dir" in options.model_fields_set and not Path(options.runs_dir).is_dir():
        raise UsageError(
            f"runs_dir={options.runs_dir} is not a folder: give the one your runs are in"
        )
    if options.to is not None:
        file.check_file(options.to)
    shipped, digest = pl.DataFrame(schema=SCHEMA), None
    again = shipped
    if options.shipped:
        (shipped, digest), again = file.shipped_rows(suite), file.shipped_again(suite)
    here = suite_runs(Path(options.runs_dir), suite)
    if options.claims:
        _print_claims(suite, shipped, here.rows, options.format)
        return
    found = scores(suite, shipped, here.rows, again)
    if options.to is not None:
        left = left_out(found, here, tasks)
        if options.to.suffix == file.PARQUET:
            write_runs(options.to, file.merged(shipped, here.rows), left)
        elif options.to.suffix in file.PICTURES:
            shown = None if options.pe is None else _shown(found, tasks, options)
            write_picture(options.to, found, tasks, shown)
        else:
            command = shlex.join(["pe-lab", "leaderboard", *words])
            notes = [*left, *provenance(found, tasks, digest)]
            write_page(options.to, found, _why(found, here, tasks, options), tasks, notes, command)
    else:
        _print(found, here, tasks, digest, options)


def _print(
    found: Scores, here: Found, tasks: list[str], digest: str | None, options: LeaderboardOptions
) -> None:
    suite = found.suite
    columns = _columns(suite, tasks, options)
    shown = _shown(found, tasks, options)
    rows = found.cells.filter(pl.col("task").is_in(tasks))
    if options.split is not None:
        rows = rows.filter(pl.col("split").is_in(options.split))
    if options.pe is not None:
        rows = rows.filter(pl.col("entry").is_in(shown or ()))
    facts = {
        "suite": suite.name,
        "suite_digest": suite.digest,
        "thresholds": suite.times,
        "shipped_digest": digest,
        "interval": "95 %, Wilson, of k of n seeds",
    }
    said = ""
    if options.shown in ("families", "needs"):
        needed = options.shown == "needs"
        said = headline(found, tasks) if needed else conclusion(found, columns)
    tables = _tables(found, tasks, columns, shown, options)
    if options.format in ("csv", "json"):
        rows = families.with_column(with_verdicts(rows, _why(found, here, tasks, options)), suite)
    elif options.shown == "families" and options.model_fields_set & {"pe", "task", "family"}:
        below = verdict_table(_why(found, here, tasks, options), shown, options.split)
        tables += [below] if below.rows else []
    notes = _notes(found, here, tasks, columns, shown, options)
    if options.details:
        notes += provenance(found, tasks, digest)
    print_tables(options.format, tables, rows, None, notes, facts, said)


def _print_claims(suite: Suite, shipped: pl.DataFrame, here: pl.DataFrame, form: Format) -> None:
    path = shipped_claims(suite.name)
    if not path.exists():
        raise UsageError(f"suite {suite.name} ships no claims: give suite={DEFAULT}")
    decided = decide(read_claims(path), suite, shipped, here)
    notes = [f"{one.name} is exploratory: {one.exploratory}" for one in decided if one.exploratory]
    facts = {"verdicts": {one.name: one.verdict for one in decided}}
    tests = pl.concat([one.rows for one in decided])
    print_tables(form, [claims_table(decided)], tests, None, notes, facts)


def _why(found: Scores, here: Found, tasks: list[str], options: LeaderboardOptions) -> Verdicts:
    rows = shipped_diagnoses(found.suite, wanted=options.shipped)
    return of_scores(found, tasks, rows, here.folders)


def _shown(found: Scores, tasks: list[str], options: LeaderboardOptions) -> set[str] | None:
    """The entries with a row; None: all.

    Raises:
        UsageError: ``pe`` names no entry.
    """
    listed, controls = families.entry_order(found, tasks)
    if options.pe is not None:
        # pe=cope selects cope+conv and cope npos=16, too.
        names = {
            entry: {entry, entry.split()[0], families.halves(found.suite, entry)[0].split()[0]}
            for entry in (*listed, *controls)
        }
        known = dict.fromkeys(name for of in names.values() for name in sorted(of))
        check_known("pe={}", options.pe, [*known])
        return {entry for entry, of in names.items() if of & {*options.pe}}
    every = options.all or options.shown == "needs"
    return None if every else families.most_evidence(found, tasks, listed, SHOWN)


def _tables(
    found: Scores,
    tasks: list[str],
    columns: dict[str, list[str]],
    shown: set[str] | None,
    options: LeaderboardOptions,
) -> list[Table]:
    if options.shown == "needs":
        return [needs_table(found, tasks)]
    if options.shown == "families" and options.task is None and options.split is None:
        of = "by family of tasks" if options.family is None else f"on {', '.join(options.family)}"
        title = f"Success rate in % {of}, suite {found.suite.title}"
        return [overview(found, columns, title, options.sort, shown)]
    made: list[Table | None] = []
    for task in tasks:
        if options.view == "tuning":
            made.append(tuning_table(found, task, shown))
        else:
            made.append(task_table(found, task, options.sort, shown, options.split))
            made += [phases_table(found, task)] if options.details else []
    return [table for table in made if table is not None]


def _notes(
    found: Scores,
    here: Found,
    tasks: list[str],
    columns: dict[str, list[str]],
    shown: set[str] | None,
    options: LeaderboardOptions,
) -> list[str]:
    """Two lines: what the tables leave out, and how to see more. With ``details`` each thing that
    is left out has a line."""
    read = options.format not in ("csv", "json")
    doubted = doubts(found, tasks) if options.shown == "needs" and read else []
    if options.details:
        notes = [*doubted, *overview_notes(found, columns)]
        if options.shown not in ("families", "needs"):
            notes = absent_note(found, tasks, options.view == "tuning")
        return [*notes, *left_out(found, here, tasks)]
    failed = found.rows.filter(pl.col("task").is_in(tasks), state="failed")["run_id"].n_unique()
    excluded = len(lacking(found, here, tasks)) + len(here.broken)
    left = [
        f"{counted(excluded, 'run')} not counted" if excluded else "",
        f"{counted(failed, 'run')} failed" if failed else "",
        f"{len(here.versions)} of your entries mix versions" if here.versions else "",
    ]
    listed, _ = families.entry_order(found, tasks)
    more = len({*found.cells.filter(pl.col("task").is_in(tasks))["entry"]} & {*listed} - shown) \
        if shown is not None and options.pe is None else 0  # fmt: skip
    hints = [
        f"{counted(more, 'more entry' if more == 1 else 'more entrie')}: all=true." if more else "",
        "More: view=families, task=flipflop, details=true."
        if doubted
        else "Tests, failures, machines: details=true.",
        "Definitions: docs/method.md.",
    ]
    out = "; ".join(filter(None, left))
    named = [f"{out}: details=true names them."] if out else []
    return [*doubted, *named, " ".join(filter(None, hints))]


def _tasks(suite: Suite, options: LeaderboardOptions) -> list[str]:
    """The tasks that the options select.

    Raises:
        UsageError: the suite has no such family, task or split, or not together.
    """
    kinds = list(dict.fromkeys(task.family for task in suite.tasks.values()))
    splits = [s for task in suite.tasks.values() for s in (IN_DOMAIN, *task.generalises)]
    wanted = {"family": kinds, "task": list(suite.tasks), "split": list(dict.fromkeys(splits))}
    for key, known in wanted.items():
        for value in getattr(options, key) or ():
            if key == "task" and value not in known and value in choices("task"):
                where = _where(suite, value)
                raise UsageError(f"task={value} is not in suite {suite.name}: {where}")
        check_known(f"{key}={{}}", getattr(options, key), known)
    found = [
        name
        for name, task in suite.tasks.items()
        if (options.family is None or task.family in options.family)
        and (options.task is None or name in options.task)
        and (
            options.split is None
            or any(task.threshold(split) is not None for split in options.split)
        )
    ]
    if not found:
        words = {key: getattr(options, key) for key in wanted if getattr(options, key)}
        line = " ".join(f"{key}={','.join(values)}" for key, values in words.items())
        raise UsageError(f"{line}: no task of suite {suite.name} is of all these; leave one out")
    return found


def _where(suite: Suite, task: str) -> str:
    """What has the results of a task that the suite lacks."""
    names = [name for name, of in suite.tasks.items() if f"task={task}" in of.words]
    if names:
        return f"it has that task with other keys, task={','.join(names)}"
    for other in sorted(choices("suite"), key=lambda name: name != DEFAULT):
        rows, _ = file.shipped_rows(load_suite(other))
        if len(rows.filter(task=task, phase=SCORE)):
            return f"pe-lab leaderboard suite={other} task={task} shows the runs that ship"
    if task in pl.scan_parquet(shipped_findings()).select("task").unique().collect()["task"]:
        return f"pe-lab results file={FINDINGS} task={task} shows the runs that ship"
    return f"no runs of it ship; pe-lab -m task={task} pe=rope,alibi seed=0,1,2 trains some"


def _columns(suite: Suite, tasks: list[str], options: LeaderboardOptions) -> dict[str, list[str]]:
    """The tasks of each column of the overview."""
    if options.family is not None or options.task is not None:
        return {task: [task] for task in tasks}
    return families.by_family(suite, tasks)


_OF_VIEW = {
    "needs": "what works on each task",
    "tuning": "errors in domain",
}


def _check_together(options: LeaderboardOptions) -> None:
    """UsageError for keys of which one would have no effect."""
    chosen = options.model_fields_set
    without: tuple[str, ...] = ()
    why = ""
    if options.to is not None:
        parquet, picture = (options.to.suffix in of for of in ((file.PARQUET,), file.PICTURES))
        without = ("format", "sort", "all", "details")
        without += ("family", "task", "thresholds") if parquet else ()
        without += () if picture else ("pe",)
        without += ("split",) if picture and options.shown == "families" else ("split", "view")
        every = "every split" if picture else "every entry and split"
        why = f"to={options.to} writes {'all runs' if parquet else every}"
    elif options.view not in (None, "families"):
        without = ("split", "sort", "thresholds")
        if options.view == "needs":
            without = ("split", "sort", "pe", "all")
        why = f"view={options.view} shows {_OF_VIEW[options.view]}"
        if options.format in ("csv", "json"):
            without, why = ("view",), f"format={options.format} has a row for each cell, not a view"
    elif options.format in ("csv", "json"):
        without, why = ("sort",), f"format={options.format} has a row for each cell"
    for key in without:
        if key in chosen:
            raise UsageError(f"{key}= has no effect here, as {why}: leave it out")


def _check_sort(suite: Suite, tasks: list[str], options: LeaderboardOptions) -> None:
    """UsageError if ``sort`` is no column of every table."""
    if options.sort is None:
        return
    names = list(_columns(suite, tasks, options))
    if options.task is not None or options.split is not None:
        first = options.split or [IN_DOMAIN, *suite.tasks[tasks[0]].generalises]
        names = [s for s in first if all(suite.tasks[t].threshold(s) is not None for t in tasks)]
    check_known("sort={}", [options.sort], [*names, families.SUITE])
