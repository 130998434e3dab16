"""The files that ``pe-lab leaderboard to=`` writes: runs, the page, and pictures."""

import re
from pathlib import Path

import polars as pl

from pe_lab.core.console import console
from pe_lab.core.errors import RunError, writing
from pe_lab.core.files import replace_file
from pe_lab.core.output import counted
from pe_lab.results.leaderboard import file
from pe_lab.results.leaderboard.scores import Scores
from pe_lab.results.presentation.verdicts import Verdicts


def write_runs(path: Path, rows: pl.DataFrame, notes: list[str]) -> None:
    file.check_kept(path, rows)
    _say_written(path, rows, f"{{}}, SHA-256 {file.write(rows, path)}..")
    for note in notes:
        console().print(note, soft_wrap=True)


def write_page(
    path: Path, found: Scores, why: Verdicts, tasks: list[str], notes: list[str], command: str
) -> None:
    # Imported here: the charts take a second.
    from pe_lab.report.leaderboard import leaderboard_page

    _write(path, leaderboard_page(found, tasks, why, notes, command).encode())
    _say_written(path, found.rows, "{}; open it in a browser")


def write_picture(path: Path, found: Scores, tasks: list[str], shown: set[str] | None) -> None:
    """Draw the heat map of these entries (None: of all)."""
    from pe_lab.report.html import drawn
    from pe_lab.report.leaderboard import heat_map

    rows = found.rows.filter(pl.col("counts") & pl.col("task").is_in(tasks))
    rows = rows if shown is None else rows.filter(pl.col("entry").is_in(shown))
    if rows.is_empty():
        raise RunError(f"no run of {', '.join(tasks)} is scored: there is nothing to draw")
    content = drawn(heat_map(found, tasks, shown=shown), path.suffix.strip("."))
    _write(path, content)
    what = "the heat map of {}"
    if size := re.search(rb"MediaBox ?\[0 0 ([\d.]+) ([\d.]+)", content):
        what += ", {:.1f} x {:.1f} inches".format(*(float(side) / 72 for side in size.groups()))
    _say_written(path, rows, what)


def _write(path: Path, content: bytes) -> None:
    with writing(path, "another to="):
        replace_file(path, content)


def _say_written(path: Path, rows: pl.DataFrame, what: str) -> None:
    size, runs = path.stat().st_size / 1e6, counted(rows["run_id"].n_unique(), "run")
    console().print(f"{path}: {size:.2f} MB, {what.format(runs)}", soft_wrap=True)
