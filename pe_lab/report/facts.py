"""The settings, unfinished runs and provenance on the page."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from pe_lab.common.errors import PeLabError
from pe_lab.results.frame import FACTS
from pe_lab.results.reader import text
from pe_lab.store.run_folder import RunFolder

NO_SETTING = {*FACTS, "runs_dir", "force", "debug"} - {"task", "pe", "seed"}
MAX_VALUES = 12
"""Maximum of values listed per key; the rest are counted."""


@dataclass(frozen=True)
class Counts:
    """The most frequent values, each with its number of runs, and how many more there are."""

    values: Sequence[tuple[str, int]]
    more: int

    @classmethod
    def of(cls, counted: Counter[str]) -> "Counts":
        """The most frequent of these; equally frequent ones in alphabetical order."""
        ranked = sorted(counted.items(), key=lambda pair: (-pair[1], pair[0]))
        return cls(ranked[:MAX_VALUES], max(0, len(ranked) - MAX_VALUES))


@dataclass(frozen=True)
class Settings:
    """Keys with their values as on the command line: those that all runs share, and those in which
    they differ, each value with its number of runs."""

    common: Mapping[str, str]
    differing: Mapping[str, Counts]


def settings(runs: pl.DataFrame) -> Settings:
    """The configuration of these finished runs."""
    common: dict[str, str] = {}
    differing: dict[str, Counts] = {}
    for key in runs.columns:
        if key in NO_SETTING or "/" in key or key.startswith("tracker"):
            continue
        values = Counter(map(text, runs[key].drop_nulls().to_list()))
        if len(values) == 1 and values.total() == len(runs):
            common[key] = next(iter(values))
        elif values:
            differing[key] = Counts.of(values)
    return Settings(common, differing)


def unfinished(runs: pl.DataFrame) -> list[tuple[str, ...]]:
    """Every run without a result: path, state, step of steps, and why."""
    columns = ("path", "state", "step", "steps", "message")
    rows = runs.filter(pl.col("state") != "finished").select(columns).iter_rows()
    return [
        (path, state, "" if step is None else f"{step} of {steps}", message or "")
        for path, state, step, steps, message in rows
    ]


def provenance(paths: Sequence[str]) -> dict[str, Counts]:
    """What the finished runs were made with, each value with its number of runs: revision,
    versions, machine. Of a run that was resumed, the last start counts."""
    values: dict[str, Counter[str]] = {
        name: Counter() for name in ("revision", "versions", "python", "machine", "device")
    }
    for path in paths:
        for name, value in _environment(Path(path)).items():
            values[name][value] += 1
    return {name: Counts.of(counted) for name, counted in values.items() if counted}


def _environment(path: Path) -> dict[str, str]:
    try:
        starts = RunFolder(path).starts()
        last: Any = starts[-1]
        changed = (path / f"git-{len(starts)}.diff").exists() or last.get("git_untracked")
        threads = f"{last['threads']} thread{'s' if last['threads'] != 1 else ''}"
        return {
            "revision": (last["git_revision"] or "not in a git repository")
            + (" with uncommitted changes" if changed else ""),
            "versions": ", ".join(f"{name} {value}" for name, value in last["versions"].items()),
            "python": last["python"],
            "machine": f"{last['host']}, {last['platform']}",
            "device": f"{last['gpu'] or last['device']}, {threads}",
        }
    except PeLabError as error:
        return {"revision": f"unknown: {error}"}
    except (KeyError, IndexError, TypeError):
        return {"revision": "unknown: environment.json is missing or broken"}
