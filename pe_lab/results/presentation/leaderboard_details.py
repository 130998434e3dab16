"""Further tables and notes of ``pe-lab leaderboard``: other phases, learning rates, several tasks,
and how the runs were made; and claims. docs/method.md defines
what they show."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import polars as pl

from pe_lab.core.console import percent
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.core.output import counted
from pe_lab.results.leaderboard.claims import Decided, learned
from pe_lab.results.leaderboard.entries import OTHER, Place
from pe_lab.results.leaderboard.families import entry_order
from pe_lab.results.leaderboard.rows import Found
from pe_lab.results.leaderboard.scores import Scores, cells_of
from pe_lab.results.presentation.formats import Cell, Table
from pe_lab.results.presentation.leaderboard import (
    UNLEARNED,
    cells_of_task,
    seeds_cell,
)
from pe_lab.results.suite import OTHER_SEEDS, SCORE, TUNING, Suite

MOST = 12
"""Failures that are named one by one."""
MESSAGE = 160
"""Characters of a failure's message."""
VARYING = re.compile(r"\S*[/\d]\S*")
"""Paths and numbers, in which the messages of one kind of failure differ."""


def phases_table(found: Scores, task: str) -> Table | None:
    """A row for each entry and phase beside the score: at more steps; of these
    entries the score too. None where there are none."""
    splits = [IN_DOMAIN, *found.suite.tasks[task].generalises]
    phases = found.rows.filter(pl.col("task") == task)["phase"].unique().sort()
    others: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for phase in phases:
        if phase in (TUNING, SCORE, OTHER, OTHER_SEEDS):
            continue
        for row in cells_of(found, phase).filter(pl.col("task") == task).iter_rows(named=True):
            others.setdefault((row["entry"], phase), {})[row["split"]] = row
    if not others:
        return None
    begun = {entry for entry, _ in others}
    scored: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for (entry, split), row in cells_of_task(found, task).items():
        if entry in begun:
            scored.setdefault((entry, SCORE), {})[split] = row
    cells = scored | others
    entries, controls = entry_order(found, [task])
    rows = [
        [Cell(entry), Cell(phase), *(seeds_cell(cells[entry, phase].get(s), "") for s in splits)]
        for entry in (*entries, *controls)
        for phase in dict.fromkeys(phase for name, phase in cells if name == entry)
    ]
    return Table(f"{task}: other phases", ["entry", "phase", *splits], 2, rows)


def tuning_table(found: Scores, task: str, shown: Collection[str] | None = None) -> Table | None:
    """A row an entry, a column a learning rate: the in-domain error of the tuning runs, the
    chosen rate marked; None where nothing was tuned."""
    rates = found.suite.protocol.all_rates
    tuning, chosen = _tuned(found, task)
    if not chosen:
        return None
    means = {
        (entry, lr): (error, failed)
        for entry, lr, error, failed in tuning.group_by("entry", "lr")
        .agg(pl.col("error").mean(), failed=(pl.col("state") == "failed").any())
        .iter_rows()
    }

    def cell(entry: str, lr: float) -> Cell:
        error, failed = means.get((entry, lr), (None, False))
        return Cell("failed" if failed else percent(error), chosen[entry] == lr)

    rows = [e for e in chosen if shown is None or e in shown or e in entry_order(found, [task])[1]]
    return Table(
        title=f"{task}: in-domain error in % at each learning rate, tuning seeds",
        columns=["entry", *(f"{rate:g}" for rate in rates)],
        words=1,
        rows=[[Cell(entry), *(cell(entry, rate) for rate in rates)] for entry in rows],
        caption=grid_ends(found, task),
        best="the rate that is scored.",
    )


def at_ends(found: Scores, tasks: Sequence[str]) -> tuple[int, int]:
    """How many entries have the least or the greatest rate on a task, of how many tuned."""
    rates = found.suite.protocol.all_rates
    chosen = [rate for task in tasks for rate in _tuned(found, task)[1].values()]
    return sum(rate in (min(rates), max(rates)) for rate in chosen), len(chosen)


def grid_ends(found: Scores, task: str) -> str:
    """A sentence on the entries with the least or the greatest rate; empty if there are none."""
    rates = found.suite.protocol.all_rates
    _, chosen = _tuned(found, task)
    outer = [entry for entry, rate in chosen.items() if rate in (min(rates), max(rates))]
    if not outer:
        return ""
    return (
        f"{len(outer)} of {len(chosen)} entries have the least or the greatest rate; a better one "
        f"may lie beyond: {', '.join(outer)}."
    )


