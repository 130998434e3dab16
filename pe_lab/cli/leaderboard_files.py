"""The files that ``pe-lab leaderboard to=FILE`` writes: the page, its heat map and the runs."""

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
PICTURES = (".svg", ".png", ".pdf")
MARK = '<meta name="generator" content="pe-lab leaderboard">'


def check_file(path: Path) -> None:
    """UsageError if ``to`` is no such kind of file, or would overwrite what is not ours."""
    if path.suffix not in (PARQUET, ".html", *PICTURES):
        raise UsageError(
            f"to={path}: give FILE.html for the page, FILE.svg, .png or .pdf for its heat map, "
            "FILE.parquet for the runs"
        )
    if not path.parent.is_dir():
        raise UsageError(f"to={path}: there is no folder {path.parent}, make it first")
    if path.suffix in PICTURES and path.exists():
        raise UsageError(f"to={path} is there and is left as it is: choose another name")
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
    _write(path, text.encode())
    _say_written(path, f"{_runs(found.rows)}; open it in a browser")


def write_picture(path: Path, found: Scores, tasks: list[str]) -> None:
    """Draw the heat map.

    Raises:
        RunError: it cannot be written.
    """
    from pe_lab.report.leaderboard_heat import heat_map, heat_picture
    from pe_lab.report.pictures import drawn

    spec = heat_picture(heat_map(found, tasks), found.suite.version)
    _write(path, drawn(spec, path.suffix.strip(".")))
    _say_written(path, f"the heat map of {_runs(found.rows)}")


def _write(path: Path, content: bytes) -> None:
    try:
        replace_file(path, content)
    except OSError as error:
        raise cannot_write(path, error) from None


def _runs(rows: pl.DataFrame) -> str:
    return counted(rows["run_id"].n_unique(), "run")


def _say_written(path: Path, what: str) -> None:
    console().print(f"{path}: {path.stat().st_size / 1e6:.2f} MB, {what}", soft_wrap=True)
