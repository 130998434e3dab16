"""The runs that a command's filters select."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Self

import polars as pl
from pydantic import model_validator

from pe_lab.common.errors import UsageError
from pe_lab.common.options import Options
from pe_lab.common.suggest import did_you_mean
from pe_lab.core.metrics import PREFIXES
from pe_lab.results.frame import FACTS, GROUPS, filtered, read_runs
from pe_lab.results.keys import column_of
from pe_lab.results.runs_file import read_file_of_runs
from pe_lab.store.run_id import EXCLUDED


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
        """What a filter selects, separated by commas; empty without that filter."""
        value = self.others.get(key)
        return [] if value is None else [entry.strip() for entry in value.split(",")]


class FileOptions(RunOptions):
    """Options of a command that needs of the runs no more than their table, which may be a file."""

    hints: ClassVar[Mapping[str, str]] = {
        "to": "it prints its tables: leave to out, and give format=csv > {value}"
    }

    file: Path | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.file is not None and "runs_dir" in self.model_fields_set:
            raise ValueError(
                f"{self.command} file={self.file} runs_dir={self.runs_dir}: give one of the two"
            )
        return self


def selected(options: RunOptions, config_dir: str | None = None) -> pl.DataFrame:
    """The runs that the options select (see ``read_runs``), of a folder or a file.

    Args:
        config_dir: of ``--config-dir``; a file says itself which suites are known.

    Raises:
        UsageError: a filter that no run can have, or that cannot be read.
    """
    file = options.file if isinstance(options, FileOptions) else None
    if file is None:
        runs = read_runs(options.runs_dir, config_dir=config_dir)
    else:
        runs = read_file_of_runs(file)
    return among(runs, options)


def among(runs: pl.DataFrame, options: RunOptions) -> pl.DataFrame:
    """Those of these runs that the filters of the options select.

    Raises:
        UsageError: as ``selected``.
    """
    for key, value in options.others.items():
        if column_of(key, runs.columns) is None:
            _check_root(options, f"{key}={value}", key)
    return filtered(runs, options.where, options.others)


def _check_root(options: RunOptions, word: str, key: str) -> None:
    """UsageError for a key of no group at all."""
    roots = {*FACTS, *GROUPS, *(m[:-1] for m in PREFIXES), *type(options).model_fields}
    roots |= {key.partition(".")[0] for key in EXCLUDED}
    roots -= {"", "names", "null_keys", "debug"}
    if re.split("[./]", key)[0] not in roots:
        raise UsageError(f"{options.command} {word}: {did_you_mean(key, roots)}")
