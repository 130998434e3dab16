"""Finished runs done again: whether they come to the same numbers."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pe_lab.core.metrics import IN_DOMAIN, metric_name
from pe_lab.experiment.load_run import plan_again, summary_of
from pe_lab.experiment.run import SweepPlace, folder_of, run
from pe_lab.store.run_folder import RunFolder

TOLERANCE = 0.02
"""How far the in-domain error may be from the recorded one on another machine or version."""
FACTS = (
    *("git_revision", "gpu", "cpu_capability", "processor"),
    *("attention", "device", "threads", "deterministic"),
)
VERSIONS = ("torch", "numpy")
Verdict = Literal["equal", "agrees", "differs"]


@dataclass(frozen=True)
class Again:
    """A run and its repetition.

    Args:
        other: the recorded facts on which the last digits depend that are others now, such as
            ``torch``; empty: every number should be equal.
        changed: metric -> recorded and new value, where they are not equal.
        splits: those that are now on the other side of their threshold.
        verdict: ``equal``; ``agrees``: not equal, some of ``other`` differ, the in-domain error is
            within ``TOLERANCE`` and every split on the same side of its threshold; else
            ``differs``.
    """

    path: Path
    other: list[str]
    changed: dict[str, tuple[Any, Any]]
    splits: list[str]
    verdict: Verdict


def chosen(paths: Iterable[tuple[str, Path]], n: int, pick: int) -> list[Path]:
    """Of each entry n of its runs, drawn without replacement; all where there are no more.

    Args:
        paths: entry and folder of each run.
        pick: the seed of the draw. The same one draws the same runs of an entry, in whichever
            folder they are and whatever other entries there are.
    """
    found: dict[str, list[Path]] = {}
    for entry, path in paths:
        found.setdefault(entry, []).append(path)
    return [
        path
        for entry, several in found.items()
        for path in random.Random(f"{pick} {entry}").sample(
            sorted(several, key=lambda path: path.parts[-3:]), min(n, len(several))
        )
    ]


def again(path: Path, runs_dir: Path, thresholds: Mapping[str, float]) -> Again:
    """Do a finished run again, from its recorded configuration, into another folder.

    Args:
        thresholds: of its splits, the largest error that counts as learned or generalised.

    Raises:
        UsageError: it is not finished, or cannot be built by this version or on this machine.
        PeLabError: it failed this time.
    """
    folder = RunFolder(path)
    summary = summary_of(folder)
    before = _facts(folder)
    recorded = summary["config"]
    changes = {
        "runs_dir": str(runs_dir),
        "force": False,
        "device": recorded.get("device", "auto"),
        "threads": before.get("threads", recorded.get("threads", 1)),
    }
    planned = plan_again(folder, summary, **changes)
    new = run(planned, summary.get("overrides", ()), SweepPlace(path.name, "again", 0, 60.0))
    now = _facts(folder_of(planned))
    other = [name for name in before if name in now and before[name] != now[name]]
    return compared(path, summary["metrics"], new["metrics"], other, thresholds)


def compared(
    path: Path,
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    other: list[str],
    thresholds: Mapping[str, float],
) -> Again:
    """The verdict on two measurements of a run."""
    names = [name for name in {**before, **now} if not name.startswith("time/")]
    changed = {n: (before.get(n), now.get(n)) for n in names if before.get(n) != now.get(n)}
    errors = {s: metric_name(s, "error") for s in thresholds}
    splits = [
        split
        for split, name in errors.items()
        if _below(before.get(name), thresholds[split]) != _below(now.get(name), thresholds[split])
    ]
    verdict: Verdict = "equal"
    if changed:
        inside = metric_name(IN_DOMAIN, "error")
        near = inside in before and inside in now
        near = near and abs(before[inside] - now[inside]) <= TOLERANCE
        verdict = "agrees" if other and near and not splits else "differs"
    return Again(path, other, changed, splits, verdict)


def _below(error: float | None, threshold: float) -> bool | None:
    return None if error is None else error <= threshold


def _facts(folder: RunFolder) -> dict[str, Any]:
    """What the last digits of a run depend on, of its last start."""
    start: Mapping[str, Any] = next(reversed(folder.starts()), {})
    versions = start.get("versions") or {}
    found = {name: start[name] for name in FACTS if name in start}
    return {**found, **{name: versions[name] for name in VERSIONS if name in versions}}
