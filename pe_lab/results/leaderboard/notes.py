"""What stands below the tables of a leaderboard: failures, how it was made."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import polars as pl

from pe_lab.common.output import counted
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.results.claims import planned_note
from pe_lab.results.leaderboard.entries import OTHER, Place
from pe_lab.results.leaderboard.scores import Scores
from pe_lab.results.suite import OTHER_SEEDS, SCORE, TUNING, Suite

MOST = 12
"""Failures that are named one by one."""
MESSAGE = 160
"""Characters of a failure's message."""
VARYING = re.compile(r"\S*[/\d]\S*")
"""Paths and numbers, in which the messages of one kind of failure differ."""


def closing_notes(found: Scores, tasks: list[str], digest: str | None) -> list[str]:
    """One line each: failed runs, planned ones, how many runs on which
    machines, and the digests of suite and file.

    Args:
        digest: of the shipped file; None: there is none.
    """
    rows = found.rows.filter(pl.col("task").is_in(tasks))
    return [
        *_failures(rows),
        *found.notes,
        *_at_other_rates(rows),
        *_planned(rows),
        *_made(rows),
        f"suite {found.suite.title}, shipped results "
        + (digest or "none: only the runs of runs_dir are shown"),
    ]


def _at_other_rates(rows: pl.DataFrame) -> Iterator[str]:
    left = rows.filter((pl.col("phase") == SCORE) & ~pl.col("counts"))
    if n := left["run_id"].n_unique():
        of = ", ".join(left["task"].unique(maintain_order=True))
        yield f"{counted(n, 'run')} of {of} at a rate that tuning did not choose: not counted"


def absent_note(found: Scores, tasks: Sequence[str], tuning: bool) -> list[str]:
    """A line on the tasks without scored runs, or without ``tuning`` runs."""
    rows = found.rows.filter(pl.col("phase") == TUNING) if tuning else found.cells
    left = [task for task in tasks if task not in set(rows["task"])]
    return [f"not {'tuned' if tuning else 'scored'} yet: {', '.join(left)}"] if left else []


def lacking_note(runs: Sequence[Place], suite: Suite) -> str:
    """Of runs that failed for want of memory or room, and have no other result."""
    groups = Counter(f"{run.entry} on {run.task}" for run in runs).most_common()
    names = [f"{name}, {counted(n, 'run')}" for name, n in groups[:MOST]]
    names += [f"and {len(groups) - MOST} more entries"] if len(groups) > MOST else []
    return (
        f"not counted, since memory or room was missing: {'; '.join(names)}; "
        f"pe-lab suite {suite.name} trains what is missing"
    )


def broken_notes(sentences: Sequence[str]) -> Iterator[str]:
    """Of runs that cannot be read, or are copies of others."""
    for sentence in sentences[:MOST]:
        yield f"not counted: {sentence}"
    if len(sentences) > MOST:
        yield f"not counted: {len(sentences) - MOST} more, which pe-lab results lists"


def _failures(rows: pl.DataFrame) -> Iterator[str]:
    failed = rows.filter((pl.col("state") == "failed") & (pl.col("split") == IN_DOMAIN))
    groups = failed.group_by("task", "entry", maintain_order=True).agg(
        pl.len(),
        pl.col("message").drop_nulls().unique(maintain_order=True),
        pl.col("phase").unique(maintain_order=True),
    )
    for n, (task, entry, count, messages, phases) in enumerate(groups.iter_rows()):
        if n == MOST:
            yield f"{len(groups) - MOST} more entries with failed runs: all are in to=FILE.parquet"
            return
        text = " ".join(messages[0].split()) if messages else "no message"
        text = text[:MESSAGE] + (".." if len(text) > MESSAGE else "")
        kinds = {VARYING.sub("", message) for message in messages}
        if len(kinds) > 1:
            text += f" (the first of {len(kinds)} kinds, to=FILE.parquet has all)"
        yield f"failed: {entry} on {task}, {counted(count, 'run')} ({', '.join(phases)}): {text}"


def _planned(rows: pl.DataFrame) -> Iterator[str]:
    runs = rows.filter("counts").unique("run_id")
    if len(runs):
        yield planned_note(runs["planned"].to_list())


def _made(rows: pl.DataFrame) -> Iterator[str]:
    if rows.is_empty():
        return
    runs = rows.unique("run_id", keep="first", maintain_order=True)
    phases = dict(runs.group_by("phase").len().iter_rows())
    named = {TUNING: "tuning", SCORE: "score", OTHER_SEEDS: "at other seeds"}
    named[OTHER] = "not of the protocol"
    parts = [f"{phases.pop(phase)} {word}" for phase, word in named.items() if phase in phases]
    parts += [f"{n} {phase}" for phase, n in sorted(phases.items())]
    # The kind of machine names the threads, if these are several.
    threads = pl.col("machine").str.extract(r"(\d+) threads$").cast(pl.Int64).fill_null(1)
    seconds = pl.sum_horizontal("train_s", "measure_s") * threads
    hours = runs.select(seconds.sum()).item() / 3600
    yield f"{counted(len(runs), 'run')} ({', '.join(parts)}), {hours:.1f} core-hours by the clock"
    for column in ("machine", "processor", "revision", "torch"):
        counts = runs[column].drop_nulls().value_counts(sort=True)
        if len(counts):
            values = [f"{value} ({n})" for value, n in counts.head(6).iter_rows()]
            more = [f"and {len(counts) - 6} more"] if len(counts) > 6 else []
            unknown = runs[column].null_count()
            more += [f"not recorded ({unknown})"] if unknown else []
            yield f"{column}: {', '.join([*values, *more])}"
