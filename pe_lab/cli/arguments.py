"""Arguments of several commands: finished runs that ``run=`` names, and a file to write."""

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from pe_lab.core.errors import PeLabError, RunError, UsageError
from pe_lab.store.run_folder import is_run, match_runs, run_folders


def _check_new(path: Path) -> Path:
    if path.suffix != ".parquet" or path.exists() or not path.parent.is_dir():
        raise ValueError("give a new FILE.parquet in a folder; format=csv > FILE.csv has the table")
    return path


NewParquet = Annotated[Path, AfterValidator(_check_new)]
"""A file to write, which is never overwritten."""


def find_run(name: str, runs_dir: Path) -> Path:
    """The only run that ``find_runs`` finds.

    Raises:
        UsageError: there is no such run, or more than one.
    """
    paths = find_runs(name, runs_dir)
    if len(paths) != 1:
        listed = ", ".join(map(str, paths[:6]))
        raise UsageError(f"run={name} fits {len(paths)} runs: {listed}; give more of the name")
    return paths[0]


def split_finished(text: str, runs_dir: Path) -> tuple[list[Path], list[Path]]:
    """The finished and the unfinished runs of a list of folders, patterns and parts of paths.

    A single run is always returned as finished: loading it gives the precise error.

    Raises:
        UsageError: no such run, or none of them is finished.
    """
    paths = find_runs(text, runs_dir)
    # Also a damaged summary: loading it says why.
    done = [path for path in paths if (path / "summary.json").exists()]
    finished = paths if len(paths) == 1 else done
    if not finished:
        raise UsageError(f"run={text} names no finished run: pe-lab runs lists what is there")
    return finished, [path for path in paths if path not in finished]


def find_runs(text: str, runs_dir: Path) -> list[Path]:
    """The runs of a list of folders, patterns and parts of paths; UsageError where one has none."""
    # A path may have a comma in it.
    names = [text] if Path(text).is_dir() else [name.strip() for name in text.split(",")]
    paths = [path for name in names if name for path in _find(name, runs_dir)]
    if not paths:
        raise UsageError(
            "no run is named: give run=FOLDER, or a part of its name below runs_dir; pe-lab runs "
            "lists them"
        )
    return list({path.resolve(): path for path in reversed(paths)}.values())[::-1]


def _find(name: str, runs_dir: Path) -> list[Path]:
    """The runs in a folder or a glob pattern, else those with this part in their path."""
    folders = [Path(match) for match in sorted(glob.glob(name))]  # noqa: PTH207
    inside = [
        [folder] if is_run(folder) else [run.path for run in run_folders(folder)]
        for folder in folders
    ]
    runs = [run for several in inside for run in several] or match_runs(name, runs_dir)
    if not (runs or Path(name).is_dir()):
        raise UsageError(
            f"run={name} is not a folder, and no run below runs_dir={runs_dir} has that name: "
            "pe-lab runs lists them"
        )
    return runs or [Path(name)]


def refuse_left_out(errors: Sequence[PeLabError], n: int, done: str) -> None:
    """RunError for those of n runs that could not be ``done``: diagnosed, evaluated."""
    if errors:
        raise RunError(f"{len(errors)} of {n} runs not {done}: {'; '.join(map(str, errors))}")
