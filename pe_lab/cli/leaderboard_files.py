"""The files that ``pe-lab leaderboard to=FILE`` writes: the page, its heat map and the runs."""

import os
from pathlib import Path

import polars as pl

from pe_lab.common.console import console
from pe_lab.common.errors import RunError, UsageError, writing
from pe_lab.common.files import replace_file
from pe_lab.common.output import counted
from pe_lab.results.leaderboard import file
from pe_lab.results.leaderboard.rows import Found
from pe_lab.results.leaderboard.scores import Scores, scores
from pe_lab.results.presentation.leaderboard_details import (
    broken_notes,
    lacking_note,
    provenance,
)
from pe_lab.results.suite import Suite

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


def write(
    path: Path,
    suite: Suite,
    shipped: pl.DataFrame,
    here: Found,
    tasks: list[str],
    digest: str | None,
    command: str,
) -> None:
    """Write the runs, the heat map or the page, by the suffix.

    Raises:
        UsageError: runs that are in the file would be lost.
        RunError: there is nothing to draw, or it cannot be written.
    """
    known = {*shipped["run_id"], *here.rows["run_id"]}
    lacking = [of for run, of in here.lacking.items() if of.task in tasks and run not in known]
    notes = [*([lacking_note(lacking, suite)] if lacking else []), *broken_notes(here.broken)]
    notes += here.versions
    if path.suffix == PARQUET:
        rows = file.merged(shipped, here.rows)
        file.check_kept(path, rows)
        beside = file.write(rows, path)
        _say_written(path, f"{_runs(rows)}, SHA-256 {beside}..")
        for note in notes:
            console().print(note, soft_wrap=True)
        return
    found = scores(suite, shipped, here.rows)
    if path.suffix in PICTURES:
        _write_picture(path, found, tasks)
        return
    # Imported here: scipy and the charts take a second.
    from pe_lab.report.leaderboard import leaderboard_page

    notes += provenance(found, tasks, digest)
    _write(path, leaderboard_page(found, tasks, notes, command).encode())
    _say_written(path, f"{_runs(found.rows)}; open it in a browser")


def _write_picture(path: Path, found: Scores, tasks: list[str]) -> None:
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
    with writing(path, "another to="):
        replace_file(path, content)


def _runs(rows: pl.DataFrame) -> str:
    return counted(rows["run_id"].n_unique(), "run")


def _say_written(path: Path, what: str) -> None:
    console().print(f"{path}: {path.stat().st_size / 1e6:.2f} MB, {what}", soft_wrap=True)
