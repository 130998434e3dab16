"""The runs that ``run=`` names on the command line."""

import glob
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from pe_lab.core.errors import PeLabError, UsageError
from pe_lab.core.options import Options
from pe_lab.results.labels import labels
from pe_lab.results.table import runs_of
from pe_lab.store.run_folder import RunFolder, is_run, runs_below, runs_called


class RunArgument(Options):
    """The keys of a command over one finished run."""

    run: str = Field(
        min_length=1,
        description="a finished run: give run=FOLDER, or a part of its name below runs_dir; "
        "pe-lab runs lists them",
    )
    runs_dir: Path = Path("runs")


MOST = 6
"""Runs that a message names."""


def find_run(name: str, runs_dir: Path) -> Path:
    """The only run that ``matching_runs`` finds.

    Raises:
        UsageError: there is no such run, or more than one; their settings are named.
    """
    found = matching_runs(name, runs_dir)
    if len(found) == 1:
        return found[0]
    raise UsageError(
        f"run={name} fits {len(found)} runs: {named(found)}; give more of the name, "
        f"{_list_command(runs_dir)} lists them"
    )


def named(paths: Sequence[Path]) -> str:
    """The runs as task/encoding/seed-hash, with the keys in which they differ."""
    shown = runs_of(paths)
    setting_of = dict(zip(shown["path"], shown["setting"], strict=True))
    lines = labels(shown)
    words = []
    for path in paths[:MOST]:
        label = lines.get(setting_of.get(str(path)) or "", "")
        words.append("/".join(path.parts[-3:]) + (f" ({label})" if label else ""))
    return ", ".join(words) + (", .." if len(paths) > MOST else "")


def finished_runs(text: str, runs_dir: Path) -> tuple[list[Path], list[Path]]:
    """The finished and the unfinished runs of a list of folders, patterns and parts of paths.

    A single run is always returned as finished: loading it gives the precise error.

    Raises:
        UsageError: no such run, or none of them is finished.
    """
    paths = matching_runs(text, runs_dir)
    if not paths:
        raise UsageError(
            "eval needs a finished run: give run=FOLDER, comma-separated, or a part of their "
            f"names below runs_dir; {_list_command(runs_dir)} lists them"
        )
    if len(paths) == 1:
        return paths, []
    done = [path for path in paths if _is_finished(path)]
    if not done:
        raise UsageError(
            f"run={text} names {len(paths)} runs, and none is finished ({named(paths)}): run "
            "their commands again to continue them"
        )
    return done, [path for path in paths if path not in done]


def matching_runs(text: str, runs_dir: Path) -> list[Path]:
    """The runs of a list of folders, patterns and parts of paths; UsageError where one has none."""
    # A path may have a comma in it.
    names = [text] if Path(text).is_dir() else [name.strip() for name in text.split(",")]
    matching = [path for name in names if name for path in _matching(name, runs_dir)]
    return list({path.resolve(): path for path in reversed(matching)}.values())[::-1]


def _is_finished(path: Path) -> bool:
    """Also where its summary is damaged: loading it says why."""
    try:
        return RunFolder(path).summary() is not None
    except PeLabError:
        return True


def _matching(name: str, runs_dir: Path) -> list[Path]:
    """The runs in a folder or a glob pattern, else those with this part in their path."""
    path = Path(name)
    if path.is_dir():
        return [path] if is_run(path) else runs_below(path) or [path]
    globbed = [Path(match) for match in sorted(glob.glob(name))]  # noqa: PTH207
    found = [run for p in globbed if p.is_dir() for run in ([p] if is_run(p) else runs_below(p))]
    found = found or runs_called(name, runs_dir)
    if not found:
        raise UsageError(
            f"run={name} is not a folder, and no run below runs_dir={runs_dir} has that name: see "
            f"{_list_command(runs_dir)} for the runs"
        )
    return [run for run in found if ".replaced-" not in run.name]


def _list_command(runs_dir: Path) -> str:
    return "pe-lab runs" + (f" runs_dir={runs_dir}" if runs_dir != Path("runs") else "")
