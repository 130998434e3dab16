"""Entries over all tasks: the error in that of guessing, and how often it is lower than rope's."""

from collections.abc import Sequence

import polars as pl

from pe_lab.common.metrics import IN_DOMAIN
from pe_lab.results.formats import Cell, Table
from pe_lab.results.leaderboard.scores import WORST, Scores
from pe_lab.results.leaderboard.texts import NOT_RUN, PARTLY, display_name, entry_order
from pe_lab.results.statistics.across_tasks import (
    ByTask,
    improvement_interval,
    iqm,
    performance_profile,
    probability_of_improvement,
    stratified_bootstrap,
)

BASELINE = "rope"
TAUS = (0.02, 0.1, 0.5)
"""Of the errors in that of guessing, for the profile's columns."""


def normalised(found: Scores, tasks: Sequence[str]) -> dict[str, ByTask]:
    """entry -> task -> for each run the error over that of guessing, the mean over the scored
    splits, at most 1."""
    scored = found.rows.filter(
        pl.col("counts")
        & pl.col("threshold").is_not_null()
        & (pl.col("split") != IN_DOMAIN)
        & pl.col("task").is_in(list(tasks))
    )
    guess = scored.group_by("task", "split").agg(usual=pl.col("guess").median())
    # A run that failed did not measure what guessing gives.
    share = pl.col("error").fill_null(WORST) / pl.coalesce("guess", "usual", pl.lit(WORST))
    runs = (
        scored.join(guess, on=["task", "split"], how="left", maintain_order="left")
        .group_by("entry", "task", "run_id", maintain_order=True)
        .agg(share.clip(upper_bound=1).mean().alias("share"))
    )
    table: dict[str, dict[str, list[float]]] = {}
    for entry, task, value in runs.select("entry", "task", "share").iter_rows():
        table.setdefault(entry, {}).setdefault(task, []).append(value)
    return dict(table)


def across_table(found: Scores, tasks: Sequence[str]) -> Table:
    """A row an entry: interquartile mean, probability of improvement over rope, profile."""
    values = normalised(found, tasks)
    run = sorted({task for of in values.values() for task in of}, key=list(tasks).index)
    baseline = values.get(BASELINE, {})

    def line(entry: str) -> list[Cell]:
        name, of = Cell(display_name(found, entry, tasks)), values.get(entry)
        if not of:
            return [name, Cell(NOT_RUN), *[Cell("")] * (2 + len(TAUS))]
        mean, interval = iqm(of), stratified_bootstrap(of)
        better = ""
        if entry != BASELINE and set(of) & set(baseline):
            chance = improvement_interval(of, baseline)
            better = f"{probability_of_improvement(of, baseline):.2f}{_interval(chance)}"
        profile = performance_profile(of, TAUS)
        covered = f"{len(of)}{PARTLY if len(of) < len(run) else ''}"
        shares = [Cell(f"{share:.2f}") for share in profile]
        return [
            name,
            Cell(covered),
            Cell(f"{mean:.2f}{_interval(interval)}"),
            Cell(better),
            *shares,
        ]

    entries, controls = entry_order(found, tasks)
    suite = found.suite
    return Table(
        title=f"error in that of guessing, over tasks, suite {suite.version}",
        columns=["entry", "tasks", "IQM", f"P(lower than {BASELINE})", *(f"<= {t}" for t in TAUS)],
        words=1,
        rows=[line(entry) for entry in entries],
        caption=(
            f"of the tasks {', '.join(run) or 'none'} ({PARTLY}: an entry without some of them is "
            "not comparable with the others): IQM, the interquartile mean over runs of the error "
            "in that of guessing, at most 1, the mean over scored splits (95 % interval, "
            "stratified bootstrap; of few seeds it is too narrow: it covers about 86 % with 3, "
            f"91 % with 8); P(lower than {BASELINE}), the probability that a run of the entry has "
            "the lower error, ties half; <= 0.1, the share of runs whose error is at most a tenth "
            "of guessing (performance profile). A run that failed has the error of guessing. This "
            "is no ranking: tasks of a family count as several."
        ),
        closing=[line(entry) for entry in controls],
    )


def _interval(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f" ({interval[0]:.2f}..{interval[1]:.2f})"