def _tuned(found: Scores, task: str) -> tuple[pl.DataFrame, dict[str, float | None]]:
    """The tuning runs in domain, and the rate of each of their entries in the order of tables."""
    tuning = found.rows.filter(
        (pl.col("task") == task) & (pl.col("phase") == TUNING) & (pl.col("split") == IN_DOMAIN)
    )
    chosen = dict(tuning.select("entry", "chosen").unique().iter_rows())
    entries, controls = entry_order(found, [task])
    return tuning, {entry: chosen[entry] for entry in (*entries, *controls) if entry in chosen}


def provenance(found: Scores, tasks: Sequence[str], digest: str | None) -> list[str]:
    """One line each: failed runs, runs left out, planned ones, how many runs on which machines, and
    the digests of suite and file.

    Args:
        digest: of the shipped file. None if no file ships.
    """
    rows = found.rows.filter(pl.col("task").is_in(tasks))
    left = rows.filter((pl.col("phase") == SCORE) & ~pl.col("counts"))
    notes = [*failures(rows), *found.notes]
    if n := left["run_id"].n_unique():
        of = ", ".join(left["task"].unique(maintain_order=True))
        notes.append(f"{counted(n, 'run')} of {of} excluded: the rate was not the tuned one")
    counting = rows.filter("counts").unique("run_id")
    notes += [planned_note(counting["planned"].to_list())] if len(counting) else []
    shipped = digest or "none: only the runs of runs_dir are shown"
    return [*notes, *_made(rows), f"suite {found.suite.title}, shipped results {shipped}"]


def planned_note(digests: Sequence[str | None]) -> str:
    """How many runs are planned, as a sentence.

    Args:
        digests: of each run's claim; None: exploratory.
    """
    runs, named = counted(len(digests), "run"), [digest for digest in digests if digest]
    if not named:
        return f"exploratory: no claim names any of these {runs}"
    return f"planned: {len(named)} of {runs}, by {counted(len({*named}), 'claim')}"


def absent_note(found: Scores, tasks: Sequence[str], tuning: bool) -> list[str]:
    """A line on the tasks without scored runs, or without ``tuning`` runs."""
    rows = found.rows.filter(pl.col("phase") == TUNING) if tuning else found.cells
    left = [task for task in tasks if task not in set(rows["task"])]
    return [f"not {'tuned' if tuning else 'scored'} yet: {', '.join(left)}"] if left else []


def lacking(found: Scores, here: Found, tasks: Sequence[str]) -> list[Place]:
    """The runs of these tasks that lacked memory or disk space and have no other result."""
    known = {*found.rows["run_id"]}
    return [of for run, of in here.lacking.items() if of.task in tasks and run not in known]


def left_out(found: Scores, here: Found, tasks: Sequence[str]) -> list[str]:
    """A line for each kind of run that is not counted."""
    runs = lacking(found, here, tasks)
    notes = [_lacking_note(runs, found.suite)] if runs else []
    return [*notes, *_broken_notes(here.broken), *here.versions]


def _lacking_note(runs: Sequence[Place], suite: Suite) -> str:
    """Names runs that failed because memory or disk space ran out, and have no other result."""
    groups = Counter(f"{run.entry} on {run.task}" for run in runs).most_common()
    names = [f"{name}, {counted(n, 'run')}" for name, n in groups[:MOST]]
    names += [f"and {len(groups) - MOST} more entries"] if len(groups) > MOST else []
    return (
        f"not counted, since memory or room was missing: {'; '.join(names)}; "
        f"pe-lab suite {suite.name} trains what is missing"
    )


def _broken_notes(sentences: Sequence[str]) -> Iterator[str]:
    """A line for each run that cannot be read, or is a copy of another."""
    yield from (f"not counted: {sentence}" for sentence in sentences[:MOST])
    if len(sentences) > MOST:
        yield f"not counted: {len(sentences) - MOST} more, which pe-lab results lists"


