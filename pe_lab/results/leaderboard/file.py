"""The file in which runs of a suite are shipped: parquet, beside it its SHA-256."""

import io
import logging
import os
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import polars as pl

from pe_lab.core.errors import DamagedError, UsageError, writing
from pe_lab.core.files import replace_file
from pe_lab.core.output import counted
from pe_lab.results.leaderboard.rows import ORDER, SCHEMA
from pe_lab.results.leaderboard.scores import first_results, ranked
from pe_lab.results.suite import Suite
from pe_lab.store.files import digest_of

logger = logging.getLogger("pe_lab")

SUFFIX = ".sha256"
PARQUET = ".parquet"
PICTURES = (".svg", ".png", ".pdf")
MARK = '<meta name="generator" content="pe-lab leaderboard">'
LATER = ("started", "processor", "python")
"""Columns that files written before do not have: null there."""
COMMAND = "pe-lab leaderboard to=FILE.parquet"
Kind = pl.DataType | type[pl.DataType]
LEVEL = 19
"""Of zstd: written once, read often."""


def shipped(name: str) -> Path:
    """Where the package has the runs of the suite; there may be no such file."""
    return Path(str(files("pe_lab.results.leaderboard").joinpath(f"{name}.parquet")))


def shipped_again(suite: Suite) -> pl.DataFrame:
    """Shipped runs of the suite that were made again (``phases=again``)."""
    return shipped_rows(suite, f"{suite.name}.again")[0]


def shipped_rows(suite: Suite, name: str | None = None) -> tuple[pl.DataFrame, str | None]:
    """The shipped runs of the suite, and the digest of the file; no rows and None where there is no
    file. Runs of another version of the suite, one with another digest, are left out with a
    warning.

    Args:
        name: of the file; None: that of the suite.
    """
    path = shipped(name or suite.name)
    if not path.exists():
        return pl.DataFrame(schema=SCHEMA), None
    rows, digest = read(path)
    others = rows.filter(pl.col("suite") != suite.version)
    if len(others):
        logger.warning(
            "%s: %s of %s left out, as the suite is now %s; pe-lab leaderboard to=%s writes the "
            "file again from run folders",
            path.name,
            counted(others["run_id"].n_unique(), "run"),
            ", ".join(sorted(others["suite"].unique())),
            suite.version,
            path.name,
        )
    return rows.filter(pl.col("suite") == suite.version), digest


def read(path: Path) -> tuple[pl.DataFrame, str]:
    """The rows of a file, and the first eight hex digits of its SHA-256.

    Raises:
        UsageError: there is no such file.
        DamagedError: it is not as it was written.
    """
    frame, digest = read_frame(path, COMMAND)
    absent = [name for name in LATER if name not in frame.columns]
    frame = frame.with_columns(pl.lit(None, SCHEMA[name]).alias(name) for name in absent)
    return checked_columns(frame, SCHEMA, path, COMMAND), digest


def read_frame(path: Path, command: str) -> tuple[pl.DataFrame, str]:
    """The table in a file, and the first eight hex digits of its SHA-256, which lies beside it.

    Args:
        command: what writes such a file.

    Raises:
        UsageError: there is no such file.
        DamagedError: it is not as it was written.
    """
    beside = path.with_name(path.name + SUFFIX)
    try:
        content, recorded = path.read_bytes(), beside.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{error.filename or path} cannot be read ({error.strerror}): {command} writes the "
            "file and its digest"
        ) from None
    digest = digest_of(content)
    if recorded.decode("ascii", "replace").partition(" ")[0] != digest:
        raise DamagedError(
            f"{path} does not fit its digest in {beside.name}: it was damaged or edited after it "
            f"was written; put back a copy, or write it again from run folders with {command}"
        )
    return pl.read_parquet(io.BytesIO(content)), digest[:8]


def checked_columns(
    frame: pl.DataFrame, schema: Mapping[str, Kind], path: Path, command: str
) -> pl.DataFrame:
    """The table with its columns in the order of ``schema``; DamagedError if it has others."""
    if dict(frame.schema) != schema:
        wrong = next(n for n in {**schema, **frame.schema} if frame.schema.get(n) != schema.get(n))
        raise DamagedError(
            f"{path} has another column {wrong} than this version writes: write it again from run "
            f"folders with {command}"
        )
    return frame.select(*schema)


