"""The files that ``pe-lab leaderboard to=FILE`` writes: the page and the runs."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from pe_lab.common.console import console
from pe_lab.common.errors import UsageError, cannot_write
from pe_lab.common.files import replace_file
from pe_lab.common.output import counted
from pe_lab.results.leaderboard import file
from pe_lab.results.leaderboard.scores import Scores

PARQUET = ".parquet"
MARK = '<meta name="generator" content="pe-lab leaderboard">'


def check_file(path: Path) -> None:
    """UsageError if ``to`` is neither kind of file, or would overwrite what is not ours."""
    if path.suffix not in (PARQUET, ".html"):
        raise UsageError(f"to={path}: give FILE.html for the page, FILE.parquet for the runs")
    if not path.parent.is_dir():
        raise UsageError(f"to={path}: there is no folder {path.parent}, make it first")
    head = path.read_bytes()[:1000] if path.is_file() else b""
    ours = head.startswith(b"PAR1") if path.suffix == PARQUET else MARK.encode() in head
    if path.is_dir() or (head and not ours):
        raise UsageError(
            f"to={path} was not written by pe-lab leaderboard and is left as it is: choose another "
            "name"
        )


def write_runs(
    path: Path, shipped: pl.DataFrame, others: pl.DataFrame, notes: Sequence[str]
) -> None:
    """Write all runs to a file; the notes are printed.

    Raises:
        UsageError: runs that are in it would be lost.
        RunError: it cannot be written.
    """
    rows = file.merged(shipped, others)
    file.check_kept(path, rows)
    digest = file.write(rows, path)
    _say_written(path, f"{_runs(rows)}, SHA-256 {digest}..")
    for note in notes:
        console().print(note, soft_wrap=True)


def write_page(path: Path, found: Scores, tasks: list[str], notes: list[str], command: str) -> None:
    """Write the page.

    Raises:
        RunError: it cannot be written.
    """
    # Imported here: scipy and the charts take a second.
    from pe_lab.report.leaderboard import leaderboard_page

    text = leaderboard_page(found, tasks, notes, MARK, command)
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise cannot_write(path, error) from None
    _say_written(path, f"{_runs(found.rows)}; open it in a browser")


def _runs(rows: pl.DataFrame) -> str:
    return counted(rows["run_id"].n_unique(), "run")


def _say_written(path: Path, what: str) -> None:
    console().print(f"{path}: {path.stat().st_size / 1e6:.2f} MB, {what}", soft_wrap=True)
