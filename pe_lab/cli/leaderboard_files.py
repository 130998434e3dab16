"""The files that ``pe-lab leaderboard to=FILE`` writes: the page, its heat map and the runs."""

import os
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from pe_lab.common.console import console
from pe_lab.common.errors import RunError, UsageError, cannot_write
from pe_lab.common.files import replace_file
from pe_lab.common.output import counted
from pe_lab.results.leaderboard import file
from pe_lab.results.leaderboard.scores import Scores

PARQUET = ".parquet"
PICTURES = (".svg", ".png", ".pdf")
MARK = '<meta name="generator" content="pe-lab leaderboard">'


def check_file(path: Path) -> None:
    """UsageError if ``to`` is no such kind of file, or would overwrite what is not ours."""
    if path.suffix not in (PARQUET, ".html", *PICTURES):
        raise UsageError(
            f"to={path}: give FILE.html for the page, FILE.svg, .png or .pdf for its heat map, "
            "FILE.parquet for the runs"
        )
    try:
        _check_place(path)
    except OSError as error:
        raise UsageError(f"to={path}: {error.strerror}, choose another name") from None


def _check_place(path: Path) -> None:
    if not path.parent.is_dir():
        raise UsageError(f"to={path}: there is no folder {path.parent}, make it first")
    if path.suffix in PICTURES and os.path.lexists(path):
        raise UsageError(f"to={path} is there and is left as it is: choose another name")
    if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
        raise UsageError(f"to={path} is no plain file and is left as it is: choose another name")
    head = path.read_bytes()[:1000] if path.is_file() else b""
    ours = head.startswith(b"PAR1") if path.suffix == PARQUET else MARK.encode() in head
    if head and not ours:
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

    text = leaderboard_page(found, tasks, notes, command)
    _write(path, text.encode())
    _say_written(path, f"{_runs(found.rows)}; open it in a browser")


def write_picture(path: Path, found: Scores, tasks: list[str]) -> None:
    """Draw the heat map.

    Raises:
        RunError: there is nothing to draw, or it cannot be written.
    """
    from pe_lab.common.html import drawn
    from pe_lab.report.leaderboard import leaderboard_grid
    from pe_lab.report.tables import picture

    grid = leaderboard_grid(found, tasks)
    if not grid.columns:
        raise RunError(f"no run of {', '.join(tasks)} is scored: there is nothing to draw")
    _write(path, drawn(picture(grid), path.suffix.strip(".")))
    rows = found.rows.filter(pl.col("counts") & pl.col("task").is_in(tasks))
    _say_written(path, f"the heat map of {_runs(rows)}")


def _write(path: Path, content: bytes) -> None:
    try:
        replace_file(path, content)
    except OSError as error:
        raise cannot_write(path, error, "another to=") from None


def _runs(rows: pl.DataFrame) -> str:
    return counted(rows["run_id"].n_unique(), "run")


def _say_written(path: Path, what: str) -> None:
    console().print(f"{path}: {path.stat().st_size / 1e6:.2f} MB, {what}", soft_wrap=True)