def failures(rows: pl.DataFrame) -> Iterator[str]:
    """A line for each entry and task with failed runs: how many, and the first message."""
    failed = rows.filter((pl.col("state") == "failed") & (pl.col("split") == IN_DOMAIN))
    groups = failed.group_by("task", "entry", maintain_order=True).agg(
        pl.len(),
        pl.col("message").drop_nulls().unique(maintain_order=True),
        pl.col("phase").unique(maintain_order=True),
    )
    for task, entry, count, messages, phases in groups.head(MOST).iter_rows():
        text = " ".join(messages[0].split()) if messages else "no message"
        text = text[:MESSAGE] + (".." if len(text) > MESSAGE else "")
        kinds = {VARYING.sub("", message) for message in messages}
        if len(kinds) > 1:
            text += f" (the first of {len(kinds)} kinds, to=FILE.parquet has all)"
        yield f"failed: {entry} on {task}, {counted(count, 'run')} ({', '.join(phases)}): {text}"
    if len(groups) > MOST:
        yield f"{len(groups) - MOST} more entries with failed runs: all are in to=FILE.parquet"


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
    yield f"{counted(len(runs), 'run')} ({', '.join(parts)}), {hours:.1f} core-hours"
    for column in ("machine", "processor", "revision", "torch"):
        counts = runs[column].drop_nulls().value_counts(sort=True)
        if len(counts):
            values = [f"{value} ({n})" for value, n in counts.head(6).iter_rows()]
            values += [f"and {len(counts) - 6} more"] if len(counts) > 6 else []
            unknown = runs[column].null_count()
            values += [f"not recorded ({unknown})"] if unknown else []
            yield f"{column}: {', '.join(values)}"


NAMED = 4
"""Most encodings that a row names beside the one claimed to be better."""


def claims_table(decided: Sequence[Decided]) -> Table:
    """A row for each claim."""
    lines = []
    for one in decided:
        a, *others = one.claim.encodings
        rows = [row for row in one.rows.iter_rows(named=True) if row["n_a"] and row["n_b"]]
        p: Any = one.rows["p"].max()
        counts = ""
        if rows:
            least, most = (
                f"{row[f'k_{side}']}/{row[f'n_{side}']}"
                for side, row in (
                    ("a", min(rows, key=lambda row: row["k_a"] / row["n_a"])),
                    ("b", max(rows, key=lambda row: row["k_b"] / row["n_b"])),
                )
            )
            counts = f"{least}, others ≤ {most}"
        of = ", ".join(others) if len(others) <= NAMED else f"{len(others)} others"
        fit = {row["b"] for row in rows if learned(row, "b")}
        tasks = "; ".join(f"{t}: {', '.join(splits)}" for t, splits in one.claim.tasks.items())
        said = one.verdict + (", exploratory" if one.exploratory else "")
        words = (one.name, f"{a} over {of}", tasks, counts,
                 f"{len(fit)} of {len(others)}", _p_text(p), said)  # fmt: skip
        lines.append([Cell(word) for word in words])
    head = ("claim", "encodings", "task: splits", "seeds that generalise",
            "others that fit", "largest p", "verdict")  # fmt: skip
    caption = (
        "Lowest success rate of the encoding claimed to be better, and the highest of the others. "
        "Others that fit: how many others fit the task in at least half of their seeds. "
        "claim=NAME: each test."
    )
    return Table("preregistered claims", head, len(head), lines, caption)


def details_table(one: Decided) -> Table:
    """A row for each test of a claim, errors in %."""
    lines = []
    for row in one.rows.iter_rows(named=True):
        sides = [
            f"{row[f'k_{side}']}/{row[f'n_{side}']}{'' if learned(row, side) else UNLEARNED}, "
            f"median {percent(row[f'median_{side}'])}"
            for side in "ab"
        ]
        p = _p_text(row["p"])
        task = f"{row['task']}, {row['split']} (up to {percent(row['threshold'])} %)"
        words = (task, row["a"], sides[0], row["b"], sides[1], p, row["verdict"])
        lines.append([Cell(word) for word in words])
    head = ("task, split (threshold)", "a", "a generalises", "b", "b generalises", "p", "verdict")
    caption = (
        f"p: Fisher's exact test, one-sided; supported at {one.claim.level:g} or less. "
        f"{UNLEARNED}: fewer than half of these seeds fit the task in domain."
    )
    return Table(f"{one.name}: {one.claim.hypothesis}", head, len(head), lines, caption)


def _p_text(p: Any) -> str:
    return "" if p is None else f"{p:.2g}"
