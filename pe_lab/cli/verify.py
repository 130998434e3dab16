"""``pe-lab verify``: whether the files of runs are as they were written.

    pe-lab verify                                all of runs/
    pe-lab verify FOLDER                         run=FOLDER: a folder of a run or of several
    pe-lab verify run=FOLDER,FOLDER              several (comma-separated), or a part of a name
    pe-lab verify task=flipflop where=".."       filters as in pe-lab results
    pe-lab verify set_aside=true                 rename the folders of damaged runs, as force=true
                                                 does: the same commands then make them again
    pe-lab verify format=csv                     table, csv, json, markdown or latex
    pe-lab verify runs_dir=elsewhere             the folder of the runs, else runs

Every file is compared with its digest and its schema. Folders that tables leave out are named.
The exit status is 1 if anything is wrong and 2 if there is no run. Only set_aside=true changes
anything, and it deletes nothing. A folder is not renamed if only its evaluations.jsonl or
why.jsonl is damaged.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from pe_lab.cli.run_argument import matching_runs
from pe_lab.core.errors import HeldError, PeLabError, RunError, UsageError
from pe_lab.core.options import Flag, parse
from pe_lab.core.output import counted
from pe_lab.explain.record import read_diagnoses
from pe_lab.results.frame import runs_of
from pe_lab.results.labels import labels
from pe_lab.results.presentation.formats import Cell, Format, Table, print_tables
from pe_lab.results.selection import RunOptions, among, selected
from pe_lab.store.run_folder import RunFolder, is_run

if TYPE_CHECKING:
    from pe_lab.evaluate.verify import Problem

COLUMNS = ("run", "setting", "what is wrong")
KINDS = {
    "damaged": "damaged",
    "evaluations": "with damaged evaluations",
    "diagnoses": "with damaged diagnoses",
    "unreadable": "not readable",
    "misplaced": "not counted",
}
"""What each kind of problem is called, the worst first."""


class VerifyOptions(RunOptions):
    command = "verify"

    run: str | None = None
    set_aside: Flag = False
    format: Format = "table"


def show(words: Sequence[str]) -> None:
    """Print what is wrong, and set damaged runs aside if that is wanted.

    Raises:
        UsageError: a wrong option or filter, or no run.
        RunError: something is wrong with a run that is not set aside.
    """
    options = parse(VerifyOptions, [_folder(word) for word in words])
    if options.run is None:
        runs = selected(options)
    else:
        paths = matching_runs(options.run, Path(options.runs_dir))
        if no_runs := [str(path) for path in paths if not is_run(path)]:
            raise UsageError(f"run={options.run}: there is no run in {', '.join(no_runs)}")
        runs = among(runs_of(paths), options)
    if runs.is_empty():
        raise UsageError(_no_runs(options))
    names = labels(runs)
    found = [
        {
            **{key: run[key] for key in ("path", "task", "pe", "seed")},
            "setting": " ".join([run["pe"] or "", names.get(run["setting"] or "", "")]).strip(),
            "kind": problem.kind,
            "problem": problem.sentence,
        }
        for run in runs.iter_rows(named=True)
        for problem in _problems(run)
    ]
    title = _title(found, len(runs))
    aside, held = _set_aside(found) if options.set_aside else ({}, [])
    notes = [*(f"{path} is now {now}" for path, now in aside.items()), *held]
    if not found:
        notes = [f"{counted(len(runs), 'run')}, nothing is wrong"]
    tables = []
    if options.format == "table":
        # A sentence a line, which has the file in it.
        notes = [row["problem"] for row in found] + notes
    elif found:
        rows = ([Path(row["path"]).name, row["setting"], row["problem"]] for row in found)
        cells = [list(map(Cell, row)) for row in rows]
        tables = [Table(title, COLUMNS, len(COLUMNS), cells)]
    print_tables(options.format, tables, pl.DataFrame(found), None, notes, {})
    if left := [row for row in found if row["path"] not in aside]:
        raise RunError(_title(left, len(runs) - len(aside)))


def _problems(run: dict[str, Any]) -> list["Problem"]:
    """What is wrong with the files of a run, or why tables leave it out nevertheless."""
    # Imported here: torch takes a second.
    from pe_lab.evaluate.verify import Problem, problems

    found = problems(Path(run["path"]))
    try:
        read_diagnoses(RunFolder(Path(run["path"])))
    except PeLabError as error:
        found.append(Problem(str(error), "diagnoses"))
    named = any(problem.kind in ("damaged", "unreadable") for problem in found)
    # The row of a folder in the wrong place has no task.
    if run["state"] == "broken" and (run["task"] is None or not named):
        found.append(Problem(run["message"], "misplaced"))
    return found


def _folder(word: str) -> str:
    """A bare folder is ``run=``; UsageError where there is no such folder."""
    if "=" in word or word.startswith("-") or word in VerifyOptions.model_fields:
        return word
    if not Path(word).is_dir():
        raise UsageError(
            f"verify {word}: this is not a folder; give that of a run or of several, or run= with "
            "a part of a name"
        )
    return f"run={word}"


def _no_runs(options: VerifyOptions) -> str:
    if options.filters:
        where = options.runs_dir if options.run is None else options.run
        selection = " ".join([where, *options.filters])
        return f"verify: no runs in {selection}: leave out a filter, pe-lab runs lists the runs"
    return (
        f"verify: no runs in {options.runs_dir}: give runs_dir=FOLDER with the folder of the runs, "
        "or make one with pe-lab task=flipflop pe=cope"
    )


def _title(found: Sequence[dict[str, Any]], of: int) -> str:
    """``2 of 9 runs: 1 damaged; 1 not counted``; a run counts by its worst problem."""
    ranks = list(KINDS)
    worst: dict[str, int] = {}
    for row in found:
        rank = ranks.index(row["kind"])
        worst[row["path"]] = min(rank, worst.get(row["path"], rank))
    counts = Counter(worst.values())
    parts = [KINDS[ranks[rank]] for rank in sorted(counts)]
    if len(parts) > 1:
        parts = [f"{counts[rank]} {KINDS[ranks[rank]]}" for rank in sorted(counts)]
    return f"{len(worst)} of {counted(of, 'run')}: {'; '.join(parts)}"


def _set_aside(found: Iterable[dict[str, Any]]) -> tuple[dict[str, Path], list[str]]:
    """Rename the folders of the damaged runs; their new paths, and a message for each that another
    process holds."""
    aside, held = {}, []
    for path in dict.fromkeys(row["path"] for row in found if row["kind"] == "damaged"):
        folder = RunFolder(Path(path))
        try:
            with folder.lock():
                if (now := folder.set_aside()) is not None:
                    aside[path] = now
        except HeldError as error:
            held.append(str(error))
    return aside, held
