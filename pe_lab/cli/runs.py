"""``pe-lab runs``: one line for each run folder; the last changed one comes last.

    pe-lab runs                                        all of runs/
    pe-lab runs task=flipflop where="state!=finished"  filters as in pe-lab results
    pe-lab runs format=csv                             table, csv, json, markdown or latex
    pe-lab runs runs_dir=elsewhere                     the folder of the runs (runs)
    pe-lab runs check=true                             compares all files with their digests, names
                                                       damaged runs and ends with status 1

inspect and eval find a run by its hash: pe-lab inspect run=HASH.
"""

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
from rich.filesize import decimal

from pe_lab.core.console import console
from pe_lab.core.errors import PeLabError, RunError, counted
from pe_lab.core.options import Line
from pe_lab.results.format import Format, OutputFormat, Table, print_tables
from pe_lab.results.groups import named
from pe_lab.results.table import selected
from pe_lab.store.run_folder import RunFolder


def show(
    line: Line,
    *,
    runs_dir: Path = Path("runs"),
    where: str | None = None,
    format: OutputFormat = "table",
    check: bool = False,
    **filters: str,
) -> None:
    """Print the table.

    Raises:
        UsageError: a wrong option or filter.
        RunError: with ``check=true``, a file is damaged.
    """
    runs = selected(line, runs_dir, where, filters)
    if check:
        check_files(runs)
        return
    names = named(runs).labels if len(runs) else {}
    facts = [_facts(run, names) for run in runs.iter_rows(named=True)]
    facts.sort(key=lambda one: -one["age_s"])
    if facts:
        frame = pl.DataFrame(facts, infer_schema_length=None)
        shown = frame.with_columns(state=pl.struct("state", "step", "steps"))
        title = f"{counted(len(facts), 'run')}, {decimal(sum(one['bytes'] for one in facts))}"
        table = Table(shown, FORMATS, title, headings=HEADINGS)
        print_tables(format, [table], frame)
    else:
        among = " ".join([str(runs_dir), *line.filters])
        print_tables(format, [], notes=[f"no runs in {among}"])


def check_files(runs: pl.DataFrame) -> None:
    """Compare the files of these runs with their digests; RunError if one is damaged."""
    from pe_lab.store.checkpoint import check_digests

    damaged = 0
    for path in runs["path"]:
        try:
            check_digests(RunFolder(Path(path)))
        except PeLabError as error:
            damaged += 1
            console().print(str(error), soft_wrap=True)
    if damaged:
        raise RunError(f"{damaged} of {counted(len(runs), 'run')} damaged")
    console().print(f"{counted(len(runs), 'run')}, nothing is damaged")


def _facts(run: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """A row of the table: when a file of the folder was last written, and the bytes of all."""
    path, stats = Path(run["path"]), []
    for file in path.rglob("*"):
        # A run that is under way replaces its files.
        with suppress(FileNotFoundError):
            stats.append(file.lstat())
    changed = max((stat.st_mtime for stat in stats), default=path.stat().st_mtime)
    return {
        **{key: run[key] for key in ("path", "task", "pe", "seed")},
        "hash": path.name.rpartition("-")[2],
        "setting": names.get(run["setting"] or "", ""),
        **{key: run[key] for key in ("state", "step", "steps")},
        "age_s": time.time() - changed,
        "bytes": sum(stat.st_size for stat in stats),
    }


def _state(state: dict[str, Any]) -> str:
    under_way = state["state"] != "finished" and state["steps"]
    return f"{state['state']} {state['step']}/{state['steps']}" if under_way else state["state"]


def _age(seconds: float) -> str:
    """Write a time in the largest unit that it reaches."""
    units = {"d": 86400, "h": 3600, "min": 60, "s": 1}
    unit = next((unit for unit, size in units.items() if seconds >= size), "s")
    return f"{seconds / units[unit]:.0f} {unit}"


FORMATS: dict[str, Format] = {
    **dict.fromkeys(("task", "pe", "seed", "hash", "setting"), str),
    **{"state": _state, "age_s": _age, "bytes": decimal},
}
HEADINGS = {"pe": "encoding", "age_s": "age", "bytes": "size"}
