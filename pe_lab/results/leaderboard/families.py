"""Success rates of entries by family of tasks, their order, and which do not differ; and errors
relative to guessing over several tasks."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import polars as pl

from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.results.leaderboard.across_tasks import Pair, differing, least_p_possible, pairs
from pe_lab.results.leaderboard.scores import WORST, Scores, near_median
from pe_lab.results.statistics import LEVEL, ByTask, holm, stratified_interval
from pe_lab.results.suite import TUNING, Suite

FITS = "fits"
NOT_RUN = "not run"
LEARNED = 0.5
"""The share of an entry's runs that fit a task in domain from which it counts as learned."""


@dataclass(frozen=True)
class Rate:
    """How often an entry fits or generalises, over several tasks.

    Args:
        share: the mean over tasks of the mean over their scored splits of the share of runs.
            Every task weighs the same, and every split of a task.
        low, high: its 95 % interval (``stratified_interval``), which speaks of other seeds of the
            same tasks. Runs are its observations: splits of one run are not independent, and a
            run counts as the share of splits that it generalises to.
        runs: of all tasks.
        tasks: with runs, of ``of`` tasks.
        unlearned: of these tasks, those that fewer than half of the runs fit in domain.
    """

    share: float
    low: float
    high: float
    runs: int
    tasks: int
    of: int
    unlearned: int


def rates_by(
    found: Scores, column: str, groups: dict[str, list[str]]
) -> dict[str, dict[str, Rate]]:
    """entry -> group -> how often its runs generalise to the scored splits of the group's tasks,
    or with ``column`` fits, how often they fit in domain."""
    table: dict[str, dict[str, Rate]] = {}
    runs = _runs(found, column)
    few = unlearned(found)
    for group, tasks in groups.items():
        of_task = (
            runs.filter(pl.col("task").is_in(tasks))
            .group_by("entry", "task", maintain_order=True)
            .agg((pl.col("k") / pl.col("n")).mean().alias("share"), pl.len())
        )
        strata: dict[str, list[tuple[float, int]]] = {}
        for entry, share, count in of_task.select("entry", "share", "len").iter_rows():
            strata.setdefault(entry, []).append((share, count))
        for entry, several in strata.items():
            table.setdefault(entry, {})[group] = Rate(
                sum(share for share, _ in several) / len(several),
                *stratified_interval(several),
                runs=sum(n for _, n in several),
                tasks=len(several),
                of=len(tasks),
                unlearned=sum((entry, task) in few for task in tasks),
            )
    return table


def unlearned(found: Scores) -> set[tuple[str, str]]:
    """The entries and tasks that fewer than half of the runs fit in domain."""
    fits = _runs(found, FITS).group_by("entry", "task").agg(fits=pl.col("k").mean())
    return set(fits.filter(pl.col("fits") < LEARNED).select("entry", "task").iter_rows())


def missed(found: Scores, tasks: Sequence[str], entries: Sequence[str]) -> dict[str, ByTask]:
    """entry -> task -> seed -> the share of scored splits that the run does not generalise to."""
    runs = _runs(found, "generalises").filter(pl.col("task").is_in(tasks))
    return _by_seed(runs.with_columns(share=1 - pl.col("k") / pl.col("n")), entries)


def _by_seed(runs: pl.DataFrame, entries: Iterable[str]) -> dict[str, ByTask]:
    """entry -> task -> seed -> ``share``, of those of these entries that have a run."""
    table: dict[str, dict[str, dict[int, float]]] = {entry: {} for entry in entries}
    for entry, task, seed, share in runs.select("entry", "task", "seed", "share").iter_rows():
        if entry in table:
            table[entry].setdefault(task, {})[seed] = share
    return {entry: values for entry, values in table.items() if values}


@dataclass(frozen=True)
class Ties:
    """Which entries differ from the one that generalises most, by the share of splits that their
    runs generalise to: exact test, Holm over all pairs of entries.

    An entry is compared if it has the protocol's number of runs on every task that at least two
    entries have run so often. So an entry with only the easier tasks is not compared.

    Args:
        alike: those that do not differ from the highest, the highest first; empty where nothing
            differs from it.
        best: of these the ones as high, and those whose runs are enough to differ; empty where
            nothing differs from the highest.
        compared: how many entries these are.
        least_p: the smallest corrected p of two of them; None where there are no two.
    """

    alike: tuple[str, ...]
    best: frozenset[str]
    compared: int = 0
    least_p: float | None = None


