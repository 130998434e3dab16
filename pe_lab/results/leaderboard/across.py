"""Entries over all tasks: the error relative to guessing, and how often it is lower than rope's."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import polars as pl

from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.results.formats import Cell, Table
from pe_lab.results.leaderboard.scores import WORST, Scores
from pe_lab.results.leaderboard.texts import display_name, entry_order, letter_ranges
from pe_lab.results.statistics.across_tasks import (
    ByTask,
    improvement_interval,
    iqm,
    performance_profile,
    probability_of_improvement,
    stratified_bootstrap,
)
from pe_lab.results.statistics.letters import compact_letters
from pe_lab.results.statistics.pairs import EXACT, Pair, pairs
from pe_lab.results.statistics.power import LEVEL

BASELINE = "rope"
TAUS = (0.02, 0.1, 0.5)
"""Of the errors relative to guessing, for the profile's columns."""
TEST = (
    f"exact test of the runs' errors, normal where a pair has more than {EXACT} runs of a task, "
    "stratified by task, at 5 % after Holm over all pairs: it speaks of other seeds on these "
    "tasks, not of other tasks"
)
IN_PAIRS = 15
"""Entries up to which pairs are letters and cells; of more only their number can be read."""


def normalised(found: Scores, tasks: Sequence[str]) -> dict[str, ByTask]:
    """entry -> task -> for each run the error divided by that of guessing, at most 1, its mean over
    the scored splits."""
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


def across_tables(found: Scores, tasks: Sequence[str]) -> list[Table]:
    """A table for each set of tasks that some entry has run, the largest first, with a row for
    every entry that has all of them: numbers over other tasks would not compare.

    An entry whose tasks are fewer than those of others stands in the table of its tasks, beside
    the others over the same tasks. Behind the table of few entries stands that of their pairs.
    """
    values = normalised(found, tasks)
    sets = {tuple(task for task in tasks if task in of) for of in values.values()}
    tables = []
    for one in sorted(sets, key=lambda one: (-len(one), one)):
        chosen = {
            entry: {task: of[task] for task in one}
            for entry, of in values.items()
            if set(one) <= set(of)
        }
        tested = pairs(chosen)
        tables.append(_table(found, chosen, tested, one, len(values)))
        if 2 < len(chosen) <= IN_PAIRS:
            tables.append(_pairs_table(found, chosen, tested, one))
    return tables


