"""The learning rates of a task: what tuning measured at each, and which it chose."""

import polars as pl

from pe_lab.common.console import percent
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.results.formats import Cell, Table
from pe_lab.results.leaderboard.scores import Scores
from pe_lab.results.leaderboard.texts import entry_order
from pe_lab.results.suite import TUNING

CAPTION = "The mean over the tuning seeds; out-of-domain errors are not read."


def tuning_table(found: Scores, task: str) -> Table | None:
    """A row an entry, a column a learning rate: the in-domain error of the tuning runs, the
    chosen rate marked; None where nothing was tuned."""
    rates = found.suite.protocol.rates
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

    return Table(
        title=f"{task}: in-domain error in % at each learning rate, tuning seeds",
        columns=["entry", *(f"{rate:g}" for rate in rates)],
        words=1,
        rows=[[Cell(entry), *(cell(entry, rate) for rate in rates)] for entry in chosen],
        caption=f"{CAPTION} {grid_ends(found, task)}".strip(),
        best="the rate that is scored: the lowest error, on a tie the lowest loss.",
    )


def grid_ends(found: Scores, task: str) -> str:
    """A sentence on the entries with the least or the greatest rate; empty if there are none."""
    rates = found.suite.protocol.rates
    _, chosen = _tuned(found, task)
    outer = [entry for entry, rate in chosen.items() if rate in (min(rates), max(rates))]
    if not outer:
        return ""
    return (
        f"The least or the greatest rate was chosen for {len(outer)} of {len(chosen)}, so that a "
        f"better one may lie beyond: {', '.join(outer)}."
    )


def _tuned(found: Scores, task: str) -> tuple[pl.DataFrame, dict[str, float | None]]:
    """The tuning runs in domain, and the rate of each of their entries in the order of tables."""
    tuning = found.rows.filter(
        (pl.col("task") == task) & (pl.col("phase") == TUNING) & (pl.col("split") == IN_DOMAIN)
    )
    chosen = dict(tuning.select("entry", "chosen").unique().iter_rows())
    entries, controls = entry_order(found, [task])
    return tuning, {entry: chosen[entry] for entry in (*entries, *controls) if entry in chosen}
