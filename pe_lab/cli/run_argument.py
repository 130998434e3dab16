"""The runs that ``run=`` names on the command line."""

import glob
from pathlib import Path

from pydantic import Field

from pe_lab.core.errors import PeLabError, UsageError
from pe_lab.core.options import Options
from pe_lab.store.run_folder import RunFolder, is_run, match_runs, run_folders

MOST_NAMED = 6
"""Runs that a message names."""


class RunArgument(Options):
    """The keys of a command over one finished run."""

    run: str = Field(
        min_length=1,
        description="a finished run: give run=FOLDER, or a part of its name below runs_dir; "
        "pe-lab runs lists them",
    )
    runs_dir: Path = Path("runs")


def find_run(name: str, runs_dir: Path) -> Path:
    """The only run that ``find_runs`` finds.

    Raises:
        UsageError: there is no such run, or more than one.
    """
    paths = find_runs(name, runs_dir)
    if len(paths) != 1:
        listed = ", ".join(map(str, paths[:MOST_NAMED]))
        raise UsageError(f"run={name} fits {len(paths)} runs: {listed}; give more of the name")
    return paths[0]


def split_finished(text: str, runs_dir: Path) -> tuple[list[Path], list[Path]]:
    """The finished and the unfinished runs of a list of folders, patterns and parts of paths.

    A single run is always returned as finished: loading it gives the precise error.

    Raises:
        UsageError: no such run, or none of them is finished.
    """
    paths = find_runs(text, runs_dir)
    finished = paths if len(paths) == 1 else [path for path in paths if _is_finished(path)]
    if not finished:
        raise UsageError(f"run={text} names no finished run: pe-lab runs lists what is there")
    return finished, [path for path in paths if path not in finished]


def find_runs(text: str, runs_dir: Path) -> list[Path]:
    """The runs of a list of folders, patterns and parts of paths; UsageError where one has none."""
    # A path may have a comma in it.
    names = [text] if Path(text).is_dir() else [name.strip() for name in text.split(",")]
    paths = [path for name in names if name for path in _find(name, runs_dir)]
    return list({path.resolve(): path for path in reversed(paths)}.values())[::-1]


def _is_finished(path: Path) -> bool:
    """Also where its summary is damaged: loading it says why."""
    try:
        return RunFolder(path).summary() is not None
    except PeLabError:
        return True


def _find(name: str, runs_dir: Path) -> list[Path]:
    """The runs in a folder or a glob pattern, else those with this part in their path."""
    folders = [Path(match) for match in sorted(glob.glob(name))]  # noqa: PTH207
    inside = [
        [folder] if is_run(folder) else [run.path for run in run_folders(folder)]
        for folder in folders
    ]
    runs = [run for several in inside for run in several] or match_runs(name, runs_dir)
    if not runs and Path(name).is_dir():
        return [Path(name)]
    if not runs:
        raise UsageError(
            f"run={name} is not a folder, and no run below runs_dir={runs_dir} has that name: "
            "pe-lab runs lists them"
        )
    return [run for run in runs if ".replaced-" not in run.name]
