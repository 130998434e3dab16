"""A table of runs in a parquet file: for a paper or a repository, without the run folders."""

import io
from importlib.resources import files
from pathlib import Path

import polars as pl

from pe_lab.common.errors import UsageError, cannot_write
from pe_lab.common.files import write_new_file
from pe_lab.core.metrics import PREFIXES
from pe_lab.results.frame import FACTS, config_keys
from pe_lab.results.tuning_runs import COLUMN as TUNING_OF

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
    try:
        write_new_file(path, content.getvalue())
    except FileExistsError:
        raise UsageError(f"to={path} exists and is left as it is: choose another name") from None
    except OSError as error:
        raise cannot_write(path, error, "another to=") from None


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
