"""``pe-lab leaderboard``: the shipped results of a suite, and yours among them.

    pe-lab leaderboard                            which encodings work on each task, and yours
    pe-lab leaderboard view=entries               every entry on every task; pe=cope,mine: these
    pe-lab leaderboard task=flipflop              a column for each split, and verdicts of why
    pe-lab leaderboard task=flipflop view=tuning  the in-domain error at each learning rate
    pe-lab leaderboard claims=true                preregistered claims; claims=FILE.yaml: yours
    pe-lab leaderboard thresholds=0.5             all thresholds halved
    pe-lab leaderboard details=true               also failed runs, machines and revisions
    pe-lab leaderboard format=csv                 a row for each task, entry and split; also json,
                                                  markdown, latex
    pe-lab leaderboard to=FILE.html               an interactive page
    pe-lab leaderboard to=FILE.parquet            all these runs as a file
    pe-lab leaderboard shipped=false              the runs of runs_dir alone

The tables include the runs of the suite in runs_dir=runs; pe-lab suite v2 pe=mine makes them.
suite=v2 is conf/suite/v2.yaml; --config-dir FOLDER adds the suites in FOLDER/suite/.
docs/method.md defines the numbers.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import polars as pl
from pydantic import PositiveFloat

from pe_lab.core.console import console
from pe_lab.core.errors import RunError, UsageError, writing
from pe_lab.core.files import replace_file
from pe_lab.core.options import CommaSeparated, Flag, Options, parse, without_config_dir
from pe_lab.core.suggest import check_known
from pe_lab.explain.cells import Cell
from pe_lab.results.format import OutputFormat, print_tables
from pe_lab.store.run_folder import run_folders
from pe_lab.suite.claims import decide_claims, judge_claims, read_claims
from pe_lab.suite.rows import ORDER, SCHEMA, read_own, read_shipped, shipped_file, write_parquet
from pe_lab.suite.scores import Scores, score, unite
from pe_lab.suite.suite import DEFAULT, Suite, load_suite
from pe_lab.suite.tables import (
    claims_table,
    describe_best,
    describe_runs,
    entries_table,
    first_table,
    task_table,
    tuning_table,
)
from pe_lab.suite.verdicts import shipped_diagnoses, verdicts_of, with_verdicts

FILES = (".html", ".parquet")


class LeaderboardOptions(Options):
    """The keys of ``pe-lab leaderboard``."""

    command = "leaderboard"

    suite: str = DEFAULT
    task: CommaSeparated[str] | None = None
    pe: CommaSeparated[str] | None = None
    view: Literal["first", "entries", "tuning"] = "first"
    claims: str = ""
    details: Flag = False
    runs_dir: Path = Path("runs")
    shipped: Flag = True
    thresholds: PositiveFloat = 1.0
    format: OutputFormat = "table"
    to: Path | None = None


def show(words: Sequence[str]) -> None:
    """Print the tables, or write the file.

    Raises:
        UsageError: an option is wrong, or there is no such suite, task, entry or file of claims.
    """
    config_dir, rest = without_config_dir(words)
    options = parse(LeaderboardOptions, rest)
    folder = None if config_dir is None else Path(config_dir)
    suite = load_suite(options.suite, folder)
    check_known("task={}", options.task, suite.tasks)
    if options.to and not (options.to.suffix in FILES and options.to.parent.is_dir()):
        raise UsageError(f"to={options.to}: give FILE.html or FILE.parquet in a folder")
    shipped = read_shipped(suite) if options.shipped else pl.DataFrame(schema=SCHEMA)
    own = read_own(suite, options.runs_dir, folder)
    if options.claims not in ("", "false"):
        _print_claims(suite, shipped, own, options)
        return
    if options.thresholds != 1:
        suite = suite.with_thresholds(options.thresholds)
    scores = score(suite, shipped, own, read_shipped(suite, ".again") if options.shipped else None)
    names = [suite.split(entry)[0].partition(" ")[0] for entry in scores.rows["entry"].unique()]
    check_known("pe={}", options.pe, {*names, *scores.rows["entry"].unique()})
    if options.to is None:
        _print(scores, options)
    elif options.to.suffix == ".parquet":
        write_parquet(unite(shipped, own).select(*SCHEMA).sort(ORDER), options.to)
        console().print(f"{options.to}: {scores.rows['run_id'].n_unique()} runs")
    else:
        _write_page(scores, options, options.to, shlex.join(["pe-lab", "leaderboard", *words]))


def _print(scores: Scores, options: LeaderboardOptions) -> None:
    tasks = [task for task in scores.tasks if task in (options.task or scores.tasks)]
    if not tasks:
        raise RunError("no run of these tasks is scored: pe-lab suite trains them")
    notes = list(describe_runs(scores, tasks)) if options.details else []
    why, shown = _verdicts(scores, options), options.pe or ()
    if options.view == "tuning":
        tables = [tuning_table(scores, task, shown) for task in tasks]
    elif options.task:
        tables = [task_table(scores, task, why, shown) for task in tasks]
    elif options.view == "entries" or options.pe:
        tables = [entries_table(scores, tasks, shown)]
    else:
        tables = [first_table(scores, tasks)]
        notes = [describe_best(scores, tasks), *notes]
        notes.append("More: view=entries, task=flipflop, claims=true, details=true.")
    rows = with_verdicts(scores.cells.filter(pl.col("task").is_in(tasks)), why)
    columns = {entry: scores.suite.split(entry)[1] for entry in rows["entry"].unique()}
    if options.pe:
        bases = {entry: {entry, scores.suite.split(entry)[0]} for entry in columns}
        chosen = [entry for entry, of in bases.items() if of & {*options.pe}]
        rows = rows.filter(pl.col("entry").is_in(chosen))
    column = pl.col("entry").replace_strict(columns, return_dtype=pl.String)
    facts = {"suite": scores.suite.version, "thresholds": scores.suite.times}
    print_tables(options.format, tables, rows.with_columns(column=column), notes, facts)


def _print_claims(
    suite: Suite, shipped: pl.DataFrame, own: pl.DataFrame, options: LeaderboardOptions
) -> None:
    of_suite = options.claims == "true"
    path = shipped_file(f"{suite.name}.claims.yaml") if of_suite else Path(options.claims)
    if not path.exists():
        raise UsageError(f"claims={options.claims}: there is no {path}")
    claims = read_claims(path, suite)
    tests = decide_claims(claims, suite, shipped, own)
    exploratory = tests.filter(pl.col("exploratory").is_not_null()).unique("claim")
    notes = [
        f"{claim} is exploratory: {why}"
        for claim, why in exploratory.select("claim", "exploratory").iter_rows()
    ]
    table = claims_table(tests)
    print_tables(options.format, [table], tests, notes, {"verdicts": judge_claims(tests)})


def _verdicts(scores: Scores, options: LeaderboardOptions) -> dict[tuple[str, str], Cell]:
    found = shipped_diagnoses(scores.suite) if options.shipped else []
    own = run_folders(options.runs_dir) if options.runs_dir.is_dir() else ()
    folders = {"-".join(one.path.parts[-3:]): one for one in own}
    return verdicts_of(scores, found, folders)


def _write_page(scores: Scores, options: LeaderboardOptions, path: Path, command: str) -> None:
    # Imported here: the charts take a second.
    from pe_lab.report.leaderboard import leaderboard_page

    tasks = [task for task in scores.tasks if task in (options.task or scores.tasks)]
    notes = list(describe_runs(scores, tasks))
    page = leaderboard_page(scores, tasks, _verdicts(scores, options), notes, command)
    with writing(path, "another to="):
        replace_file(path, page.encode())
    console().print(f"wrote {path}")
