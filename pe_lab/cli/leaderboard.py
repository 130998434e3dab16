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
    pe-lab leaderboard to=FILE.parquet                 write these runs, and their SHA-256 beside
    pe-lab leaderboard shipped=false                   the runs of runs_dir alone

The runs of the suite in runs_dir=runs (pe-lab suite v1 pe=mine makes them) stand among the shipped
ones, marked (yours). suite=v1 is the suite of conf/suite/v1.yaml; --config-dir FOLDER adds
those in FOLDER/suite/. csv and json hold a row for each
task, entry and split, shares instead of %. There are no ranks and no single score: entries that
share no letter differ.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from pe_lab.cli.leaderboard_options import (
    MARK,
    PARQUET,
    LeaderboardOptions,
    check_file,
    check_sort,
    check_together,
    columns,
    selected_tasks,
)
from pe_lab.common.console import console
from pe_lab.common.errors import UsageError, cannot_write
from pe_lab.common.files import replace_file
from pe_lab.common.options import parse, without_config_dir
from pe_lab.common.output import counted
from pe_lab.results.columns import frame_of
from pe_lab.results.formats import Table
from pe_lab.results.frame import FACTS
from pe_lab.results.leaderboard import file
from pe_lab.results.leaderboard.notes import closing_notes
from pe_lab.results.leaderboard.rows import SCHEMA, suite_rows
from pe_lab.results.leaderboard.scores import Scores, scores
from pe_lab.results.leaderboard.tables import overview, overview_notes
from pe_lab.results.leaderboard.task_tables import (
    phases_table,
    split_table,
    task_table,
    tuning_table,
)
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
    tasks = selected_tasks(suite, options)
    check_together(options)
    check_sort(suite, tasks, options)
    if options.to is not None:
        check_file(options.to)
    if "runs_dir" in options.model_fields_set and not Path(options.runs_dir).is_dir():
        raise UsageError(
            f"runs_dir={options.runs_dir} is not a folder: give the one your runs are in"
        )
    shipped, yours, digest = _rows(suite, options)
    if options.to is not None and options.to.suffix == PARQUET:
        rows = file.merged(shipped, yours)
        file.check_kept(options.to, rows)
        written = file.write(rows, options.to)
        _say_written(options.to, f"{_runs(rows)}, SHA-256 {written}..")
        return
    found = scores(suite, shipped, yours)
    if options.to is not None:
        _write_page(found, tasks, options, digest, shlex.join(["pe-lab", "leaderboard", *words]))
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
    notes = closing_notes(found, tasks, digest)
    if options.view == "families" and options.task is None and options.split is None:
        notes = [*overview_notes(found, columns(suite, tasks, options)), *notes]
    print_tables(options.format, tables, rows, frame_of([], FACTS), notes, facts)


def _write_page(
    found: Scores, tasks: list[str], options: LeaderboardOptions, digest: str | None, command: str
) -> None:
    # Imported here: scipy and the charts take a second.
    from pe_lab.report.leaderboard import leaderboard_page

    assert options.to is not None
    text = leaderboard_page(found, tasks, closing_notes(found, tasks, digest), MARK, command)
    try:
        replace_file(options.to, text.encode())
    except OSError as error:
        raise cannot_write(options.to, error) from None
    _say_written(options.to, f"{_runs(found.rows)}; open it in a browser")


def _runs(rows: pl.DataFrame) -> str:
    return counted(rows["run_id"].n_unique(), "run")


def _say_written(path: Path, what: str) -> None:
    console().print(f"{path}: {path.stat().st_size / 1e6:.2f} MB, {what}", soft_wrap=True)


def _rows(
    suite: Suite, options: LeaderboardOptions
) -> tuple[pl.DataFrame, pl.DataFrame, str | None]:
    """The shipped runs, those of ``runs_dir``, and the digest of the shipped file if there is
    one."""
    shipped, digest = pl.DataFrame(schema=SCHEMA), None
    if options.shipped:
        shipped, digest = file.shipped_rows(suite)
    yours = suite_rows(Path(options.runs_dir), suite)
    return shipped, yours, digest


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
    return [overview(found, columns(suite, tasks, options), _title(suite, options), options.sort)]


def _title(suite: Suite, options: LeaderboardOptions) -> str:
    if options.family is not None:
        return f"{', '.join(options.family)}: P(generalises) by task, suite {suite.version}"
    return f"P(generalises) by family of tasks, suite {suite.version}"
