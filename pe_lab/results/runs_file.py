"""A table of runs in a parquet file: for a paper or a repository, without the run folders."""

from pathlib import Path

import polars as pl

from pe_lab.common.errors import UsageError
from pe_lab.core.metrics import PREFIXES
from pe_lab.results.frame import FACTS, config_keys
from pe_lab.results.tuning_runs import COLUMN as TUNING_OF


def read_file_of_runs(file: str | Path) -> pl.DataFrame:
    """The runs of a parquet file: what ``read_runs(folder).write_parquet(file)`` has written, whose
    run folders need not be there any more. In a file from before ``tuning_of`` was written, that is
    null in every row.

    Raises:
        UsageError: there is no such file, or it is of something else.
    """
    if not Path(file).is_file():
        raise UsageError(
            f"file={file} is not a file: give one that read_runs(folder).write_parquet(file) of "
            "pe_lab.results.frame has written"
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
            f"file={file} is no table of runs ({why}): read_runs(folder).write_parquet(file) of "
            "pe_lab.results.frame writes one"
        )
    return frame


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
