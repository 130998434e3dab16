"""The tables of ``pe-lab leaderboard`` of one task: by split, on one split, and other phases."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import polars as pl

from pe_lab.common.console import percent
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.results.cell_text import CLUSTERS
from pe_lab.results.formats import Cell, Table
from pe_lab.results.leaderboard.entries import OTHER
from pe_lab.results.leaderboard.families import ties
from pe_lab.results.leaderboard.order import SUITE
from pe_lab.results.leaderboard.scores import Scores, cells_of
from pe_lab.results.leaderboard.texts import (
    GUESSING,
    TIME,
    cells_of_task,
    clusters_note,
    display_name,
    entry_order,
    k_of_n,
    letter_ranges,
    missing_text,
    rate_chosen,
    run_or_not,
    seeds_text,
    times_text,
)
from pe_lab.results.suite import CAPACITY, OTHER_SEEDS, SCORE, TUNING

ANSWERS = "answers"
TIES = (
    "entries that share no letter differ, others cannot be told apart (exact test of the share of "
    "splits that a run generalises to, at 5 % after Holm over all pairs; a-d: a, b, c and d)"
)


def task_table(found: Scores, task: str, sort: str | None = None) -> Table:
    """A row an entry, a column a split: how many seeds generalise to it.

    Args:
        sort: a split, or ``suite``; see ``_by_split``.
    """
    one = found.suite.tasks[task]
    splits = [IN_DOMAIN, *one.generalises]
    entries, controls = entry_order(found, [task])
    cells = {(row["entry"], row["split"]): row for row in cells_of_task(found, task)}
    marks = ties(found, [task], entries).letters
    run, not_run = run_or_not(found, entries, task)

    def line(entry: str) -> list[Cell]:
        first = cells.get((entry, IN_DOMAIN))
        missing = missing_text(found, entry, [task])
        shown = [Cell(seeds_text(cells.get((entry, split)), missing)) for split in splits]
        return [
            Cell(display_name(found, entry, [task])),
            Cell(letter_ranges(marks.get(entry, ""))),
            Cell(rate_chosen(first)),
            *shown,
            Cell(times_text(first["cost"], first["near"]) if first else ""),
        ]

    columns = ["entry", "tie", "rate", f"fits <= {percent(one.fits)}"]
    columns += [f"{split} <= {percent(limit)}" for split, limit in one.generalises.items()]
    rows = [line(entry) for entry in _by_split(run, cells, [*one.generalises], sort)]
    shown = [n for n, name in enumerate(columns) if name != "tie" or marks]
    shown.append(len(columns))
    columns.append("time")
    closing = [line(entry) for entry in controls]
    # In other phases a run may be measured on another split as in_domain.
    of_task = found.rows.filter(
        (pl.col("task") == task) & pl.col("phase").is_in([TUNING, SCORE])
    ).drop_nulls("n")
    of_split = of_task.unique("split").select("split", "n", "guess")
    measured = {split: (n, guess) for split, n, guess in of_split.iter_rows()}
    answers, guesses = zip(*(measured.get(split, (None, None)) for split in splits), strict=True)
    if any(answers):
        texts = {
            GUESSING: ["" if guess is None else percent(guess) for guess in guesses],
            ANSWERS: ["" if n is None else str(n) for n in answers],
        }
        closing += [[Cell(word) for word in (name, "", "", *of, "")] for name, of in texts.items()]
    caption = (
        "k/n seeds with an error at or below the threshold of the column (95 % Wilson interval in "
        f"%), and the median error in %; rate: the learning rate that tuning chose; {TIME}; "
        f"{ANSWERS}: how many are measured in each run; order: by "
        + ("the mean of k/n over the scored splits" if sort is None else sort)
    )
    if marks:
        caption += f"; tie: {TIES}"
    return Table(
        title=f"{task} ({one.family})",
        columns=[columns[n] for n in shown],
        words=len(shown) - len(splits) - 1,
        rows=[[row[n] for n in shown] for row in rows],
        caption=f"{caption}{clusters_note(cells_of_task(found, task))}.{not_run}",
        closing=[[row[n] for n in shown] for row in closing],
    )


def _by_split(
    entries: Sequence[str],
    cells: Mapping[tuple[str, str], Mapping[str, Any]],
    splits: Sequence[str],
    sort: str | None,
) -> list[str]:
    """The entries, those first whose seeds generalise most: to the split ``sort``, else on average
    over these splits; on a tie those with the lower median error there."""
    if sort == SUITE:
        return list(entries)
    of = splits if sort is None else [sort]

    def key(entry: str) -> tuple[float, float]:
        rows = [cells[entry, split] for split in of if (entry, split) in cells]
        if not rows:
            return 1, 0
        return -fmean(row["p_generalises"] for row in rows), fmean(row["median"] for row in rows)

    return sorted(entries, key=key)


def split_table(found: Scores, task: str, split: str) -> Table:
    """A row an entry: all that is known of its errors on one split."""
    limit = found.suite.tasks[task].threshold(split)
    entries, controls = entry_order(found, [task])
    cells = {row["entry"]: row for row in cells_of_task(found, task) if row["split"] == split}
    placed = {(entry, split): row for entry, row in cells.items()}
    run, not_run = run_or_not(found, entries, task)
    ranked = _by_split(run, placed, [split], None)

    def line(entry: str) -> list[Cell]:
        row = cells.get(entry)
        name = Cell(display_name(found, entry, [task]))
        if row is None:
            return [name, Cell(missing_text(found, entry, [task])), *[Cell("")] * 6]
        mean = "" if row["mean"] is None else percent(row["mean"])
        spread = "" if row["sd"] is None else f" ± {percent(row['sd'])}"
        return [
            name,
            Cell(rate_chosen(row)),
            Cell(k_of_n(row)),
            Cell(percent(row["median"]) if row["measured"] else "-"),
            Cell((CLUSTERS if row["clusters"] else "") + mean + spread),
            Cell(str(row["n"])),
            Cell(str(row["failed"] or "")),
            Cell(times_text(row["cost"], row["near"])),
        ]

    columns = ["entry", "rate", "k/n", "median", "mean ± sd", "seeds", "failed", "time"]
    closing = [line(entry) for entry in controls]
    guess = next((row["guess"] for row in cells.values() if row["guess"] is not None), None)
    if guess is not None:
        closing.append([Cell(GUESSING), Cell(""), Cell(""), Cell(percent(guess)), *[Cell("")] * 4])
    caption = (
        f"k/n seeds with an error of at most {percent(limit or 0)} % (95 % Wilson interval in %), "
        f"errors in %; rate: the learning rate that tuning chose; {TIME}"
        f"{clusters_note(list(cells.values()))}.{not_run}"
    )
    rows = [line(entry) for entry in ranked]
    return Table(f"{task}, {split}", columns, 2, rows, caption, closing=closing)


def phases_table(found: Scores, task: str) -> Table | None:
    """A row for each entry and phase beside the score: error at 2 and 4 times the steps, trained at
    the split, in equal time or with equal parameters; of these entries the score too. None where
    there are none."""
    splits = [IN_DOMAIN, *found.suite.tasks[task].generalises]
    entries, controls = entry_order(found, [task])
    of_task = found.rows.filter(pl.col("task") == task)
    apart = (TUNING, SCORE, OTHER, OTHER_SEEDS)
    phases = [phase for phase in of_task["phase"].unique().sort() if phase not in apart]
    cells: dict[tuple[str, str], dict[str, Any]] = {}
    for phase in phases:
        shown = CAPACITY.strip(":") if phase.startswith(CAPACITY) else phase
        for row in cells_of(found, phase).filter(pl.col("task") == task).iter_rows(named=True):
            cells.setdefault((row["entry"], shown), {})[row["split"]] = row
    if not cells:
        return None
    scored = [row for row in cells_of_task(found, task) if row["entry"] in {e for e, _ in cells}]
    of_score: dict[tuple[str, str], dict[str, Any]] = {}
    for row in scored:
        of_score.setdefault((row["entry"], SCORE), {})[row["split"]] = row
    cells = of_score | cells
    rows = []
    for entry in (*entries, *controls):
        for phase in dict.fromkeys(phase for name, phase in cells if name == entry):
            of = cells[entry, phase]
            rows.append(
                [Cell(entry), Cell(phase), *(Cell(seeds_text(of.get(s), "")) for s in splits)]
            )
    return Table(
        title=f"{task}: other phases",
        columns=["entry", "phase", *splits],
        words=2,
        rows=rows,
        caption=(
            "All at the rate that tuning chose for the entry. score: at the steps of the task; "
            "steps_x2, steps_x4: at so many times these; capacity: trained on what the split "
            "measures; equal_time: as many steps as take the time of rope's; equal_parameters: "
            "with the d_ff at which the model has as many parameters as with rope. k/n seeds with "
            "an error at or below the threshold (95 % Wilson interval in %), and the median error "
            "in %."
        ),
    )
