"""From runs to scores: which of them count, at which rate, and how many of them generalise."""

from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.core.output import counted
from pe_lab.results.leaderboard.tuning import FAILED, Measured, Tuning, chosen_rate, next_runs
from pe_lab.results.statistics import rate_of, with_rates
from pe_lab.results.suite import SCORE, TUNING, Suite
from pe_lab.results.suite_file import Protocol

WORST = 1.0
"""The error of a run that failed, and on a split that the encoding does not reach."""
CELL = ("task", "entry", "split")
CELL_COLUMNS = (
    *("n", "k", "p_generalises", "p_low", "p_high", "median", "clusters", "threshold"),
    *("measured", "mean", "sd", "failed", "lr", "rates", "train_s", "yours", "guess", "family"),
    *("cost", "near", "again", "flips"),
)
NEAR_S = 3600
"""Seconds between the starts of two runs up to which they had about the same work beside them."""


@dataclass(frozen=True)
class Scores:
    """What tables of a suite are made of.

    Args:
        suite: whose tasks and thresholds these are.
        rows: all runs, each once, with ``shipped`` (false: read from run folders), ``threshold`` of
            the split (null: it is not scored), ``family``, and ``counts``: of the score, at the
            rate that tuning chose.
        cells: of each task, entry and split: ``n`` runs, ``k`` of them at or below ``threshold``,
            ``p_generalises`` between ``p_low`` and ``p_high``, ``median``, ``clusters``, ``mean``
            and ``sd`` of the runs that were measured (``measured``), ``failed`` runs, ``lr`` of
            ``rates`` tried, ``train_s`` (median), ``cost`` (of ``train_s`` of rope with
            the same seed on the same kind of machine, ``near``: at about the same time), ``yours``
            (runs that are not shipped), ``guess``, ``family``; ``again`` runs that were made again,
            of which ``flips`` are on the other side of the threshold then.
        notes: what the tables leave out.
    """

    suite: Suite
    rows: pl.DataFrame
    cells: pl.DataFrame
    notes: list[str] = field(default_factory=list)


def scores(
    suite: Suite, shipped: pl.DataFrame, yours: pl.DataFrame, again: pl.DataFrame | None = None
) -> Scores:
    """The scores of shipped runs and those of the reader together.

    Args:
        again: second results of runs, which change no score.
    """
    rows, notes = once(shipped, yours)
    later = yours if again is None else pl.concat([yours, again])
    rows = rows.join(
        _second(rows, later), on=["run_id", "split"], how="left", maintain_order="left"
    )
    limits = pl.DataFrame(
        [
            (task, split, value)
            for task, one in suite.tasks.items()
            for split, value in one.thresholds.items()
        ],
        {"task": pl.String, "split": pl.String, "threshold": pl.Float64},
        orient="row",
    )
    families = {name: task.family for name, task in suite.tasks.items()}
    rows = rows.join(limits, on=["task", "split"], how="left", maintain_order="left").with_columns(
        family=pl.col("task").replace_strict(families, return_dtype=pl.String)
    )
    chosen = chosen_rates(rows, suite.protocol)
    rows = rows.join(chosen, on=["task", "entry"], how="left", maintain_order="left").with_columns(
        counts=_at_chosen_rate(SCORE)
    )
    return Scores(suite, rows, _cells(rows), notes)


def _second(first: pl.DataFrame, later: pl.DataFrame) -> pl.DataFrame:
    """``again``, the error of each run and split when it was first made again, at another time; of
    a run that failed then, ``WORST``."""
    began = first.select("run_id", "split", began="started")
    return (
        later.join(began, on=["run_id", "split"], how="inner", maintain_order="left")
        .filter(pl.col("started") != pl.col("began"))
        .unique(["run_id", "split"], keep="first", maintain_order=True)
        .select("run_id", "split", again=pl.col("error").fill_null(WORST))
    )


def chosen_rates(rows: pl.DataFrame, protocol: Protocol) -> pl.DataFrame:
    """For each task and entry ``chosen``, the rate that tuning chose (null where all its runs
    failed), and ``rates``, how many were tried on all tuning seeds, or ruled out by the search."""
    inside = rows.filter(pl.col("split") == IN_DOMAIN)
    measured: dict[tuple[str, str], dict[float, dict[int, Measured]]] = {}
    tuning = inside.filter(pl.col("phase") == TUNING)
    for task, entry, lr, seed, *numbers in tuning.select(
        "task", "entry", "lr", "seed", "error", pl.col("loss").fill_null(FAILED[1])
    ).iter_rows():
        one = FAILED if numbers[0] is None else (numbers[0], numbers[1])
        measured.setdefault((task, entry), {}).setdefault(lr, {})[seed] = one
    schema = {"task": pl.String, "entry": pl.String, "chosen": pl.Float64, "rates": pl.Int64}
    return pl.DataFrame(
        [
            (
                *key,
                chosen_rate({rate: [*runs.values()] for rate, runs in of.items()}),
                _tried(protocol, of),
            )
            for key, of in measured.items()
        ],
        schema,
        orient="row",
    )


def _tried(protocol: Protocol, found: Tuning) -> int:
    if protocol.search is not None and not next_runs(protocol, found):
        return len(protocol.rates)
    return sum(len(runs) >= len(protocol.tuning_seeds) for runs in found.values())