def _table(
    found: Scores,
    chosen: Mapping[str, ByTask],
    tested: Sequence[Pair],
    tasks: Sequence[str],
    entries_of_any: int,
) -> Table:
    """A row an entry: which it ties with, interquartile mean, probability of improvement over rope,
    profile; those with the lowest interquartile mean first."""
    baseline = chosen.get(BASELINE)

    def compared(entry: str) -> list[Cell]:
        if few:
            return [Cell(letter_ranges(letters[entry]))]
        chances = [probability_of_improvement(chosen[entry], chosen[e]) for e in differ[entry]]
        lower = sum(chance > 0.5 for chance in chances)
        return [Cell(str(lower)), Cell(str(len(chances) - lower))]

    def line(entry: str) -> list[Cell]:
        of = chosen[entry]
        better = ""
        if entry != BASELINE and baseline is not None:
            chance = improvement_interval(of, baseline)
            better = f"{probability_of_improvement(of, baseline):.2f}{_interval(chance)}"
        return [
            Cell(display_name(found, entry, tasks)),
            *compared(entry),
            Cell(str(sum(map(len, of.values())))),
            Cell(f"{iqm(of):.2f}{_interval(stratified_bootstrap(of))}"),
            Cell(better),
            *(Cell(f"{share:.2f}") for share in performance_profile(of, TAUS)),
        ]

    listed, controls = _ordered(found, chosen, tasks)
    few, differ = len(chosen) <= IN_PAIRS, _differ(tested)
    letters = compact_letters([*listed, *controls], tested if few else [])
    told = (
        "tie: "
        + ("entries that share no letter differ, others cannot" if differ else "empty: no two can")
        + f" be told apart ({TEST})"
        if few
        else "lower than, higher than: of the entries that it differs from, the number over which "
        f"its P(lower) is above 0.5, and below ({TEST})"
    )
    left = entries_of_any - len(chosen)
    others = f"; others that lack some: {left}" if left else ""
    return Table(
        title=f"error relative to guessing over {', '.join(tasks)}, suite {found.suite.version}",
        columns=[
            *("entry", *(["tie"] if few else ["lower than", "higher than"])),
            *("runs", "IQM", f"P(lower than {BASELINE})"),
            *(f"runs <= {tau}" for tau in TAUS),
        ],
        words=2 if few else 1,
        rows=[line(entry) for entry in listed],
        caption=(
            "Error relative to guessing: the error of a run divided by that of guessing, its mean "
            "over the scored splits; 0 is without error, 1 is as guessing or worse, or failed. "
            f"Every task has the same weight. {told}. "
            "IQM: the interquartile mean, of the middle half of all runs "
            "(95 % interval, stratified bootstrap; of few seeds it is too narrow: it covers about "
            "86 % with 3, 91 % with 8, and has no width where all runs are alike); "
            f"P(lower than {BASELINE}): the probability that a run of the entry has a lower error "
            f"than one of {BASELINE} on the same task, ties half, so that 0.5 is no difference "
            "(95 % interval, as of a share of as many runs as the side with fewer has: too wide "
            f"where seeds form one cluster); runs <= {TAUS[1]}: the share of runs with at most "
            "this error (performance profile). Order: by the IQM; it is no ranking, as neighbours "
            "need not differ and tasks of a family count as several. "
            f"Entries with all of these tasks: {len(chosen)}{others}."
        ),
        closing=[line(entry) for entry in controls],
    )


def _pairs_table(
    found: Scores, chosen: Mapping[str, ByTask], tested: Sequence[Pair], tasks: Sequence[str]
) -> Table:
    """The probability of improvement of every entry, a row each, over every other, a column each;
    marked where the two differ."""
    listed, controls = _ordered(found, chosen, tasks)
    entries = [*listed, *controls]
    differ = _differ(tested)

    def cell(a: str, b: str) -> Cell:
        if a == b:
            return Cell("")
        mark = "≠" if b in differ[a] else ""
        return Cell(f"{probability_of_improvement(chosen[a], chosen[b]):.2f}{mark}")

    return Table(
        title=f"P(row lower than column) over {', '.join(tasks)}",
        columns=["entry", *entries],
        words=1,
        rows=[
            [Cell(display_name(found, a, tasks)), *(cell(a, b) for b in entries)] for a in listed
        ],
        caption=(
            "The probability that a run of the row has a lower error relative to guessing than one "
            "of the column on the same task, ties half, its mean over the tasks. "
            f"≠: the two differ ({TEST})."
        ),
        closing=[
            [Cell(display_name(found, a, tasks)), *(cell(a, b) for b in entries)] for a in controls
        ],
    )


def _differ(tested: Sequence[Pair]) -> Mapping[str, set[str]]:
    """entry -> those from which it can be told apart."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for pair in tested:
        if pair.p_holm is not None and pair.p_holm <= LEVEL:
            found[pair.a].add(pair.b)
            found[pair.b].add(pair.a)
    return found


def _ordered(
    found: Scores, chosen: Mapping[str, ByTask], tasks: Sequence[str]
) -> tuple[list[str], list[str]]:
    """The entries that have all the tasks, the lowest interquartile mean first; the controls."""
    entries, controls = entry_order(found, tasks)
    listed = sorted((e for e in entries if e in chosen), key=lambda e: iqm(chosen[e]))
    return listed, [control for control in controls if control in chosen]


def _interval(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f" ({interval[0]:.2f}..{interval[1]:.2f})"
