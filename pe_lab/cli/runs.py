"""``pe-lab runs``: one line for each run folder; the last changed one comes last.

    pe-lab runs                                        all of runs/
    pe-lab runs task=flipflop where="state!=finished"  filters as in pe-lab results
    pe-lab runs format=csv                             table, csv, json, markdown or latex
    pe-lab runs runs_dir=elsewhere                     the folder of the runs (runs)
    pe-lab runs check=true                             compares all files with their digests, names
                                                       damaged runs and ends with status 1

inspect and eval find a run by its hash: pe-lab inspect run=HASH.
"""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl

from pe_lab.core.console import console
from pe_lab.core.errors import PeLabError, RunError
from pe_lab.core.options import Flag, parse
from pe_lab.core.output import counted
from pe_lab.results.labels import labels
from pe_lab.results.presentation.formats import Cell, Format, Table, print_tables
from pe_lab.results.selection import RunOptions, selected
from pe_lab.store.run_folder import RunFolder

COLUMNS = ("task", "encoding", "seed", "hash", "setting", "state", "age", "size")


class RunsOptions(RunOptions):
    command = "runs"

    format: Format = "table"
    check: Flag = False


def show(words: Sequence[str]) -> None:
    """Print the table.

    Raises:
        UsageError: a wrong option or filter.
        RunError: with ``check=true``, a file is damaged.
    """
    options = parse(RunsOptions, words)
    runs = selected(options)
    if options.check:
        check_files(runs)
        return
    names = labels(runs) if len(runs) else {}
    found = [_facts(run, names) for run in runs.iter_rows(named=True)]
    found.sort(key=lambda facts: -facts["age_s"])
    notes = [] if found else [f"no runs in {' '.join([options.runs_dir, *options.filters])}"]
    lines = [[Cell(text) for text in _texts(facts)] for facts in found]
    title = f"{counted(len(found), 'run')}, {_size(sum(facts['bytes'] for facts in found))}"
    tables = [Table(title, COLUMNS, len(COLUMNS) - 2, lines)] if found else []
    print_tables(options.format, tables, pl.DataFrame(found), None, notes, {})


def check_files(runs: pl.DataFrame) -> None:
    """Compare the files of these runs with their digests; RunError if one is damaged."""
    damaged = 0
    for path in runs["path"]:
        try:
            RunFolder(Path(path)).check()
        except PeLabError as error:
            damaged += 1
            console().print(str(error), soft_wrap=True)
    if damaged:
        raise RunError(f"{damaged} of {counted(len(runs), 'run')} damaged")
    console().print(f"{counted(len(runs), 'run')}, nothing is damaged")


def _facts(run: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    changed, size = _changed_and_size(Path(run["path"]))
    return {
        **{key: run[key] for key in ("path", "task", "pe", "seed")},
        "hash": Path(run["path"]).name.rpartition("-")[2],
        "setting": names.get(run["setting"] or "", ""),
        **{key: run[key] for key in ("state", "step", "steps")},
        "age_s": time.time() - changed,
        "bytes": size,
    }


def _texts(facts: dict[str, Any]) -> list[str]:
    state = facts["state"]
    if state != "finished" and facts["steps"]:
        state += f" {facts['step']}/{facts['steps']}"
    words = [facts[key] for key in ("task", "pe", "seed", "hash", "setting")]
    return [
        *("-" if word is None else str(word) for word in words),
        state,
        _age(facts["age_s"]),
        _size(facts["bytes"]),
    ]


def _changed_and_size(folder: Path) -> tuple[float, int]:
    """When a file of the folder was last written, and the bytes of all."""
    changed, size = 0.0, 0
    for parent, _, files in os.walk(folder):
        for name in files:
            # A run that is under way replaces its files.
            with suppress(FileNotFoundError):
                stat = Path(parent, name).lstat()
                changed, size = max(changed, stat.st_mtime), size + stat.st_size
    return changed or folder.stat().st_mtime, size


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"


def _size(count: float) -> str:
    for unit, length in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= length:
            return f"{count / length:.1f} {unit}"
    return f"{count:.0f} B"