def cells_of(found: Scores, phase: str) -> pl.DataFrame:
    """The cells of another phase than the score, at the chosen rate."""
    rows = found.rows.filter(_at_chosen_rate(phase))
    return _cells(rows.with_columns(counts=pl.lit(True)))


def paired(found: Scores, phase: str) -> tuple[Scores, Scores]:
    """The score and another phase at the chosen rate, of the seeds that both have."""
    seeds = ["task", "entry", "seed", "seed_init"]
    of = _at_chosen_rate(phase)
    rows = found.rows
    for have in (found.rows.filter("counts"), found.rows.filter(of)):
        rows = rows.join(have, on=seeds, how="semi", maintain_order="left")
    score, other = (
        replace(found, rows=one, cells=_cells(one)) for one in (rows, rows.with_columns(counts=of))
    )
    return score, other


def _at_chosen_rate(phase: str) -> pl.Expr:
    return (pl.col("phase") == phase) & (pl.col("lr") == pl.col("chosen"))


def _cells(rows: pl.DataFrame) -> pl.DataFrame:
    counting = rows.filter(pl.col("counts") & pl.col("threshold").is_not_null())
    error, failed = pl.col("error"), pl.col("state") == "failed"
    reached, later = (
        value <= pl.col("threshold") for value in (error.fill_null(WORST), pl.col("again"))
    )
    table = counting.group_by(CELL, maintain_order=True).agg(
        **rate_of(error.fill_null(WORST), pl.col("threshold")),
        n=pl.len().cast(pl.Int64),
        measured=error.count().cast(pl.Int64),
        mean=error.mean(),
        sd=error.std(),
        failed=failed.sum().cast(pl.Int64),
        lr=pl.col("lr").first(),
        rates=pl.col("rates").first(),
        train_s=pl.col("train_s").median(),
        yours=(~pl.col("shipped")).sum().cast(pl.Int64),
        guess=pl.col("guess").median(),
        family=pl.col("family").first(),
        again=later.count().cast(pl.Int64),
        flips=(reached != later).sum().cast(pl.Int64),
    )
    return (
        with_rates(table)
        .join(_costs(counting), on=["task", "entry"], how="left", maintain_order="left")
        .select(*CELL, *CELL_COLUMNS)
    )


def near_median(ratio: pl.Expr, near: pl.Expr) -> pl.Expr:
    """The median of the ratios of times of two runs that were near, or of all if none were."""
    return pl.when(near.any()).then(ratio.filter(near).median()).otherwise(ratio.median())


def _costs(rows: pl.DataFrame) -> pl.DataFrame:
    """``cost`` of each task and entry: the median over seeds of the time of training over that of
    rope with the same seed on the same kind of machine. Where some of these pairs began within
    ``NEAR_S`` of each other, of these alone (``near``): they had about the same other work beside
    them, as a suite runs seed by seed."""
    seconds = rows.filter((pl.col("split") == IN_DOMAIN) & pl.col("train_s").is_not_null())
    key = ["task", "machine", "seed"]
    rope = seconds.filter(pl.col("entry") == "rope")
    rope = rope.select(*key, rope="train_s", rope_started="started")
    near = ((pl.col("started") - pl.col("rope_started")).abs() <= NEAR_S).fill_null(value=False)
    ratio = pl.col("train_s") / pl.col("rope")
    return (
        seconds.join(rope, on=key, maintain_order="left")
        .group_by("task", "entry", maintain_order=True)
        .agg(
            cost=near_median(ratio, near),
            near=near.any(),
        )
    )


_RUN = ("task", "entry", "phase", "lr", "steps", "seed", "seed_init")


def precedence(finished: Any, shipped: Any) -> Any:
    """The result of a run with the lowest number counts, of equal ones the first: finished ones
    before failed ones, then shipped ones before those of run folders.

    A table that everybody sees then stays as it is where somebody makes a shipped run again on
    another machine; ``shipped=false`` takes run folders alone.
    """
    return 3 - 2 * finished - 1 * shipped


def ranked(shipped: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    """The rows of both by ``precedence``, with ``shipped``."""
    rows = pl.concat(
        [shipped.with_columns(shipped=pl.lit(True)), others.with_columns(shipped=pl.lit(False))]
    )
    order = precedence(pl.col("state") == "finished", pl.col("shipped"))
    return rows.sort(order, maintain_order=True)


def first_results(rows: pl.DataFrame) -> pl.DataFrame:
    """Of ``ranked`` rows the first of each run and split."""
    return rows.unique(["run_id", "split"], keep="first", maintain_order=True)


def once(shipped: pl.DataFrame, others: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """The rows of both, each run once, with ``shipped``; and what was left out because it has other
    results."""
    notes = []
    rows = ranked(shipped, others)
    first = first_results(rows)
    results = rows.filter(pl.col("state") == "finished").group_by("run_id", "split")
    other = results.agg(pl.col("error").n_unique()).filter(pl.col("error") > 1)["run_id"].unique()
    if len(other):
        notes.append(
            f"{counted(len(other), 'run')} with two results, of which the shipped one counts: "
            + ", ".join(sorted(other)[:3])
            + (", .." if len(other) > 3 else "")
        )
    runs = first.unique("run_id", keep="first", maintain_order=True)
    kept = runs.unique([*_RUN], keep="first", maintain_order=True)
    if left := len(runs) - len(kept):
        notes.append(
            f"{counted(left, 'run')} of an entry and seed that another run has: not counted"
        )
        first = first.join(kept, on="run_id", how="semi")
    return first, notes
