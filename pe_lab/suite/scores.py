"""From rows to scores: the learning rate that tuning chose, and how many seeds generalise at it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

import numpy as np
import polars as pl

from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.core.rng import generator
from pe_lab.results.statistics import rate_of, with_interval, with_rates
from pe_lab.suite.suite import SCORE, TUNING, Protocol, Search, Suite

# About two standard errors of the difference of two in-domain errors of 0.2 % on 4,000 answers.
NOISE = 0.002

# The error of a run that failed, and on a split that the encoding does not reach.
WORST = 1.0
# Error and loss in domain.
Measured = tuple[float, float]
FAILED: Measured = (math.inf, math.inf)
# What tuning runs measured, by rate and tuning seed.
Tuning = Mapping[float, Mapping[int, Measured]]
BASELINE = "rope"
# Tasks whose success is compared with the error on text, as v2_1.claims.yaml registers it, and
# with how many entries.
RANKED = (
    *("majority", "counting", "flipflop", "recall", "copy_unique", "selective_copy", "sort"),
    *("brackets", "parity"),
)
ENOUGH, RESAMPLES, PERMUTATIONS = 20, 10_000, 100_000
# Seconds between the starts of two runs that probably shared the machine with the same others.
NEAR_S = 3600


def choose_rate(tuning: Tuning) -> float | None:
    """Return the rate with the lowest mean in-domain error over the tuning seeds, on a tie the one
    with the lowest loss, then the smallest; None if all runs failed.

    Only rates with the most seeds are compared: a search tries the others on fewer, as they were
    worse.
    """
    most = max(map(len, tuning.values()), default=0)
    means = {
        rate: tuple(sum(values) / most for values in zip(*runs.values(), strict=True))
        for rate, runs in tuning.items()
        if len(runs) == most > 0
    }
    best = min(means, key=lambda rate: (*means[rate], rate), default=None)
    return best if best is not None and math.isfinite(means[best][0]) else None


def choose_smallest_rate(tuning: Tuning, fits: float) -> float | None:
    """Return the smallest of the rates within ``NOISE`` of the best, and not the last one before a
    rate that does not learn: what tuning sees next to such a cliff, fresh seeds may not repeat.

    A rate learns if its error is at most ``fits`` on two or more seeds. Without one that does, the
    choice is that of ``choose_rate``. v2_1.claims.yaml registered the rule before its runs.
    """
    errors = {rate: [error for error, _ in tuning[rate].values()] for rate in sorted(tuning)}
    means = {rate: fmean(of) for rate, of in errors.items() if len(of) > 1 and max(of) <= fits}
    if not means:
        return choose_rate(tuning)
    near = [rate for rate, mean in means.items() if mean <= min(means.values()) + NOISE]
    cliffs = {rate for rate, larger in pairwise(errors) if max(errors[larger]) > fits}
    safe = [rate for rate in near if rate not in cliffs]
    smaller = [rate for rate in means if rate < near[0]]
    return (safe or smaller[-1:] or near)[0]


def next_tuning(suite: Suite, task: str, tuning: Tuning) -> list[tuple[float, int]]:
    """Return the tuning runs to do next as rates and seeds; none once tuning is over.

    After the runs of the protocol, the rule of the ``smallest`` rate asks for the other seeds of
    the rates that may be chosen.
    """
    missing = _next_of_protocol(suite.protocol, tuning)
    if missing or suite.rule == "lowest":
        return missing
    seeds, fits = suite.protocol.tuning_seeds, suite.tasks[task].fits
    errors = {rate: [error for error, _ in tuning[rate].values()] for rate in sorted(tuning)}
    means = {rate: fmean(of) for rate, of in errors.items() if max(of) <= fits}
    near = [rate for rate, mean in means.items() if mean <= min(means.values()) + NOISE]
    best = sorted(near, key=means.__getitem__)[:1]
    return _missing(tuning, best, seeds) or _missing(tuning, near, seeds)


def _next_of_protocol(protocol: Protocol, tuning: Tuning) -> list[tuple[float, int]]:
    """Return all runs that are missing, or with a search those of its next round."""
    seeds, search = protocol.tuning_seeds, protocol.search
    if search is None:
        return _missing(tuning, protocol.rates, seeds)
    if missing := _missing(tuning, search.start, seeds[:1]):
        return missing
    first = {rate: {seeds[0]: runs[seeds[0]]} for rate, runs in tuning.items() if seeds[0] in runs}
    if (best := choose_rate(first)) is None:
        return _missing(tuning, protocol.rates, seeds[:1])
    if missing := _outwards(protocol, tuning, best):
        return missing
    alone = {rate: runs[seeds[0]] for rate, runs in first.items()}
    near = [rate for rate, run in alone.items() if _is_near(run, alone[best], search)]
    complete = {rate: runs for rate, runs in tuning.items() if len(runs) == len(seeds)}
    if len(near) == 1 and not complete:
        return []
    if missing := _missing(tuning, near, seeds):
        return missing
    best = choose_rate(complete)
    return [] if best is None else _outwards(protocol, tuning, best)


def _missing(
    tuning: Tuning, rates: Sequence[float], seeds: Sequence[int]
) -> list[tuple[float, int]]:
    return [(rate, seed) for seed in seeds for rate in rates if seed not in tuning.get(rate, {})]


def _outwards(protocol: Protocol, tuning: Tuning, best: float) -> list[tuple[float, int]]:
    """Return the run of the neighbour of the best rate, if that is at an end of those tried."""
    rates = protocol.all_rates
    at = rates.index(best)
    neighbours = [rates[i] for i in (at - 1, at + 1) if 0 <= i < len(rates)]
    return _missing(tuning, neighbours, protocol.tuning_seeds[:1])


def _is_near(run: Measured, best: Measured, search: Search) -> bool:
    """Return whether another seed may make this rate the best one."""
    return run[0] - best[0] <= search.near_error and run[1] <= search.near_loss * best[1]


def collect_tuning(
    rows: pl.DataFrame, protocol: Protocol
) -> dict[tuple[str, str], dict[float, dict[int, Measured]]]:
    """Return (task, entry) -> what its tuning runs measured in domain."""
    tuning: dict[tuple[str, str], dict[float, dict[int, Measured]]] = {}
    inside = rows.filter(pl.col("split") == IN_DOMAIN, pl.col("phase") == TUNING)
    for task, entry, lr, seed, error, loss in inside.select(
        "task", "entry", "lr", "seed", "error", pl.col("loss").fill_null(math.inf)
    ).iter_rows():
        rate = min(protocol.all_rates, key=lambda rate: abs(rate - lr))
        run = FAILED if error is None else (error, loss)
        tuning.setdefault((task, entry), {}).setdefault(rate, {})[seed] = run
    return tuning


def choose_rates(rows: pl.DataFrame, suite: Suite) -> pl.DataFrame:
    """Return for each tuned ``task`` and ``entry`` the rate that was ``chosen`` (null if all runs
    failed), and how many ``rates`` were tried on all tuning seeds or ruled out by the search: all
    of the protocol once tuning is over."""
    chosen, protocol = {}, suite.protocol
    for (task, entry), tuning in collect_tuning(rows, protocol).items():
        tried = len(protocol.rates)
        if next_tuning(suite, task, tuning):
            complete = sum(len(runs) == len(protocol.tuning_seeds) for runs in tuning.values())
            tried = min(complete, tried - 1)
        smallest = choose_smallest_rate(tuning, suite.tasks[task].fits)
        rate = smallest if suite.rule == "smallest" else choose_rate(tuning)
        chosen[task, entry] = task, entry, rate, tried
    for task, entry in rows.select("task", "entry").unique().sort("entry").iter_rows():
        base, column = suite.split(entry)
        like = chosen.get((task, suite.named(base, suite.rate_of.get(column, column)) or entry))
        if like and (task, entry) not in chosen:
            chosen[task, entry] = task, entry, *like[2:]
    schema = {"task": pl.String, "entry": pl.String, "chosen": pl.Float64, "rates": pl.Int64}
    return pl.DataFrame([*chosen.values()], schema, orient="row")


@dataclass(frozen=True)
class Scores:
    """What the tables of a suite are made of.

    Args:
        rows: all runs, each once, with ``shipped``, ``threshold`` of the split, ``family``,
            ``chosen`` rate, ``again`` (the error of a second result) and ``counts``: scored at the
            chosen rate.
        cells: a row for each task, entry and split: ``k`` of ``n`` seeds are at or below
            ``threshold``, with ``p_low`` to ``p_high``; ``median``, ``mean``, ``sd``,
            ``lr``, ``cost`` relative to rope, ``yours`` (runs that do not ship), ``flips`` of
            ``again`` runs made a second time, ..
    """

    suite: Suite
    rows: pl.DataFrame
    cells: pl.DataFrame

    @property
    def tasks(self) -> list[str]:
        """The tasks that have a scored run, in the order of the suite."""
        scored = {*self.cells["task"]}
        return [task for task in self.suite.tasks if task in scored]

    def success(self, phase: str = SCORE) -> pl.DataFrame:
        """Return for each ``task`` and ``entry``: ``k`` of ``n`` seeds generalise to every scored
        split, with the 95 % interval ``low`` to ``high``; ``learned`` of them fit in domain, and
        ``both`` do both; ``yours`` of them do not ship.

        Args:
            phase: another one than the score, at the chosen rate: ``steps_x2``.
        """
        at_rate = pl.col("lr") == pl.col("chosen")
        runs = self.rows.filter(at_rate, pl.col("phase") == phase, ~pl.col("threshold").is_null())
        inside = pl.col("split") == IN_DOMAIN
        reached = pl.col("error").fill_null(WORST) <= pl.col("threshold")
        seeds = runs.group_by("task", "entry", "seed", maintain_order=True).agg(
            generalises=reached.filter(~inside).all(),
            learned=reached.filter(inside).all(),
            yours=~pl.col("shipped").any(),
        )
        table = seeds.group_by("task", "entry", maintain_order=True).agg(
            k=pl.sum("generalises"),
            n=pl.len(),
            learned=pl.sum("learned"),
            both=(pl.col("generalises") & pl.col("learned")).sum(),
            yours=pl.sum("yours"),
        )
        return with_interval(table, low="low", high="high")


def compare_with_text(scores: Scores, least: int = ENOUGH) -> pl.DataFrame:
    """Return Spearman's rank correlation of success on the suite and error on text in domain and at
    4 and 8 times the trained length: ``split``, ``n`` entries, and what ``spearman`` returns as
    ``rho``, ``low``, ``high``, ``p``. A split with fewer than ``least`` entries has no row.

    The success of an entry is its mean share of seeds that generalise to every scored split, over
    ``RANKED``, all of which it must have run. Its error is the mean over the seeds.
    """
    shares = (
        scores.success()
        .filter(pl.col("task").is_in(RANKED))
        .group_by("entry")
        .agg(share=(pl.col("k") / pl.col("n")).mean(), tasks=pl.len())
        .filter(tasks=len(RANKED))
    )
    text = (
        scores.cells.filter(task="text").drop_nulls("mean").join(shares, on="entry").sort("entry")
    )
    rows = []
    for split in (IN_DOMAIN, "long_x4", "long_x8"):
        of = text.filter(split=split)
        if len(of) >= least:
            rows.append((split, len(of), *spearman(of["share"].to_numpy(), of["mean"].to_numpy())))
    numbers = dict.fromkeys(("rho", "low", "high", "p"), pl.Float64)
    return pl.DataFrame(rows, {"split": pl.String, "n": pl.Int64, **numbers}, orient="row")


def spearman(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float, float]:
    """Return Spearman's rank correlation, its 95 % interval by a bootstrap over the pairs, and the
    p-value of a permutation test that it is negative."""
    # Imported here: it takes a second.
    from scipy.stats import rankdata

    rng = generator(0, "bootstrap")
    rows = rng.integers(0, len(x), (RESAMPLES, len(x)))
    rows[0] = np.arange(len(x))
    a, b = (rankdata(values[rows], axis=1) - (len(x) + 1) / 2 for values in (x, y))
    # Where all resampled values are equal, there is no correlation.
    with np.errstate(invalid="ignore"):
        rhos = (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))
    low, high = np.nanquantile(rhos, (0.025, 0.975))
    permuted = rng.permuted(np.tile(b[0], (PERMUTATIONS, 1)), axis=1)
    p = (1 + (permuted @ a[0] <= b[0] @ a[0]).sum()) / (1 + PERMUTATIONS)
    return float(rhos[0]), float(low), float(high), float(p)


def fisher(a: tuple[int, int], b: tuple[int, int], alternative: str = "two-sided") -> float:
    """Return the p-value of Fisher's exact test that the rates behind two k of n are equal."""
    # Imported here: it takes a second.
    from scipy.stats import fisher_exact

    table = [[k, n - k] for k, n in (a, b)]
    return float(fisher_exact(table, alternative=alternative).pvalue)


