"""``pe-lab leaderboard``: the results of a suite that are shipped, and yours among them.

    pe-lab leaderboard                                 P(generalises) by family, a row an entry
    pe-lab leaderboard family=recall                   the tasks of a family, several by commas
    pe-lab leaderboard task=flipflop                   a column for each split
    pe-lab leaderboard split=long_x4                   medians and means on one split
    pe-lab leaderboard sort=recall                     by this family (of family=.. a task, of
                                                       task=.. a split); sort=suite: as its yaml
    pe-lab leaderboard view=across                     over tasks: interquartile mean, profile,
                                                       probability of a lower error than rope
    pe-lab leaderboard view=tuning task=flipflop       the in-domain error at each learning rate
    pe-lab leaderboard view=published                  the papers' numbers beside those of the suite
    pe-lab leaderboard format=markdown                 table, csv, json, markdown or latex
    pe-lab leaderboard to=FILE.html                    a page: heat map, every seed as a dot, cost,
                                                       profiles, published numbers, failures
    pe-lab leaderboard to=FILE.svg                     its heat map; also .png, .pdf
    pe-lab leaderboard to=FILE.parquet                 write these runs, and their SHA-256 beside
    pe-lab leaderboard shipped=false                   the runs of runs_dir alone

The runs of the suite in runs_dir=runs (pe-lab suite v1 pe=mine makes them) stand among the shipped
ones. An entry is marked (yours) if none of its runs is shipped, (+12 yours) if twelve are not.
suite=v1 is the suite of conf/suite/v1.yaml; --config-dir FOLDER adds those in FOLDER/suite/. csv
and json hold a row for each task, entry and split, shares instead of %. There are no ranks and no
single score: entries that share no letter differ.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import polars as pl

from pe_lab.cli.leaderboard_files import (
    PARQUET,
    PICTURES,
    check_file,
    write_page,
    write_picture,
    write_runs,
)
from pe_lab.common.errors import UsageError
from pe_lab.common.metrics import IN_DOMAIN
from pe_lab.common.options import CommaSeparated, Flag, Options, parse, without_config_dir
from pe_lab.common.suggest import did_you_mean
from pe_lab.results.columns import frame_of
from pe_lab.results.formats import Table
from pe_lab.results.frame import FACTS
from pe_lab.results.leaderboard import file
from pe_lab.results.leaderboard.notes import (
    absent_note,
    broken_notes,
    closing_notes,
    lacking_note,
)
from pe_lab.results.leaderboard.order import SUITE
from pe_lab.results.leaderboard.rows import SCHEMA, suite_runs
from pe_lab.results.leaderboard.scores import Scores, scores
from pe_lab.results.leaderboard.tables import by_family, overview, overview_notes
from pe_lab.results.leaderboard.task_tables import (
    phases_table,
    split_table,
    task_table,
)
from pe_lab.results.leaderboard.tuning_table import tuning_table
from pe_lab.results.output import Format, print_tables
from pe_lab.results.suite import DEFAULT, Suite, load_suite


class LeaderboardOptions(Options):
    """The keys of ``pe-lab leaderboard``."""

    command = "leaderboard"

    suite: str = DEFAULT
    family: CommaSeparated[str] | None = None
    task: CommaSeparated[str] | None = None
    split: CommaSeparated[str] | None = None
    runs_dir: str = "runs"
    shipped: Flag = True
    view: Literal["families", "across", "published", "tuning"] = "families"
    sort: str | None = None
    format: Format = "table"
    to: Path | None = None


def show(words: Sequence[str]) -> None:
    """Print the tables, or write the file.

    Raises:
        UsageError: a wrong option, or no such suite, family, task or split.
    """
    config_dir, rest = without_config_dir(words)
    options = parse(LeaderboardOptions, rest)
    suite = load_suite(options.suite, None if config_dir is None else Path(config_dir))
    tasks = _tasks(suite, options)
    _check_together(options)
    _check_sort(suite, tasks, options)
    if options.to is not None:
        check_file(options.to)
    if "runs_dir" in options.model_fields_set and not Path(options.runs_dir).is_dir():
        raise UsageError(
            f"runs_dir={options.runs_dir} is not a folder: give the one your runs are in"
        )
    shipped, digest = pl.DataFrame(schema=SCHEMA), None
    if options.shipped:
        shipped, digest = file.shipped_rows(suite)
    here = suite_runs(Path(options.runs_dir), suite)
    yours, known = here.rows, {*shipped["run_id"], *here.rows["run_id"]}
    left = [of for run, of in here.lacking.items() if of.task in tasks and run not in known]
    closing = [*([lacking_note(left, suite)] if left else []), *broken_notes(here.broken)]
    if options.to is not None and options.to.suffix == PARQUET:
        write_runs(options.to, shipped, yours, closing)
        return
    found = scores(suite, shipped, yours)
    closing += closing_notes(found, tasks, digest)
    if options.to is not None and options.to.suffix in PICTURES:
        write_picture(options.to, found, tasks)
        return
    if options.to is not None:
        write_page(options.to, found, tasks, closing, shlex.join(["pe-lab", "leaderboard", *words]))
        return
    tables = _tables(found, tasks, options)
    rows = found.cells.filter(pl.col("task").is_in(tasks))
    if options.split is not None:
        rows = rows.filter(pl.col("split").is_in(options.split))
    facts = {
        "suite": suite.name,
        "suite_digest": suite.digest,
        "shipped_digest": digest,
        "interval": "95 %, Wilson, of k of n seeds",
    }
    if options.view == "families" and options.task is None and options.split is None:
        closing = [*overview_notes(found, _columns(suite, tasks, options)), *closing]
    else:
        closing = [*absent_note(found, tasks, options.view == "tuning"), *closing]
    print_tables(options.format, tables, rows, frame_of([], FACTS), closing, facts)


def _tables(found: Scores, tasks: list[str], options: LeaderboardOptions) -> list[Table]:
    suite = found.suite
    if options.view == "across":
        # Imported here: scipy takes a second.
        from pe_lab.results.leaderboard.across import across_tables

        return across_tables(found, tasks)
    if options.view == "published":
        from pe_lab.results.leaderboard.vs_published import published_table

        return [published_table(found, tasks)]
    if options.view == "tuning":
        return [table for task in tasks if (table := tuning_table(found, task)) is not None]
    if options.split is not None:
        return [
            split_table(found, task, split)
            for task in tasks
            for split in options.split
            if suite.tasks[task].threshold(split) is not None
        ]
    if options.task is not None:
        found_tables = (
            table
            for task in tasks
            for table in (task_table(found, task, options.sort), phases_table(found, task))
        )
        return [table for table in found_tables if table is not None]
    return [overview(found, _columns(suite, tasks, options), _title(suite, options), options.sort)]


def _title(suite: Suite, options: LeaderboardOptions) -> str:
    if options.family is not None:
        return f"{', '.join(options.family)}: P(generalises) by task, suite {suite.version}"
    return f"P(generalises) by family of tasks, suite {suite.version}"


def _tasks(suite: Suite, options: LeaderboardOptions) -> list[str]:
    """The tasks that the options select.

    Raises:
        UsageError: the suite has no such family, task or split, or not together.
    """
    families = list(dict.fromkeys(task.family for task in suite.tasks.values()))
    splits = [s for task in suite.tasks.values() for s in (IN_DOMAIN, *task.generalises)]
    wanted = {"family": families, "task": list(suite.tasks), "split": list(dict.fromkeys(splits))}
    for key, known in wanted.items():
        for value in getattr(options, key) or ():
            if value not in known:
                raise UsageError(f"{key}={value}: {did_you_mean(value, known)}")
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


def _columns(suite: Suite, tasks: list[str], options: LeaderboardOptions) -> dict[str, list[str]]:
    """The tasks of each column of the overview."""
    if options.family is not None:
        return {task: [task] for task in tasks}
    return by_family(suite, tasks)


def _check_together(options: LeaderboardOptions) -> None:
    """UsageError for keys of which one would have no effect."""
    chosen = options.model_fields_set
    without: tuple[str, ...] = ()
    why = ""
    if options.to is not None:
        parquet = options.to.suffix == PARQUET
        without = ("split", "view", "format", "sort", *(("family", "task") if parquet else ()))
        what = "all runs" if parquet else "P(generalises) of all splits"
        why = f"to={options.to} writes {what}"
    elif options.view != "families":
        without, why = ("split", "sort"), f"view={options.view} is of all scored splits"
        if options.format in ("csv", "json"):
            without, why = ("view",), f"format={options.format} has a row for each cell, not a view"
    elif options.format in ("csv", "json"):
        without, why = ("sort",), f"format={options.format} has a row for each cell"
    elif options.split is not None:
        without, why = ("sort",), f"split={','.join(options.split)} is ordered by that split"
    for key in without:
        if key in chosen:
            raise UsageError(f"{key}= has no effect here, as {why}: leave it out")


def _check_sort(suite: Suite, tasks: list[str], options: LeaderboardOptions) -> None:
    """UsageError if ``sort`` is no column of every table."""
    if options.sort in (None, SUITE):
        return
    names = list(_columns(suite, tasks, options))
    if options.task is not None:
        first = [IN_DOMAIN, *suite.tasks[tasks[0]].generalises]
        names = [s for s in first if all(suite.tasks[t].threshold(s) is not None for t in tasks)]
    if options.sort not in names:
        raise UsageError(f"sort={options.sort}: {did_you_mean(options.sort, [*names, SUITE])}")
