"""The runs that a command's filters select, from a folder or from a parquet file of runs."""

import io
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import ClassVar, Self

import polars as pl
from pydantic import model_validator

from pe_lab.core.errors import UsageError, writing
from pe_lab.core.files import write_new_file
from pe_lab.core.metrics import PREFIXES
from pe_lab.core.options import Options
from pe_lab.core.suggest import did_you_mean
from pe_lab.results.frame import FACTS, GROUPS, config_keys, filtered, read_runs
from pe_lab.results.leaderboard.entries import TUNING_OF
from pe_lab.results.query import column_of
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


FINDINGS = "findings"
"""The name of the runs of docs/findings.md, a file that ships with the package."""


def shipped_findings() -> Path:
    """The file of the runs of docs/findings.md."""
    return Path(str(files("pe_lab.results").joinpath(f"{FINDINGS}.parquet")))


def read_file_of_runs(file: str | Path) -> pl.DataFrame:
    """The runs of a parquet file, as ``pe-lab results to=FILE.parquet`` writes it; their folders
    need not exist any more. The name ``findings`` is the file that ships with the package.

    In a file from before ``tuning_of`` was written, that is null in every row.

    Raises:
        UsageError: there is no such file, or it is of something else.
    """
    if str(file) == FINDINGS:
        file = shipped_findings()
    if not Path(file).is_file():
        raise UsageError(
            f"file={file} is not a file: give one that pe-lab results to=FILE.parquet has written, "
            f"or {FINDINGS} for the runs that ship with pe-lab"
        )
    try:
        frame = pl.read_parquet(file, glob=False)
    except OSError as error:
        raise UsageError(f"file={file} cannot be read: {error}") from None
    except pl.exceptions.PolarsError:
        frame = pl.DataFrame()
    if TUNING_OF not in frame.columns:
        frame = frame.with_columns(pl.lit(None, FACTS[TUNING_OF]).alias(TUNING_OF))
    if why := _no_table_of_runs(frame):
        raise UsageError(
            f"file={file} is no table of runs ({why}): pe-lab results to=FILE.parquet writes one"
        )
    return frame


def write_file_of_runs(runs: pl.DataFrame, path: Path) -> None:
    """Write a new file that ``read_file_of_runs`` reads.

    Raises:
        UsageError: the file exists.
        RunError: it cannot be written.
    """
    content = io.BytesIO()
    runs.write_parquet(content)
    if path.exists():
        raise UsageError(f"to={path} exists and is left as it is: choose another name")
    with writing(path, "another to="):
        write_new_file(path, content.getvalue())


def _no_table_of_runs(frame: pl.DataFrame) -> str:
    """What a frame lacks that ``read_runs`` gives; empty if nothing."""
    for name, kind in FACTS.items():
        if frame.schema.get(name) != kind:
            return f"its column {name} is {frame.schema.get(name) or 'missing'}, not {kind}"
    for name, kind in frame.schema.items():
        if name.startswith(PREFIXES) and not (kind.is_numeric() or kind == pl.Null):
            return f"its column {name} is {kind}, not numbers"
    finished = frame.filter(pl.col("state") == "finished")
    known = ("path", "task", "pe", "seed", "setting", "splits")
    if any(finished[name].null_count() for name in known):
        return f"a finished run lacks one of {', '.join(known)}"
    if len(finished) and not config_keys(frame):
        return "it has no key of a configuration"
    if not frame["path"].is_unique().all():
        return "a path is there twice"
    return ""