def ties(found: Scores, tasks: Sequence[str], entries: Sequence[str]) -> Ties:
    """Which of these entries differ over these tasks."""
    seeds = found.suite.protocol.seeds
    values = {
        entry: {task: runs for task, runs in of.items() if len(runs) >= seeds}
        for entry, of in missed(found, tasks, entries).items()
    }
    having = Counter(task for of in values.values() for task in of)
    covered = [task for task, n in having.items() if n > 1] or list(having)
    values = {
        entry: {task: of[task] for task in covered}
        for entry, of in values.items()
        if of and set(covered) <= set(of)
    }
    if not values:
        return Ties((), frozenset())
    means = {e: fmean(fmean(runs.values()) for runs in of.values()) for e, of in values.items()}
    # Of equal means the one with more runs is the highest: more entries can differ from it.
    ordered = sorted(values, key=lambda e: (means[e], -sum(map(len, values[e].values())), e))
    first, tested = ordered[0], pairs({entry: values[entry] for entry in ordered})
    below = differing(tested)[first]
    alike = tuple(entry for entry in ordered if entry not in below) if below else ()
    best = frozenset(
        entry
        for entry in alike
        if means[entry] == means[first] or _could_differ(values, tested, first, entry)
    )
    least = min((pair.p_holm for pair in tested if pair.p_holm is not None), default=None)
    return Ties(alike, best, len(ordered), least)


def _could_differ(values: Mapping[str, ByTask], tested: Sequence[Pair], a: str, b: str) -> bool:
    """Whether two entries with these numbers of runs could differ significantly at all."""
    others = [pair.p for pair in tested if {pair.a, pair.b} != {a, b}]
    corrected = holm([*others, least_p_possible(values[a], values[b])])[-1]
    return corrected is not None and corrected <= LEVEL


def _runs(found: Scores, column: str) -> pl.DataFrame:
    """One row for each counting run: its ``seed``, and ``k`` of ``n`` scored splits that it
    generalises to."""
    inside = pl.col("split") == IN_DOMAIN
    rows = found.rows.filter(pl.col("counts") & pl.col("threshold").is_not_null())
    rows = rows.filter(inside if column == FITS else ~inside)
    reached = pl.col("error").fill_null(WORST) <= pl.col("threshold")
    return rows.group_by("entry", "task", "run_id", maintain_order=True).agg(
        pl.col("seed").first(), k=reached.sum().cast(pl.Int64), n=pl.len().cast(pl.Int64)
    )


SUITE = "suite"
"""The order of the suite's yaml."""


def by_family(suite: Suite, tasks: Iterable[str]) -> dict[str, list[str]]:
    """These tasks, family by family."""
    families: dict[str, list[str]] = {}
    for name in tasks:
        families.setdefault(suite.tasks[name].family, []).append(name)
    return families


def entry_order(found: Scores, tasks: Sequence[str]) -> tuple[list[str], list[str]]:
    """The entries and the controls: those of the suite in its order, in its first column run or
    not, then others that are tuned or scored."""
    suite = found.suite
    run = _begun(found).filter(pl.col("task").is_in(tasks))["entry"].unique()
    named = {e for e in suite.all_entries if suite.split(e)[1] == suite.first_column} | {*run}
    known = [e for e in suite.all_entries if e in named]
    known += sorted({*run} - {*known})
    order = ["none", *suite.controls]
    controls = [e for e in known if halves(suite, e)[0] in order]
    controls.sort(key=lambda e: order.index(halves(suite, e)[0]))
    return [e for e in known if e not in controls], controls


def halves(suite: Suite, entry: str) -> tuple[str, str]:
    """An entry without its column, and the column: of ``cope+conv npos=8`` ``cope npos=8`` and
    ``conv``."""
    name, *keys = entry.split(" ", 1)
    base, column = suite.split(name)
    return " ".join([base, *keys]), column


