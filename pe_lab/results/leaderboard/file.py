"""The file in which runs of a suite are shipped: parquet, beside it its SHA-256."""

import io
import logging
import re
from importlib.resources import files
from pathlib import Path

import polars as pl

from pe_lab.common.errors import DamagedError, UsageError, writing
from pe_lab.common.files import read_file, replace_file
from pe_lab.common.output import counted
from pe_lab.results.leaderboard.rows import ORDER, SCHEMA
from pe_lab.results.leaderboard.scores import first_results, ranked
from pe_lab.results.suite import Suite
from pe_lab.store.schema import digest_of

logger = logging.getLogger("pe_lab")

SUFFIX = ".sha256"
LATER = ("started", "processor", "python")
"""Columns that files written before do not have: null there."""
LEVEL = 19
"""Of zstd: written once, read often."""


def shipped(name: str) -> Path:
    """Where the package has the runs of the suite; there may be no such file."""
    return Path(str(files("pe_lab.results.leaderboard").joinpath(f"{name}.parquet")))


def shipped_claims(name: str) -> Path:
    """Where the package has the preregistered claims about the suite."""
    return Path(str(files("pe_lab.results.leaderboard").joinpath(f"{name}.claims.yaml")))


def shipped_rows(suite: Suite) -> tuple[pl.DataFrame, str | None]:
    """The shipped runs of the suite, and the digest of the file; no rows and None where there is no
    file. Runs of another version of the suite, one with another digest, are left out with a
    warning."""
    path = shipped(suite.name)
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
    beside = path.with_name(path.name + SUFFIX)
    try:
        content, recorded = read_file(path), read_file(beside)
    except OSError as error:
        raise UsageError(
            f"{error.filename or path} cannot be read ({error.strerror}): pe-lab leaderboard "
            "to=FILE.parquet writes the file and its digest"
        ) from None
    digest = digest_of(content)
    if recorded.decode("ascii", "replace").partition(" ")[0] != digest:
        raise DamagedError(
            f"{path} does not fit its digest in {beside.name}: it was damaged or edited after it "
            "was written; put back a copy, or write it again from run folders with pe-lab "
            "leaderboard to=FILE.parquet"
        )
    frame = pl.read_parquet(io.BytesIO(content))
    absent = [name for name in LATER if name not in frame.columns]
    frame = frame.with_columns(pl.lit(None, SCHEMA[name]).alias(name) for name in absent)
    if dict(frame.schema) != SCHEMA:
        wrong = next(n for n in {**SCHEMA, **frame.schema} if frame.schema.get(n) != SCHEMA.get(n))
        raise DamagedError(
            f"{path} has another column {wrong} than this version writes: write it again from run "
            "folders with pe-lab leaderboard to=FILE.parquet"
        )
    return frame.select(*SCHEMA), digest[:8]


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
    """Write these rows, the same rows always as the same bytes (of one version of polars); returns
    the first eight hex digits of the file's SHA-256.

    Raises:
        RunError: it cannot be written.
    """
    content = io.BytesIO()
    rows.select(*SCHEMA).sort(ORDER).write_parquet(
        content, compression="zstd", compression_level=LEVEL, statistics=False
    )
    digest = digest_of(content.getvalue())
    with writing(path, "another to="):
        replace_file(path, content.getvalue())
        line = f"{digest}  {path.name}\n"
        replace_file(path.with_name(path.name + SUFFIX), line.encode())
    return digest[:8]
