"""``pe-lab results``: tables of the runs of a folder.

    pe-lab results task=flipflop pe=cope,rope          filters: any key; commas separate values
    pe-lab results where="ood<0.05 and steps>=1000"    a condition: = != < <= > >= in and or not ( )
    pe-lab results by=pe,model.d_model                 one row for each combination of these
    pe-lab results splits=sparse,dense sort=-sparse    columns and order, - for descending; else
                                                       the highest rates, then the lowest OOD
                                                       mean, come first
    pe-lab results metric=loss spread=sd               the metric; spread: rates (k of n seeds that
                                                       generalise, and the median), or sd (mean and
                                                       standard deviation)
    pe-lab results threshold=0.1                       up to this error (a share) a run counts as
                                                       generalised; default: as in conf/suite/, 0.05
                                                       for other splits
    pe-lab results format=csv > table.csv              table, csv, json, markdown or latex
    pe-lab results runs_dir=elsewhere                  the folder of the runs, else runs
    pe-lab results to=runs.parquet                     write the selected runs to a file of runs
    pe-lab results file=runs.parquet                   a file of runs instead of their folder;
                                                       file=findings: those of docs/findings.md
    pe-lab results where="tuning_of=null"              without the runs on which a suite chose the
                                                       learning rate

csv and json hold exact numbers, shares instead of %: one row for each row and split of the table.
Runs that are not finished are listed below the table. In json they are under ``unfinished``; with
csv, markdown and latex they and all notes go to the error output.
"""

from pathlib import Path
from typing import Annotated

import polars as pl
from pydantic import Field

from pe_lab.cli.arguments import NewParquet
from pe_lab.core.errors import counted
from pe_lab.core.options import CommaSeparated, Line
from pe_lab.results.format import OutputFormat, Table, print_tables
from pe_lab.results.groups import SETTING, grouped, named
from pe_lab.results.query import column_of
from pe_lab.results.table import selected, unfinished_notes, write_parquet
from pe_lab.results.tables import (
    Layout,
    Spread,
    tables,
    tuning_note,
    with_differs,
)

Limit = Annotated[float, Field(ge=0, le=1)]
UNFINISHED = ("path", "task", "pe", "seed", "state", "step", "steps", "message")


def show(
    line: Line,
    *,
    runs_dir: Path = Path("runs"),
    file: Path | None = None,
    where: str | None = None,
    by: CommaSeparated[str] | None = None,
    splits: CommaSeparated[str] | None = None,
    metric: str = "error",
    sort: str | None = None,
    spread: Spread = "rates",
    threshold: Limit | None = None,
    format: OutputFormat = "table",
    to: NewParquet | None = None,
    **filters: str,
) -> None:
    """Print one row for each setting, or each combination of the keys of ``by``, and every run
    that is not finished.

    Raises:
        UsageError: a wrong option or filter.
        MachineError: the file of ``to=`` cannot be written.
    """
    runs = selected(line, runs_dir, where, filters, file)
    if to is not None:
        write_parquet(runs, to)
        print(f"{to}: {counted(len(runs), 'run')}")
        return
    shown, rows, notes = list[Table](), pl.DataFrame(), tuning_note(runs)
    finished = runs.filter(pl.col("state") == "finished")
    if len(finished):
        named_by = dict.fromkeys(column_of(key, runs.columns) or key for key in by or ())
        by, names = [*named_by] or list(SETTING), named(finished)
        groups = grouped(runs, by, metric, splits, threshold, spread == "rates")
        shown = tables(groups, names, Layout(by, metric, spread, sort))
        rows = with_differs(groups, names)
    if runs.is_empty():
        among = " ".join([str(file or runs_dir), *line.filters])
        begin = "or pe-lab task=flipflop pe=cope makes one in runs"
        notes = [f"no runs in {among}: look at runs_dir, leave out a filter, {begin}"]
    unfinished = runs.filter(pl.col("state") != "finished").select(UNFINISHED)
    facts = {
        "metric": metric,
        "interval": "95 %, Wilson, of k of n seeds",
        "unfinished": unfinished.to_dicts(),
    }
    print_tables(format, shown, rows, [*notes, *unfinished_notes(runs)], facts)