def with_column(rows: pl.DataFrame, suite: Suite) -> pl.DataFrame:
    """The rows with the ``column`` of their entry, where the suite has several."""
    if len(suite.columns) == 1:
        return rows
    entries = rows["entry"].unique()
    columns = {entry: halves(suite, entry)[1] for entry in entries}
    column = pl.col("entry").replace_strict(columns, return_dtype=pl.String)
    return rows.with_columns(column=column)


def compared_columns(suite: Suite) -> list[str]:
    """The columns that tables and pictures set beside each other: the first two."""
    return [*suite.columns][:2]


def most_evidence(found: Scores, tasks: Sequence[str], entries: Sequence[str], n: int) -> set[str]:
    """The n of these entries with the most tasks, of equal ones with the most runs, in the compared
    columns; and those of the reader's runs."""
    counting = found.rows.filter("counts", pl.col("task").is_in(tasks))
    counts = counting.group_by("entry").agg(pl.col("task", "run_id").n_unique())
    evidence = {entry: of for entry, *of in counts.iter_rows()}
    columns, halved = compared_columns(found.suite), {e: halves(found.suite, e) for e in entries}
    ranked = sorted(entries, key=lambda entry: evidence.get(entry, [0, 0]), reverse=True)
    bases = list(dict.fromkeys(halved[entry][0] for entry in ranked))[:n]
    most = [e for e in entries if halved[e][0] in bases and halved[e][1] in columns]
    yours = _begun(found).filter(~pl.col("shipped"), pl.col("task").is_in(tasks))["entry"]
    return {*most} & evidence.keys() | {*yours} & {*entries}


def _begun(found: Scores) -> pl.DataFrame:
    """The rows of tuning and of the score."""
    return found.rows.filter((pl.col("phase") == TUNING) | pl.col("counts"))


def missing(found: Scores, entry: str, tasks: Iterable[str]) -> str:
    """Why an entry has no score on these tasks: not run, not scored (tuned only) or failed."""
    rows = _begun(found).filter(pl.col("task").is_in(list(tasks)), entry=entry)
    if rows.is_empty():
        return NOT_RUN
    return "not scored" if (rows["state"] == "finished").any() else "failed"


def relative_times(found: Scores, tasks: Iterable[str]) -> dict[str, tuple[float | None, bool]]:
    """entry -> the median over these tasks of the time of training relative to rope's, over those
    where it was taken at about the same time if there are such, and whether there are."""
    inside = (pl.col("split") == IN_DOMAIN) & pl.col("task").is_in(list(tasks))
    near, cost = pl.col("near"), pl.col("cost")
    costs = found.cells.filter(inside).group_by("entry").agg(near_median(cost, near), near.any())
    return {entry: (value, at_once) for entry, value, at_once in costs.iter_rows()}


def guessed(found: Scores, tasks: Iterable[str], column: str = "") -> float | None:
    """The success rate that guessing would have on these tasks, or with ``fits`` in domain."""
    inside = pl.col("split") == IN_DOMAIN
    cells = found.cells.filter(pl.col("task").is_in(list(tasks)) & pl.col("guess").is_not_null())
    splits = cells.filter(inside if column == FITS else ~inside).unique(["task", "split"])
    reached = splits.group_by("task").agg((pl.col("guess") <= pl.col("threshold")).mean())
    mean = reached["guess"].mean()
    return float(mean) if isinstance(mean, float) else None


def ordered(
    entries: Sequence[str], rates: Mapping[str, Mapping[str, Rate]], column: str | None = None
) -> list[str]:
    """The entries, those first that generalise in more of what they were run on.

    Those with the most tasks come first, as rates over other tasks do not compare. Of these the
    weakest columns are compared, on a tie the next weakest, and so on (a leximin order): no rate of
    one column makes up for another, and no score is computed.

    Args:
        entries: in the order that decides ties.
        rates: entry -> column -> rate.
        column: order by this one alone, those with most of its tasks first; ``suite``: as
            ``entries`` are.
    """
    if column == SUITE:
        return list(entries)

    def key(entry: str) -> tuple[int, list[float]]:
        of = rates.get(entry, {})
        found = [rate for name, rate in of.items() if column in (None, name)]
        return -sum(rate.tasks for rate in found), [-s for s in sorted(r.share for r in found)]

    return sorted(entries, key=key)
