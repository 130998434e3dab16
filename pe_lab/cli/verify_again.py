"""``pe-lab verify again=2``: some runs of each entry done again, and compared with what they
recorded."""

import secrets
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl

from pe_lab.common.console import console, percent
from pe_lab.common.errors import RunError, UsageError, sentence
from pe_lab.common.output import counted
from pe_lab.core.metrics import IN_DOMAIN, metric_name
from pe_lab.results.presentation.formats import Cell, Format, Table, print_tables
from pe_lab.results.suite import threshold

COLUMNS = ("run", "entry", "verdict", "in domain, %", "other than recorded", "what changed")
ENTRY = ("pe", "model", "positions")
SHOWN = 3
"""Changed metrics that are named."""


def verify_again(runs: pl.DataFrame, n: int, pick: int | None, form: Format) -> None:
    """Do n finished runs of each entry (encoding, model and positions) again and print how they
    compare.

    Args:
        pick: the seed by which they are drawn; None: one of the system's entropy, so that whoever
            made the runs cannot know which are done again.

    Raises:
        UsageError: none of these runs is finished.
        RunError: a run differs from what it recorded, or could not be done again.
    """
    # Imported here: torch takes a second.
    from pe_lab.evaluation.again import chosen

    finished = runs.filter(pl.col("state") == "finished")
    if finished.is_empty():
        raise UsageError(
            "verify again: none of these runs is finished: give folders that hold some"
        )
    names = [key for key in ENTRY if key in finished.columns]
    rows = finished.select("path", "task", "splits", *names).to_dicts()
    of = {row["path"]: row for row in rows}
    pick = secrets.randbits(32) if pick is None else pick
    paths = chosen(((_entry(row, names), Path(row["path"])) for row in rows), n, pick)
    drawn = (
        f"{len(paths)} of {counted(len(rows), 'finished run')} drawn; pick={pick} draws them again"
    )
    if form == "table":
        # Before the first, as they take time and may be interrupted.
        console().print(drawn, soft_wrap=True)
    lines: list[dict[str, str]] = []
    for number, path in enumerate(paths, 1):
        row = of[str(path)]
        if form == "table":
            console().print(f"{number} of {len(paths)}: {path}", soft_wrap=True)
        line = {"run": "/".join(path.parts[-3:]), "entry": _entry(row, names)}
        lines.append(line | _outcome(path, row))
    notes = [] if form == "table" else [drawn]
    print_tables(form, [_table(lines)], pl.DataFrame(lines), None, notes, {"pick": pick})
    if wrong := [line for line in lines if line["verdict"] in ("differs", "failed")]:
        raise RunError(
            f"{len(wrong)} of {counted(len(lines), 'run')} done again "
            + ("does" if len(wrong) == 1 else "do")
            + " not come to the recorded numbers, listed above"
        )


def _outcome(path: Path, row: dict[str, Any]) -> dict[str, str]:
    """The verdict on this run, which is done again here, and what is other than recorded."""
    from pe_lab.evaluation.again import again

    limits = {split: threshold(row["task"], split) for split in row["splits"]}
    with TemporaryDirectory(prefix="pe-lab-again-") as folder:
        try:
            found = again(path, Path(folder), limits)
        except Exception as error:
            # Of the run's code, too: the others are done all the same.
            return {"verdict": "failed", "changed": sentence(error)}
    inside = found.changed.get(metric_name(IN_DOMAIN, "error"))
    return {
        "verdict": found.verdict,
        "inside": "" if inside is None else " to ".join(map(percent, inside)),
        "other": ", ".join(found.other),
        "changed": _changed(found.changed, found.splits),
    }


def _table(lines: Sequence[dict[str, str]]) -> Table:
    from pe_lab.evaluation.again import TOLERANCE

    keys = ("run", "entry", "verdict", "inside", "other", "changed")
    return Table(
        title=f"{counted(len(lines), 'run')} done again",
        columns=COLUMNS,
        words=len(COLUMNS),
        rows=[[Cell(line.get(key, "")) for key in keys] for line in lines],
        caption=(
            "equal: every number but the times; agrees: not so, but machine, version or revision "
            "are other than recorded, the in-domain error is within "
            f"{100 * TOLERANCE:.0f} percentage points and every split is on the same side of its "
            "threshold; differs: anything else; failed: it ended without a result this time."
        ),
    )


def _entry(row: dict[str, Any], names: Sequence[str]) -> str:
    return " ".join(str(row[key]) for key in names if row[key])


def _changed(changed: dict[str, tuple[Any, Any]], splits: Sequence[str]) -> str:
    parts = [f"{', '.join(splits)} on the other side of the threshold"] if splits else []
    errors = [name for name in changed if name.endswith("/error")]
    shown = [f"{name} {changed[name][0]} to {changed[name][1]}" for name in errors[:SHOWN]]
    left = len(changed) - len(shown)
    parts += shown + ([f"{left} more numbers"] if left else [])
    return "; ".join(parts)