def score(
    suite: Suite, shipped: pl.DataFrame, own: pl.DataFrame, again: pl.DataFrame | None = None
) -> Scores:
    """Return the scores of shipped rows and the user's own.

    Args:
        again: second results of shipped runs, which change no score.
    """
    rows = unite(shipped, own)
    later = _second_results(rows, own if again is None else pl.concat([own, again]))
    limits = [
        (task, split, limit, of.family)
        for task, of in suite.tasks.items()
        for split, limit in of.thresholds.items()
    ]
    schema = {"task": pl.String, "split": pl.String, "threshold": pl.Float64, "family": pl.String}
    rows = (
        _add(rows, later, "run_id", "split")
        .pipe(_add, pl.DataFrame(limits, schema, orient="row"), "task", "split")
        .pipe(_add, choose_rates(rows, suite), "task", "entry")
        .with_columns(
            counts=((pl.col("phase") == SCORE) & (pl.col("lr") == pl.col("chosen"))).fill_null(
                value=False
            )
        )
    )  # fmt: skip
    return Scores(suite, rows, _cells(rows))


def _add(rows: pl.DataFrame, table: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """Return the rows with the columns of a table, null where it has no such row."""
    return rows.join(table, on=keys, how="left", maintain_order="left")


def unite(shipped: pl.DataFrame, own: pl.DataFrame) -> pl.DataFrame:
    """Return each run once, with ``shipped``: a finished result before a failed one, then a
    shipped result before an own one."""
    both = pl.concat(
        [shipped.with_columns(shipped=pl.lit(True)), own.with_columns(shipped=pl.lit(False))]
    )
    order = [pl.col("state") != "finished", ~pl.col("shipped")]
    first = both.sort(order, maintain_order=True).unique(
        ["run_id", "split"], keep="first", maintain_order=True
    )
    run = ["task", "entry", "phase", "lr", "steps", "seed", "seed_init"]
    runs = first.unique("run_id", keep="first", maintain_order=True)
    kept = runs.unique(run, keep="first", maintain_order=True)
    return first.join(kept, on="run_id", how="semi", maintain_order="left")


def _second_results(rows: pl.DataFrame, later: pl.DataFrame) -> pl.DataFrame:
    """Return ``again``: the error of each run and split when it was first made again."""
    began = rows.select("run_id", "split", began="started")
    return (
        later.join(began, on=["run_id", "split"], how="inner", maintain_order="left")
        .filter(pl.col("started") != pl.col("began"))
        .unique(["run_id", "split"], keep="first", maintain_order=True)
        .select("run_id", "split", again=pl.col("error").fill_null(WORST))
    )


def _cells(rows: pl.DataFrame) -> pl.DataFrame:
    scored = rows.filter(pl.col("counts") & pl.col("threshold").is_not_null())
    error, again = pl.col("error"), pl.col("again")
    reached = error.fill_null(WORST) <= pl.col("threshold")
    cells = scored.group_by("task", "entry", "split", maintain_order=True).agg(
        **rate_of(error.fill_null(WORST), pl.col("threshold")),
        n=pl.len().cast(pl.Int64),
        measured=error.count().cast(pl.Int64),
        mean=error.mean(),
        sd=error.std(),
        failed=(pl.col("state") == "failed").sum().cast(pl.Int64),
        lr=pl.col("lr").first(),
        rates=pl.col("rates").first(),
        train_s=pl.col("train_s").median(),
        yours=(~pl.col("shipped")).sum().cast(pl.Int64),
        guess=pl.col("guess").median(),
        family=pl.col("family").first(),
        again=again.count().cast(pl.Int64),
        flips=(reached != (again <= pl.col("threshold"))).sum().cast(pl.Int64),
    )
    columns = (
        *("task", "entry", "split", "n", "k", "p_generalises", "p_low", "p_high", "median"),
        *("threshold", "measured", "mean", "sd", "failed", "lr", "rates", "train_s"),
        *("yours", "guess", "family", "cost", "near", "again", "flips"),
    )
    costs = _relative_costs(scored)
    return _add(with_rates(cells), costs, "task", "entry").select(columns)


def _relative_costs(scored: pl.DataFrame) -> pl.DataFrame:
    """Return ``cost``: the median over seeds of the training time relative to rope's with the same
    seed on the same kind of machine, of those begun within an hour if there are any (``near``)."""
    key = ["task", "machine", "seed"]
    runs = scored.filter(pl.col("split") == IN_DOMAIN, pl.col("train_s").is_not_null())
    rope = runs.filter(pl.col("entry") == BASELINE)
    rope = rope.select(*key, rope_s="train_s", rope_started="started")
    near = ((pl.col("started") - pl.col("rope_started")).abs() <= NEAR_S).fill_null(value=False)
    ratio = pl.col("train_s") / pl.col("rope_s")
    cost = pl.when(near.any()).then(ratio.filter(near).median()).otherwise(ratio.median())
    pairs = runs.join(rope, on=key, maintain_order="left")
    return pairs.group_by("task", "entry", maintain_order=True).agg(cost=cost, near=near.any())
