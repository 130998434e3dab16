"""What stands in the cells of a leaderboard's tables."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from pe_lab.common.console import percent
from pe_lab.results.cell_text import CLUSTERS
from pe_lab.results.leaderboard.families import Rate
from pe_lab.results.leaderboard.scores import Scores
from pe_lab.results.suite import TUNING

NOT_RUN = "not run"
YOURS = "(yours)"
NOT_TUNED = "(not tuned)"
GUESSING = "guessing"
UNLEARNED = "°"
"""The mark of a rate that a task counts in which most runs have not learned in domain."""
UNLEARNED_NOTE = (
    UNLEARNED
    + ": fewer than half of the seeds fit {task} in domain: it is not learned, which says "
    "nothing of generalisation"
)
TIME = (
    "time: of training by the clock, divided by that of rope with the same seed on the same kind "
    "of machine within an hour (~: at another time, with other work beside)"
)


def entry_order(found: Scores, tasks: Sequence[str]) -> tuple[list[str], list[str]]:
    """The entries and the controls: those of the suite in its order, run or not, then others that
    are tuned or scored."""
    suite = found.suite
    known = [*suite.encodings, *suite.controls]
    begun = (pl.col("phase") == TUNING) | pl.col("counts")
    run = found.rows.filter(begun & pl.col("task").is_in(tasks))["entry"].unique()
    others = sorted(entry for entry in run if entry not in known)
    plain = [name for name in suite.encodings if name != "none"]
    return [*plain, *others], ["none", *suite.controls]


def cells_of_task(found: Scores, task: str) -> list[dict[str, Any]]:
    """The cells of a task, as rows."""
    return list(found.cells.filter(pl.col("task") == task).iter_rows(named=True))


def display_name(found: Scores, entry: str, tasks: Iterable[str]) -> str:
    """The entry, marked where its runs are the reader's (``(yours)``) or some of them are
    (``(+12 yours)``), and where the rate of a score was not tuned as the protocol has it."""
    chosen = (pl.col("entry") == entry) & pl.col("task").is_in(list(tasks))
    begun = (pl.col("phase") == TUNING) | pl.col("counts")
    runs = found.rows.filter(chosen & begun).unique("run_id")["shipped"]
    yours = int((~runs).sum())
    marks = [YOURS if yours == len(runs) else f"(+{yours} yours)"] if yours else []
    untuned = found.cells.filter(chosen & (pl.col("rates") < len(found.suite.protocol.rates)))
    return " ".join([entry, *marks, *([NOT_TUNED] if len(untuned) else ())])


def letter_ranges(letters: str) -> str:
    """``abcdf`` as ``a-d f``."""
    runs: list[str] = []
    for letter in letters:
        if runs and ord(letter) == ord(runs[-1][-1]) + 1:
            runs[-1] += letter
        else:
            runs.append(letter)
    if max(map(len, runs), default=0) < 3:
        return letters
    return " ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else run for run in runs)


def missing_text(found: Scores, entry: str, tasks: Iterable[str]) -> str:
    """What stands where an entry has no score: failed, not scored (tuned only) or not run."""
    rows = found.rows.filter(
        (pl.col("entry") == entry)
        & pl.col("task").is_in(list(tasks))
        & ((pl.col("phase") == TUNING) | pl.col("counts"))
    )
    if rows.is_empty():
        return NOT_RUN
    return "not scored" if (rows["state"] == "finished").any() else "failed"


def run_or_not(found: Scores, entries: Sequence[str], task: str) -> tuple[list[str], str]:
    """The entries with a run of the task, all where there is none, and a sentence on the rest."""
    run = [entry for entry in entries if missing_text(found, entry, [task]) != NOT_RUN]
    left = [entry for entry in entries if entry not in run]
    return (run, f" Not run: {', '.join(left)}." if left else "") if run else (list(entries), "")


def rate_text(rate: Rate | None, missing: str) -> str:
    """``69° (40..88) 1/2``: in %, whether a task of it is not learned, the interval, and the tasks
    run of all, unless these are all."""
    if rate is None:
        return missing
    partly = f" {rate.tasks}/{rate.of}" if rate.tasks < rate.of else ""
    return f"{marked_share(rate)} ({interval_text(rate)}){partly}"


def marked_share(rate: Rate) -> str:
    """``69°``: in %, and whether a task of it is not learned."""
    return share_text(rate.share) + (UNLEARNED if rate.unlearned else "")


def interval_text(rate: Rate) -> str:
    """``40..88``, in %."""
    return f"{100 * rate.low:.0f}..{100 * rate.high:.0f}"


def share_text(share: float) -> str:
    """In %; 0 and 100 stand for none and all."""
    if 0 < share < 1:
        return "<1" if share < 0.005 else ">99" if share > 0.995 else f"{100 * share:.0f}"
    return f"{100 * share:.0f}"


def k_of_n(row: Mapping[str, Any]) -> str:
    """``7/8 (53..98)``."""
    return f"{row['k']}/{row['n']} ({100 * row['p_low']:.0f}..{100 * row['p_high']:.0f})"


def seeds_text(row: Mapping[str, Any] | None, missing: str) -> str:
    """``7/8 (53..98) 0.0``: with the median."""
    if row is None:
        return missing
    median = percent(row["median"]) if row["measured"] else "-"
    return f"{k_of_n(row)} {median}{CLUSTERS if row['clusters'] else ''}"


def rate_chosen(row: Mapping[str, Any] | None) -> str:
    """The learning rate of a score."""
    return "" if row is None else f"{row['lr']:g}"


def times_text(value: float | None, near: bool | None) -> str:
    """A cost relative to rope's; ``~1.61`` if rope's runs are of another time."""
    return "" if value is None else f"{'' if near else '~'}{value:.2f}"


def clusters_note(rows: Iterable[Mapping[str, Any]]) -> str:
    """The mark of two clusters explained, where a row has it."""
    if not any(row["clusters"] for row in rows):
        return ""
    return f"; {CLUSTERS}: the seeds fall into two clusters, which a mean does not describe"
