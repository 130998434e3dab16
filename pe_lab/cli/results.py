"""``pe-lab results``: tables of the runs of a folder.

    pe-lab results task=flipflop pe=cope,rope          filters: any key; commas separate values
    pe-lab results where="ood<0.05 and steps>=1000"    a condition: = != < <= > >= in and or not ( )
    pe-lab results by=pe,model.d_model                 one row for each combination of these
    pe-lab results splits=sparse,dense sort=-sparse    columns and order, - for descending; else
                                                       the highest rates, then the lowest OOD
                                                       mean, come first
    pe-lab results metric=loss spread=sd               the metric; spread: rates (of seeds that
                                                       generalise, median, mean and sd), or mean
                                                       and sd alone
    pe-lab results threshold=0.1                       up to this error (a share) a run counts as
                                                       generalised; default: as in suite v2, 0.05
                                                       for other splits
    pe-lab results format=csv > table.csv              table, csv, json, markdown or latex
    pe-lab results runs_dir=elsewhere                  the folder of the runs, else runs
    pe-lab results to=runs.parquet                     write the selected runs to a file of runs
    pe-lab results file=runs.parquet                   a file of runs instead of their folder;
                                                       file=findings: those of docs/findings.md
    pe-lab results evaluations=true                    the evaluations by pe-lab eval: a row for
                                                       each encoding at test time, a column for
                                                       each length in tokens read; splits= as
                                                       evaluated, sort=-512
    pe-lab results where="tuning_of=null"              without the runs on which a suite chose the
                                                       learning rate; --config-dir FOLDER adds the
                                                       suites in FOLDER/suite/

csv and json hold exact numbers, shares instead of %: one row for each row and split of the table.
Runs that are not finished are listed below the table. In json they are under ``unfinished``; with
csv, markdown and latex they and all notes go to the error output.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, get_args

import polars as pl
from pydantic import Field, field_validator

from pe_lab.core.console import console
from pe_lab.core.errors import UsageError
from pe_lab.core.options import CommaSeparated, Flag, parse, without_config_dir
from pe_lab.core.output import counted
from pe_lab.results.aggregate import RATED, SETTING, grouped
from pe_lab.results.evaluations import evaluated_paths
from pe_lab.results.labels import named
from pe_lab.results.presentation.formats import Format, Table, print_tables
from pe_lab.results.presentation.tables import (
    Layout,
    Spread,
    pooled_keys_note,
    pooled_note,
    tables,
    with_differs,
)
from pe_lab.results.selection import FileOptions, selected, write_file_of_runs

Limit = Annotated[float, Field(ge=0, le=1, description="a share from 0 to 1, 0.05 is 5 %")]


class ResultsOptions(FileOptions):
    """The keys of ``pe-lab results``."""

    command = "results"

    by: CommaSeparated[str] | None = None
    splits: CommaSeparated[str] | None = None
    metric: str = "error"
    sort: str | None = None
    spread: Spread = "rates"
    threshold: Limit | None = None
    format: Format = "table"
    to: Path | None = None
    evaluations: Flag = False

    @field_validator("format", mode="before")
    @classmethod
    def _no_parquet(cls, form: object) -> object:
        if form == "parquet":
            raise ValueError("give to=FILE.parquet, which writes the selected runs to a file")
        return form

    @field_validator("to")
    @classmethod
    def _parquet(cls, to: Path) -> Path:
        form = {".md": "markdown", ".tex": "latex"}.get(to.suffix, to.suffix.removeprefix("."))
        if form in get_args(Format):
            raise ValueError(f"tables go to the standard output, format={form} > {to}")
        if to.suffix != ".parquet":
            raise ValueError("give FILE.parquet for the runs, format=csv > FILE.csv for the table")
        return to


def show(words: Sequence[str]) -> None:
    """Print one row for each setting, or each combination of the keys of ``by``, and every run
    that is not finished; or the recorded evaluations.

    Raises:
        UsageError: a wrong option or filter.
    """
    config_dir, rest = without_config_dir(words)
    options = parse(ResultsOptions, rest)
    runs = selected(options, config_dir)
    _check(options)
    if options.to is not None:
        write_file_of_runs(runs, options.to)
        console().print(f"{options.to}: {counted(len(runs), 'run')}", soft_wrap=True)
        return
    found, rows, notes = _content(runs, options)
    facts = {"metric": options.metric, "interval": "95 %, Wilson, of k of n seeds"}
    print_tables(options.format, found, rows, runs, notes, facts)


def _content(
    runs: pl.DataFrame, options: ResultsOptions
) -> tuple[list[Table], pl.DataFrame, list[str]]:
    """The tables, the same as numbers, and notes."""
    if runs.is_empty():
        among = " ".join([str(options.file or options.runs_dir), *options.filters])
        begin = "pe-lab task=flipflop pe=cope makes one in runs"
        none = f"no runs in {among}: {'leave out a filter' if options.filters else begin}"
        return [], pl.DataFrame(), [none]
    finished = runs.filter(pl.col("state") == "finished")
    if finished.is_empty():
        return [], pl.DataFrame(), []
    metric, spread, where = options.metric, options.spread, options.where
    if options.evaluations:
        from pe_lab.results.presentation.evaluations import recorded_tables

        found, rows, notes = recorded_tables(
            runs, metric, options.by, options.splits, options.sort, spread
        )
        evaluated = runs.filter(pl.col("path").is_in(evaluated_paths(runs)))
        by = ["pe", *(options.by or ["setting"])]
        return found, rows, [*notes, *pooled_note(evaluated, by, where)]
    by = [*(SETTING if options.by is None else options.by)]
    groups = grouped(runs, by, metric, options.splits, options.threshold, spread == "rates")
    names = named(finished)
    notes = [
        *pooled_keys_note(runs, by), *pooled_note(runs, by, where), *_evaluated(runs, options)
    ]  # fmt: skip
    found = tables(groups, names, Layout(by, metric, spread, options.sort))
    return found, with_differs(groups, names), notes


def _check(options: ResultsOptions) -> None:
    """Refuse options that exclude one another."""
    if options.threshold is not None and options.metric not in RATED:
        raise UsageError(
            f"threshold={options.threshold} is one of {', '.join(RATED)}, and metric="
            f"{options.metric} is none of them: leave threshold out"
        )
    if options.threshold is not None and options.evaluations:
        raise UsageError(
            f"threshold={options.threshold} with evaluations=true: its tables have no rates, leave "
            "one of the two out"
        )
    if options.evaluations and options.file is not None:
        raise UsageError(
            f"evaluations=true with file={options.file}: evaluations lie in run folders, leave one "
            "of the two out"
        )


def _evaluated(runs: pl.DataFrame, options: ResultsOptions) -> list[str]:
    """How many of the runs were evaluated, and the command that shows it."""
    n = len(evaluated_paths(runs))
    folder = [f"runs_dir={options.runs_dir}"] if "runs_dir" in options.model_fields_set else []
    line = shlex.join(["pe-lab", "results", *options.filters, *folder, "evaluations=true"])
    return [f"{n} of these runs {'was' if n == 1 else 'were'} evaluated: {line}"] if n else []