def merged(shipped: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    """The shipped rows and those of other runs, each run once as in tables (``once``), with the
    earliest recorded start of all its results and the plan of that: a run shipped before starts
    were recorded gets that of its folder."""
    rows = first_results(ranked(shipped, others))
    starts = (
        pl.concat([shipped, others])
        .drop_nulls("started")
        .sort("started", pl.col("planned").is_null(), maintain_order=True)
        .unique("run_id", keep="first", maintain_order=True)
        .select("run_id", "started", "planned")
    )
    joined = rows.drop("started", "planned").join(starts, on="run_id", how="left")
    return joined.select(*SCHEMA).sort(ORDER)


def check_file(path: Path) -> None:
    """UsageError if ``to`` is no such kind of file, or would overwrite what is not ours."""
    if path.suffix not in (PARQUET, ".html", *PICTURES):
        raise UsageError(
            f"to={path}: give FILE.html for the page, FILE.svg, .png or .pdf for its heat map, "
            "FILE.parquet for the runs"
        )
    try:
        folder, there = path.parent.is_dir(), os.path.lexists(path)
        plain = path.is_file() and not path.is_symlink()
        head = path.read_bytes()[:1000] if plain else b""
    except OSError as error:
        raise UsageError(f"to={path}: {error.strerror}, choose another name") from None
    ours = head.startswith(b"PAR1") if path.suffix == PARQUET else MARK.encode() in head
    if not folder:
        raise UsageError(f"to={path}: there is no folder {path.parent}, make it first")
    if there and path.suffix in PICTURES:
        raise UsageError(f"to={path} is there and is left as it is: choose another name")
    if there and not plain:
        raise UsageError(f"to={path} is no plain file and is left as it is: choose another name")
    if head and not ours:
        raise UsageError(
            f"to={path} was not written by pe-lab leaderboard and is left as it is: choose another "
            "name"
        )


def check_kept(path: Path, rows: pl.DataFrame) -> None:
    """UsageError if writing these rows there would lose runs or what they measured, or a file that
    is not of ours. A failed run may be replaced by one that finished."""
    beside = path.with_name(path.name + SUFFIX)
    ours = rb"[0-9a-f]{64}  " + re.escape(path.name.encode()) + rb"\n?"
    if beside.exists() and not re.fullmatch(ours, beside.read_bytes()):
        raise UsageError(
            f"to={path}: {beside.name} beside it is not the digest of a file of runs and is left "
            "as it is: choose another name, or move it first"
        )
    if not path.exists():
        return
    try:
        there = pl.read_parquet(path)
        lost = there.join(rows, on="run_id", how="anti")["run_id"].n_unique()
        finished = there.filter(pl.col("state") == "finished")
        finished = finished.join(rows, on="run_id", how="semi")
        measured = ["run_id", "split", "error", "loss"]
        other = finished.join(rows, on=measured, how="anti", nulls_equal=True)
        changed = other["run_id"].n_unique()
        parts = [f"{counted(lost, 'run')} that these are without"] if lost else []
        parts += [f"{counted(changed, 'run')} with other results"] if changed else []
        what = " and ".join(parts)
    except pl.exceptions.PolarsError:
        what = "something else than runs of a suite"
    if what:
        raise UsageError(
            f"to={path} has {what}, and is left as it is: choose another name, or move it first"
        )


def write(rows: pl.DataFrame, path: Path) -> str:
    """Write these rows; returns the first eight hex digits of the file's SHA-256.

    Raises:
        RunError: it cannot be written.
    """
    return write_frame(rows.select(*SCHEMA).sort(ORDER), path, "to=")


def write_frame(frame: pl.DataFrame, path: Path, key: str) -> str:
    """Write a table and its SHA-256 beside it, the same table always as the same bytes (of one
    version of polars); returns the first eight hex digits.

    Args:
        key: of the command line that names the file.

    Raises:
        RunError: it cannot be written.
    """
    content = io.BytesIO()
    frame.write_parquet(content, compression="zstd", compression_level=LEVEL, statistics=False)
    digest = digest_of(content.getvalue())
    with writing(path, f"another {key}"):
        replace_file(path, content.getvalue())
        line = f"{digest}  {path.name}\n"
        replace_file(path.with_name(path.name + SUFFIX), line.encode())
    return digest[:8]
