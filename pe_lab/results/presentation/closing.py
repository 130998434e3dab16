"""What ``pe-lab suite`` ends with: your entries beside those of the suite."""

from collections.abc import Sequence

import polars as pl

from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.results.leaderboard.scores import WORST, Scores
from pe_lab.results.presentation.formats import Cell, Table

Counts = dict[tuple[str, str], tuple[int, int]]
"""Of each entry and task, the seeds that generalise to every scored split, and all seeds."""


def counts(found: Scores) -> Counts:
    """From the runs of the score at the chosen rate."""
    scored = pl.col("counts") & pl.col("threshold").is_not_null() & (pl.col("split") != IN_DOMAIN)
    runs = (
        found.rows.filter(scored)
        .group_by("entry", "task", "run_id")
        .agg(passed=(pl.col("error").fill_null(WORST) <= pl.col("threshold")).all())
    )
    table = runs.group_by("entry", "task").agg(pl.col("passed").sum(), pl.len())
    return {(entry, task): (k, n) for entry, task, k, n in table.iter_rows()}


def closing_table(found: Scores, yours: Sequence[str]) -> Table:
    """A row for each entry, yours first; of each task k/n in every column of the suite."""
    suite, of = found.suite, counts(found)
    rows = []
    for base in (*yours, *(entry for entry in suite.entries if entry not in yours)):
        cells = [Cell(base if base in suite.entries else f"{base} (yours)")]
        for task in suite.tasks:
            names = [suite.named(base, column) for column in suite.columns]
            found_here = [of.get((name, task)) for name in names if name is not None]
            texts = ["-" if one is None else f"{one[0]}/{one[1]}" for one in found_here]
            cells.append(Cell(", ".join(texts)))
        rows.append(cells)
    return Table(
        title=f"Seeds that generalise to every split, {' and '.join(suite.columns)}",
        columns=["entry", *suite.tasks],
        words=1,
        rows=rows,
        caption="-: not run.",
    )


def closing_sentence(found: Scores, yours: Sequence[str]) -> str:
    """On how many tasks most seeds generalise: of yours, and of the best of the suite's entries."""
    suite, of = found.suite, counts(found)

    def solved(base: str, column: str) -> int | None:
        name = suite.named(base, column)
        known = [of[name, task] for task in suite.tasks if name and (name, task) in of]
        return sum(2 * k > n for k, n in known) if known else None

    said = []
    for column in suite.columns:
        number = {base: solved(base, column) for base in (*yours, *suite.entries)}
        parts = [f"{base} on {n}" for base, n in number.items() if base in yours and n is not None]
        others = {b: n for b, n in number.items() if b not in yours and n is not None}
        if others:
            best = max(others, key=lambda base: others[base])
            parts.append(f"{best}, the best of the suite's, on {others[best]}")
        if parts:
            said.append(f"{column}: {', '.join(parts)}")
    tasks = f"Most seeds generalise, of {len(suite.tasks)} tasks"
    return f"{tasks}, {'; '.join(said)}." if said else "No run is scored yet."
