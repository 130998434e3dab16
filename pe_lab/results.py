"""``pe-lab results``: one table over the runs of a folder."""

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from pe_lab.config import comparable, identity
from pe_lab.console import console, percent
from pe_lab.errors import UsageError
from pe_lab.runs import RunFolder, run_folders
from pe_lab.words import key_values

KEYS = ("runs_dir", "task", "pe")


def show(words: Sequence[str]) -> None:
    """Print error in % of each split, mean and standard deviation over the seeds of a setting,
    and every run that is not finished."""
    wanted = key_values("results", words, KEYS)
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
            summary = folder.summary()
            if summary is None:
                unfinished.append(_unfinished(folder))
            else:
                finished[task].append(summary)
        except UsageError as error:
            broken.append(str(error))
    return finished, unfinished, broken


def _unfinished(folder: RunFolder) -> str:
    status = folder.status()
    if not status:
        return f"{folder.path}  not begun"
    state = "killed" if folder.killed() else status["state"]
    told = f": {status['error']}" if status.get("error") else ""
    return f"{folder.path}  {state} at step {status['step']} of {status['steps']}{told}"


def _table(task: str, summaries: list[dict[str, Any]]) -> Table:
    settings: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for summary in summaries:
        settings[summary["pe"], _setting(summary)].append(summary)
    splits = list(dict.fromkeys(s for summary in summaries for s in summary["splits"]))
    table = Table(
        title=f"{task}: error in %, mean ± standard deviation over seeds", title_justify="left"
    )
    table.add_column("encoding")
    table.add_column("where they differ")
    table.add_column("seeds")
    for split in splits:
        table.add_column(split, justify="right")
    told = _told(summaries)
    for row, runs in sorted(settings.items()):
        seeds = ",".join(str(seed) for seed in sorted(run["seed"] for run in runs))
        table.add_row(row[0], escape(told[row]), seeds, *(_cell(runs, split) for split in splits))
    table.add_section()
    guesses = [_guess(summaries, split) for split in splits]
    table.add_row("(guessing)", "", "", *guesses, style="dim")
    return table


def _setting(run: dict[str, Any]) -> str:
    """What makes runs of other seeds comparable: the identity with the seed left out."""
    return identity({**run["config"], "seed": 0}, run.get("contents"))


def _flat(config: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Dotted keys and their values, as they are given on a command line."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list) and all(
            isinstance(v, dict) and "_target_" in v for v in value
        ):
            flat[prefix + key] = f"[{','.join(part.get('pe', part['_target_']) for part in value)}]"
            keys = [{k: v for k, v in p.items() if k not in ("pe", "_target_")} for p in value]
            flat |= _flat({str(n): part for n, part in enumerate(keys)}, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value if isinstance(value, str) else json.dumps(value)
    return flat


def _told(summaries: list[dict[str, Any]]) -> dict[tuple[str, str], str]:
    """(encoding, setting) -> the keys, with values, in which the runs of the table differ; those
    of an encoding are compared among its own runs, those of a part among equal combinations."""
    flat = {
        (run["pe"], _setting(run)): _flat(
            {**comparable(run["config"]), "contents": run.get("contents", {})}
        )
        for run in summaries
    }
    differing = {}
    for row, config in flat.items():
        own = [other for (pe, _), other in flat.items() if pe == row[0]]
        alike = {
            "pe.parts.": [
                other for other in own if other.get("pe.parts") == config.get("pe.parts")
            ],
            "pe.": own,
            "": list(flat.values()),
        }
        differing[row] = {
            key: value
            for key, value in config.items()
            if key not in ("seed", "pe._target_")
            and len({c.get(key) for c in next(alike[p] for p in alike if key.startswith(p))}) > 1
        }
    told = {}
    for row, words in differing.items():
        # Most splits follow from the task's own keys; they are told where those are not enough.
        short, long = (
            " ".join(f"{k}={v}" for k, v in words.items() if not k.startswith(hidden))
            for hidden in ("task.splits.", "\0")
        )
        told[row] = (short, long)
    rows_of = Counter((pe, short) for (pe, _), (short, _) in told.items())
    return {
        row: long if rows_of[row[0], short] > 1 else short for row, (short, long) in told.items()
    }


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
