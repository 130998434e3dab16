"""``pe-lab submit``: makes or checks a submission to the leaderboard, one file.

    pe-lab submit pe=mine to=mine.zip --config-dir mine    all runs of an entry in suite v2
    pe-lab submit pe=mine to=mine.zip suite=v2 runs_dir=elsewhere
    pe-lab submit check=mine.zip                           digests, identities, what is left out,
                                                           and two runs made again
    pe-lab submit check=mine.zip --config-dir FOLDER       with the code of the entry, once read
    pe-lab submit check=mine.zip rerun=0                   makes no run again

The file has the records of all runs, the failed ones included, and the files of --config-dir;
checkpoints stay with you. A check runs no code of the file: give --config-dir with code that you
have read (unzip mine.zip puts it in code/). A run that is made again must have the same errors on
the same processor and PyTorch; on others it must fit the task as the submitted one does. The exit
status is 1 if something is wrong.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import polars as pl
from pydantic import Field

from pe_lab.core.config_dir import trust
from pe_lab.core.console import console
from pe_lab.core.errors import RunError, UsageError, writing
from pe_lab.core.files import replace_file
from pe_lab.core.metrics import IN_DOMAIN, metric_name
from pe_lab.core.options import Options, parse, without_config_dir
from pe_lab.core.output import counted
from pe_lab.results.leaderboard.rows import environment_of, suite_runs
from pe_lab.results.leaderboard.submission import (
    cheapest,
    faults,
    in_columns,
    packed,
    unpacked,
)
from pe_lab.results.suite import DEFAULT, Suite, load_suite
from pe_lab.store.run_folder import RunFolder


class SubmitOptions(Options):
    """The keys of ``pe-lab submit``."""

    command = "submit"

    pe: str | None = None
    to: Path | None = None
    suite: str = DEFAULT
    runs_dir: Path = Path("runs")
    check: Path | None = None
    rerun: Annotated[int, Field(ge=0, description="a number of runs, 0 or more")] = 2


def show(words: Sequence[str]) -> None:
    """Write a submission, or check one.

    Raises:
        UsageError: a wrong option, no run, or no submission.
        RunError: something is wrong with the submission.
    """
    config_dir, rest = without_config_dir(words)
    options = parse(SubmitOptions, rest)
    folder = None if config_dir is None else Path(config_dir)
    trust(config_dir)
    if options.check is not None:
        if options.pe or options.to:
            raise UsageError(f"submit check={options.check} is given by itself: leave pe= and to=")
        _check(options.check, options.rerun, folder)
        return
    if options.pe is None or options.to is None:
        raise UsageError("submit needs an entry and a file: pe-lab submit pe=NAME to=NAME.zip")
    if options.to.suffix != ".zip" or options.to.exists():
        what = "exists and is not overwritten" if options.to.exists() else "is not a .zip"
        raise UsageError(f"to={options.to} {what}: give another FILE.zip")
    suite = load_suite(options.suite, folder)
    found = suite_runs(options.runs_dir, suite)
    content = packed(suite, options.pe, found, folder)
    with writing(options.to, "another to="):
        replace_file(options.to, content)
    of = found.rows.filter(pl.col("entry").is_in(in_columns(found.rows, suite, options.pe)))
    runs = counted(of["run_id"].n_unique(), "run")
    out = console()
    out.print(f"{options.to}: {runs}, {len(content) / 1e6:.2f} MB", soft_wrap=True)
    out.print(f"check it:  pe-lab submit check={options.to}", soft_wrap=True)


def _check(path: Path, count: int, config_dir: Path | None) -> None:
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        manifest = unpacked(path, folder)
        suite = load_suite(manifest["suite"].rpartition("-")[0], config_dir)
        wrong = list(faults(folder / "runs", suite, manifest))
        out = console()
        for sentence in wrong:
            out.print(f"wrong: {sentence}", soft_wrap=True)
        if not wrong:
            runs = counted(len([*(folder / "runs").glob("*/*/seed*")]), "run")
            out.print(f"{runs} of {manifest['entry']}: digests, identities and protocol as stated")
            for run in cheapest(folder / "runs", suite, count):
                equal, sentence = _again(run, folder / "again", suite)
                out.print(("" if equal else "wrong: ") + sentence, soft_wrap=True)
                wrong += [] if equal else [sentence]
    if wrong:
        raise RunError(f"submit check={path}: {counted(len(wrong), 'fault')}, see above")


def _again(path: Path, to: Path, suite: Suite) -> tuple[bool, str]:
    """Make a run again; whether it is as submitted, and a sentence."""
    # Imported here: torch takes a second.
    from pe_lab.experiment.load_run import plan_again
    from pe_lab.experiment.run import SweepPlace, folder_of, run

    folder = RunFolder(path)
    summary = folder.summary() or {}
    planned = plan_again(folder, summary)
    config = replace(planned.config, runs_dir=str(to))  # type: ignore[type-var]
    planned = replace(planned, config=config)
    name = "/".join(path.parts[-3:])
    made = run(planned, place=SweepPlace(name, "submission", 0, line_every=30))
    differing = list(_differing(summary["metrics"], made["metrics"], summary["splits"]))
    if not differing:
        return True, f"{name}: made again with the same errors"
    machine, here = (environment_of(one)[1:] for one in (path, folder_of(planned).path))
    limit = suite.tasks[suite.task_of(summary["config"], summary.get("contents")) or ""].fits
    key = metric_name(IN_DOMAIN, "error")
    fits = [one["metrics"][key] <= limit for one in (summary, made)]
    line = f"{name}: made again with other errors ({'; '.join(differing)})"
    if machine == here:
        return False, f"{line} on the same processor, Python and PyTorch"
    verdict = "both fit the task" if all(fits) else "neither fits the task"
    verdict = verdict if fits[0] == fits[1] else "one fits the task and the other does not"
    return fits[0] == fits[1], f"{line} on another processor, Python or PyTorch; {verdict}"


def _differing(
    theirs: dict[str, float], ours: dict[str, float], splits: dict[str, str]
) -> Iterator[str]:
    for split in splits:
        key = metric_name(split, "error")
        if theirs.get(key) != ours.get(key):
            yield f"{split} {theirs.get(key)} and {ours.get(key)}"
