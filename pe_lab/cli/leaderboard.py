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
    pe-lab leaderboard thresholds=0.5                  all thresholds halved: what depends on them
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

import polars as pl

from pe_lab.cli.leaderboard_files import (
    PARQUET,
    PICTURES,
    check_file,
    write_page,
    write_picture,
    write_runs,
)
from pe_lab.cli.leaderboard_options import (
    LeaderboardOptions,
    check_sort,
    check_together,
    columns_of,
    tasks_of,
)
from pe_lab.common.errors import UsageError
from pe_lab.common.options import parse, without_config_dir
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
from pe_lab.results.leaderboard.rows import SCHEMA, suite_runs
from pe_lab.results.leaderboard.scores import Scores, scores
from pe_lab.results.leaderboard.tables import overview, overview_notes
from pe_lab.results.leaderboard.task_tables import (
    phases_table,
    split_table,
    task_table,
)
from pe_lab.results.leaderboard.tuning_table import tuning_table
from pe_lab.results.output import print_tables
from pe_lab.results.suite import Suite, load_suite


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
    tasks = tasks_of(suite, options)
    check_together(options)
    check_sort(suite, tasks, options)
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
    closing += here.versions
    if options.to is not None and options.to.suffix == PARQUET:
        write_runs(options.to, shipped, yours, closing)
        return
    found = scores(suite, shipped, yours)
    if options.to is not None and options.to.suffix in PICTURES:
        write_picture(options.to, found, tasks)
        return
    closing += closing_notes(found, tasks, digest)
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
        "thresholds": suite.times,
        "shipped_digest": digest,
        "interval": "95 %, Wilson, of k of n seeds",
    }
    if options.view == "families" and options.task is None and options.split is None:
        closing = [*overview_notes(found, columns_of(suite, tasks, options)), *closing]
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
    return [
        overview(found, columns_of(suite, tasks, options), _title(suite, options), options.sort)
    ]


def _title(suite: Suite, options: LeaderboardOptions) -> str:
    if options.family is not None:
        return f"{', '.join(options.family)}: P(generalises) by task, suite {suite.title}"
    return f"P(generalises) by family of tasks, suite {suite.title}"
