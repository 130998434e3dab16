"""``pe-lab verify``: whether the files of runs are as they were written.

    pe-lab verify                                all of runs/
    pe-lab verify run=FOLDER                     a folder, several by commas, or a part of a name
    pe-lab verify task=flipflop where=".."       filters as in pe-lab results
    pe-lab verify format=csv                     table, csv, json, markdown or latex
    pe-lab verify runs_dir=elsewhere             the folder of the runs, else runs

Checkpoint, summary, metrics and evaluations are compared with their digests, and every file with
its schema. The exit status is 1 if anything is wrong. Nothing is changed.
"""

from collections.abc import Sequence
from pathlib import Path

import polars as pl
from rich.table import Table as RichTable
from rich.text import Text

from pe_lab.cli.run_argument import matching_runs
from pe_lab.common.console import console
from pe_lab.common.errors import RunError, UsageError
from pe_lab.common.options import parse
from pe_lab.results.columns import frame_of
from pe_lab.results.formats import Cell, Table
from pe_lab.results.frame import FACTS, runs_of
from pe_lab.results.labels import labels
from pe_lab.results.output import Format, print_tables
from pe_lab.results.selection import RunOptions, selected
from pe_lab.store.run_folder import is_run

COLUMNS = ("run", "setting", "what is wrong")


class VerifyOptions(RunOptions):
    """The keys of ``pe-lab verify``."""

    command = "verify"

    run: str | None = None
    format: Format = "table"


def show(words: Sequence[str]) -> None:
    """Print what is wrong.

    Raises:
        UsageError: a wrong option or filter, or no such run.
        RunError: a run is damaged.
    """
    options = parse(VerifyOptions, words)
    if options.run is None:
        runs = selected(options)
    else:
        paths = matching_runs(options.run, Path(options.runs_dir))
        if no_runs := [str(path) for path in paths if not is_run(path)]:
            raise UsageError(f"run={options.run}: there is no run in {', '.join(no_runs)}")
        runs = runs_of(paths)
    # Imported here: torch takes a second.
    from pe_lab.evaluation.verify import problems

    names = labels(runs) if len(runs) else {}
    found = [
        {
            **{key: run[key] for key in ("path", "task", "pe", "seed")},
            "setting": " ".join([run["pe"], names.get(run["setting"] or "", "")]).strip(),
            "problem": problem,
        }
        for run in runs.iter_rows(named=True)
        for problem in problems(Path(run["path"]))
    ]
    title = f"{len({row['path'] for row in found})} of {len(runs)} runs: damaged, or not verifiable"
    lines = [(Path(row["path"]).name, row["setting"], row["problem"]) for row in found]
    if options.format == "table" and found:
        table = RichTable(*COLUMNS, show_lines=True)
        for line in lines:
            table.add_row(*map(Text, line))
        console().print(table)
    else:
        cells = [[Cell(word) for word in line] for line in lines]
        tables = [Table(title, COLUMNS, len(COLUMNS), cells)] if found else []
        notes = [] if found else [f"{len(runs)} runs, nothing is wrong"]
        print_tables(options.format, tables, pl.DataFrame(found), frame_of([], FACTS), notes, {})
    if found:
        raise RunError(title)
