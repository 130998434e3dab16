"""findings.parquet in pe_lab/results: the runs of the tables of docs/findings.md, a row each.

The columns are those of ``pe_lab.results.frame.read_runs``, without keys that do not change a run's
numbers, and ``date``, ``revision``, ``torch``, ``machine``, ``processor``, ``python``. Read it with

    pe-lab results file=findings task=flipflop
"""

import io
import re
from collections.abc import Callable, Iterable
from datetime import date
from pathlib import Path

import polars as pl

from docs import facts
from pe_lab.common.files import replace_file
from pe_lab.results.frame import FACTS, GROUPS, read_runs
from pe_lab.results.leaderboard.rows import environment_of
from pe_lab.results.selection import read_file_of_runs
from pe_lab.store.run_folder import RunFolder
from pe_lab.store.run_id import ROUNDING, excluded

FILE = facts.ROOT / "pe_lab" / "results" / "findings.parquet"
ADDED = ("date", "revision", "torch", "machine", "processor", "python")


def kept(file: Path = FILE) -> pl.DataFrame:
    """The runs of the file; none where there is no file."""
    return read_file_of_runs(file) if file.exists() else pl.DataFrame(schema=FACTS)


def keep(folder: Path, shown: Callable[[pl.DataFrame], Iterable[str]], file: Path = FILE) -> None:
    """Add the finished runs of the folder that a section shows. A run of the file that was made
    again is replaced; all others stay, with the machine that was noted when they were added.

    Args:
        shown: the paths of those of some runs that are in a table.
    """
    found = read_runs(folder, where="state=finished")
    here = _described(found.filter(pl.col("path").is_in(list(shown(found)))), folder)
    there = kept(file)
    # Times and errors of a run made again differ. The last digit of a mean over splits, ood/error,
    # depends on their order.
    measured = [
        name
        for name in here.columns
        if "/" in name and name in there.columns and not re.fullmatch("ood/[^/]*", name)
    ]
    numbers = [pl.col("path"), pl.col(measured).cast(pl.Float64)]
    again = here.select(numbers).join(
        there.select(numbers), on=["path", *measured], how="anti", nulls_equal=True
    )
    here = here.join(again, on="path", how="semi")
    stays = there.join(here, on="path", how="anti")
    # A column without any value has no type of its own.
    parts = [
        part.with_columns(pl.lit(None).alias(c.name) for c in part if c.null_count() == len(c))
        for part in (stays, here)
    ]
    both = pl.concat([pl.DataFrame(schema=FACTS), *parts], how="diagonal_relaxed").sort("path")
    # Errors that none of these runs has are those of other runs in the folder.
    both = both.drop(c.name for c in both if c.dtype == pl.Null and "/" in c.name)
    both = both.with_columns(pl.col(pl.Null).cast(pl.String))
    added = [name for name in both.columns if name not in FACTS]
    content = io.BytesIO()
    both.select(*FACTS, *sorted(added)).write_parquet(
        content, compression="zstd", compression_level=19, statistics=False
    )
    replace_file(file, content.getvalue())


def finished_in(folder: Path) -> list[str]:
    """The paths of the finished runs of a folder, below it."""
    if not folder.is_dir():
        return []
    paths = map(Path, read_runs(folder, where="state=finished")["path"])
    return [path.relative_to(folder).as_posix() for path in paths]


def _described(runs: pl.DataFrame, folder: Path) -> pl.DataFrame:
    """Where and when each was made, and of its path what is below the folder."""
    dropped = {name for name in runs.columns if excluded(name) and name not in (*GROUPS, *ROUNDING)}
    rows = []
    for path in map(Path, runs["path"]):
        day = date.fromtimestamp(RunFolder(path).status()["time"]).isoformat()
        rows.append((day, *environment_of(path)))
    made = pl.DataFrame(rows, dict.fromkeys(ADDED, pl.String), orient="row")
    paths = [Path(path).relative_to(folder).as_posix() for path in runs["path"]]
    return (
        runs.drop(dropped).with_columns(made).with_columns(path=pl.Series(paths, dtype=pl.String))
    )
