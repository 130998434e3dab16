"""The runs that a command's filters select, from a folder or from a parquet file of runs."""

from pathlib import Path

import polars as pl

from pe_lab.core.errors import UsageError
from pe_lab.core.options import Options
from pe_lab.core.suggest import did_you_mean
from pe_lab.results.query import column_of
from pe_lab.results.table import filtered, read_file_of_runs, read_runs


class RunOptions(Options, extra="allow"):
    """Options of a command over runs; its other keys are filters, columns of the runs' table."""

    runs_dir: str = "runs"
    where: str | None = None

    @property
    def filters(self) -> list[str]:
        """The words that select among the runs of ``runs_dir``."""
        where = [] if self.where is None else [f"where={self.where}"]
        return [*(f"{key}={value}" for key, value in self.others.items()), *where]

    def values(self, key: str) -> list[str]:
        """The values that a filter selects, separated by commas; empty without that filter."""
        value = self.others.get(key)
        return [] if value is None else [entry.strip() for entry in value.split(",")]


class FileOptions(RunOptions):
    """Options of a command that needs no more than the table of the runs, which may be a file in
    place of ``runs_dir``."""

    file: Path | None = None


def selected(options: RunOptions) -> pl.DataFrame:
    """Return the runs that the options select (see ``read_runs``), of a folder or a file.

    Raises:
        UsageError: a filter that no run can have, or that cannot be read.
    """
    file = options.file if isinstance(options, FileOptions) else None
    runs = read_runs(options.runs_dir) if file is None else read_file_of_runs(file)
    for key, value in options.others.items():
        if len(runs) and column_of(key, runs.columns) is None:
            meant = did_you_mean(key, {*type(options).model_fields, *runs.columns})
            raise UsageError(f"{options.command} {key}={value}: {meant}")
    return filtered(runs, options.where, options.others)


def unfinished_notes(runs: pl.DataFrame) -> list[str]:
    """Return a line for each run that is not finished: tables never drop one silently."""
    notes = []
    for run in runs.filter(pl.col("state") != "finished").iter_rows(named=True):
        at = "" if run["step"] is None else f" at step {run['step']} of {run['steps']}"
        message = f": {run['message']}" if run["message"] else ""
        line = f"{run['path']}  {run['state']}{at}{message}"
        notes.append(run["message"] if run["state"] == "broken" else line)
    return notes
