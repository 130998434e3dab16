"""``pe-lab results``: one table over the runs of a folder."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from pe_lab.config import identity
from pe_lab.console import console, percent
from pe_lab.errors import UsageError
from pe_lab.runs import run_folders
from pe_lab.suggest import did_you_mean

KEYS = ("runs_dir", "task", "pe")


def show(words: Sequence[str]) -> None:
    """Print error in % of each split, mean and standard deviation over the seeds of a setting,
    and every run that is not finished."""
    wanted = _parse(words)
    folder = Path(wanted.pop("runs_dir", "runs"))
    if not folder.is_dir():
        raise UsageError(f"runs_dir={folder} is no folder: give the one your runs are in")
    finished, unfinished, broken = _collect(folder, wanted)
    out = console()
    for task, summaries in sorted(finished.items()):
        out.print(_table(task, summaries))
    for line in unfinished + broken:
        out.print(line, soft_wrap=True)
    if not (finished or unfinished or broken):
        chosen = "".join(f" {key}={value}" for key, value in wanted.items())
        out.print(f"no runs in {folder}{chosen}: pe-lab task=flipflop pe=cope makes one")


def _parse(words: Sequence[str]) -> dict[str, str]:
    given = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in KEYS:
            raise UsageError(f"results {word}: " + did_you_mean(key, KEYS) + "; give key=value")
        given[key] = value
    return given


def _collect(
    runs_dir: Path, wanted: dict[str, str]
) -> tuple[dict[str, list[dict[str, Any]]], list[str], list[str]]:
    finished: dict[str, list[dict[str, Any]]] = defaultdict(list)
    unfinished, broken = [], []
    chosen = {key: set(value.split(",")) for key, value in wanted.items()}
    for folder in run_folders(runs_dir):
        task, pe = folder.path.parts[-3:-1]
        if task not in chosen.get("task", {task}) or pe not in chosen.get("pe", {pe}):
            continue
        try:
            summary, status = folder.summary(), folder.status()
        except UsageError as error:
            broken.append(str(error))
            continue
        if summary is not None:
            finished[task].append(summary)
        else:
            state = status.get("state", "not begun")
            told = f": {status['error']}" if status.get("error") else ""
            step = f" at step {status['step']} of {status['steps']}" if status else ""
            unfinished.append(f"{folder.path}  {state}{step}{told}")
    return finished, unfinished, broken


def _table(task: str, summaries: list[dict[str, Any]]) -> Table:
    settings: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for summary in summaries:
        settings[summary["pe"], identity({**summary["config"], "seed": 0})].append(summary)
    splits = list(dict.fromkeys(s for summary in summaries for s in summary["splits"]))
    table = Table(
        title=f"{task}: error in %, mean ± standard deviation over seeds", title_justify="left"
    )
    table.add_column("encoding")
    table.add_column("settings")
    table.add_column("seeds")
    for split in splits:
        table.add_column(split, justify="right")
    for (pe, _), runs in sorted(settings.items(), key=lambda item: item[0]):
        seeds = ",".join(str(seed) for seed in sorted(run["seed"] for run in runs))
        table.add_row(pe, _setting(runs[0]), seeds, *(_cell(runs, split) for split in splits))
    table.add_section()
    guesses = [_guess(summaries, split) for split in splits]
    table.add_row("(guessing)", "", "", *guesses, style="dim")
    return table


def _setting(run: dict[str, Any]) -> str:
    """The overrides that make this setting another than the default."""
    told = ("task=", "pe=", "seed=", "runs_dir=", "force=", "debug=", "threads=", "tracker.")
    return " ".join(word for word in run["overrides"] if not word.startswith(told))


def _cell(runs: list[dict[str, Any]], split: str) -> str:
    places = [run["splits"].get(split) for run in runs]
    errors = [
        run["metrics"][f"{place}/error"]
        for run, place in zip(runs, places, strict=True)
        if place is not None
    ]
    if not errors:
        return "n/a" if any(split in run["splits"] for run in runs) else ""
    mean = percent(statistics.fmean(errors))
    return f"{mean} ± {percent(statistics.stdev(errors))}" if len(errors) > 1 else mean


def _guess(summaries: list[dict[str, Any]], split: str) -> str:
    found = [
        s["metrics"][f"{s['splits'][split]}/guess"]
        for s in summaries
        if s["splits"].get(split) is not None
    ]
    return percent(statistics.fmean(found)) if found else ""
