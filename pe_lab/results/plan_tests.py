"""What the runs of a plan say: the test that it names, at its level, in each task and split."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from pe_lab.common.console import percent
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.results.leaderboard.families import LEARNED
from pe_lab.results.leaderboard.scores import WORST
from pe_lab.results.plan_runs import tuned_rates
from pe_lab.results.plans import PHASES, Plan, Test
from pe_lab.results.presentation.formats import Cell, Table
from pe_lab.results.presentation.leaderboard import UNLEARNED
from pe_lab.results.statistics.pairs import rank_sum_test
from pe_lab.results.suite import Suite

SUPPORTED, NOT_SUPPORTED, NOT_ENOUGH = "supported", "not supported", "not enough runs"
SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    **dict.fromkeys(("task", "split", "a", "b"), pl.String),
    **dict.fromkeys(("lr_a", "lr_b"), pl.Float64),
    **dict.fromkeys(("k_a", "n_a", "fits_a", "k_b", "n_b", "fits_b"), pl.Int64),
    **dict.fromkeys(("median_a", "median_b", "threshold", "p"), pl.Float64),
    **dict.fromkeys(("verdict", "missing"), pl.String),
}


SAYS: dict[Test, str] = {
    "fisher": "a generalises in more seeds than b, not that b does in none",
    "mann_whitney": "a's errors tend to be lower than b's, whether or not either generalises",
}
"""What a test shows."""


def p_value(test: Test, a: Sequence[float], b: Sequence[float], threshold: float) -> float:
    """One-sided: how probable it would be to find a as much better than b if both were alike.

    ``fisher``: Fisher's exact test of how many errors are at most ``threshold``. ``mann_whitney``:
    the sum of ranks of a's errors, see ``rank_sum_test``.
    """
    if test == "mann_whitney":
        return rank_sum_test(a, b)
    # Imported here: a second.
    from scipy.stats import fisher_exact

    k_a, k_b = (sum(error <= threshold for error in side) for side in (a, b))
    table = [[k_a, len(a) - k_a], [k_b, len(b) - k_b]]
    return float(fisher_exact(table, alternative="greater").pvalue)


def evaluate(plan: Plan, rows: pl.DataFrame, suite: Suite) -> pl.DataFrame:
    """A row for each task, split and pair of the plan.

    The runs are those at the rate that tuning chose. One that failed, or whose encoding does not
    reach the split's length, counts as one that does not generalise, with the error 1. Columns:
    ``task``, ``split``, ``a`` (claimed to be the better), ``b``, ``lr_a`` and ``lr_b`` (the rates),
    ``k_a`` of ``n_a`` seeds that generalise and ``fits_a`` of them that fit the task in domain,
    ``k_b``, ``n_b`` and ``fits_b``, the medians of the error, ``threshold``, ``p``, ``verdict`` and
    ``missing`` (which runs are).

    Args:
        rows: of the leaderboard's columns (``rows_of_plans``).
    """
    a, *others = plan.encodings
    rates = tuned_rates(rows, suite)
    named = rows.filter(
        pl.col("phase").is_in(PHASES),
        pl.col("seed").is_in(plan.seeds),
        pl.col("seed") == pl.col("seed_init"),
    )
    found = [
        _row(plan, (task, split, threshold, suite.tasks[task].fits), (a, b), rates, named)
        for task, splits in plan.tasks.items()
        for split, threshold in splits.items()
        for b in others
    ]
    return pl.DataFrame(found, SCHEMA)


def verdict(rows: pl.DataFrame) -> str:
    """The plan's: supported if the test supports the claim in every row, which needs no correction
    for several tests, as none of them alone would do (an intersection-union test, Berger 1982)."""
    verdicts = set(rows["verdict"])
    if NOT_ENOUGH in verdicts:
        return NOT_ENOUGH
    return SUPPORTED if verdicts == {SUPPORTED} else NOT_SUPPORTED


def result_table(plan: Plan, rows: pl.DataFrame) -> Table:
    """The rows of ``evaluate`` as a table, errors in %."""
    lines = []
    for row in rows.iter_rows(named=True):
        sides = [
            f"{row[f'k_{side}']}/{row[f'n_{side}']}{'' if learned(row, side) else UNLEARNED}, "
            f"median {percent(row[f'median_{side}'])}"
            for side in "ab"
        ]
        p = "" if row["p"] is None else f"{row['p']:.2g}"
        task = f"{row['task']}, {row['split']} (up to {percent(row['threshold'])} %)"
        words = (task, row["a"], sides[0], row["b"], sides[1], p, row["verdict"])
        lines.append([Cell(word) for word in words])
    named = {"fisher": "Fisher's exact test", "mann_whitney": "Mann-Whitney"}[plan.test]
    head = ("task, split (threshold)", "a", "a generalises", "b", "b generalises", "p", "verdict")
    caption = (
        f"p: {named}, one-sided, of a better than b; supported at {plan.level:g} or less. Seeds at "
        "or below the threshold, of all; the median of the error in %. Supported: "
        f"{SAYS[plan.test]}."
    )
    if not all(learned(row, side) for row in rows.iter_rows(named=True) for side in "ab"):
        caption += f" {UNLEARNED}: fewer than half of these seeds fit the task in domain."
    return Table(plan.hypothesis, head, len(head), lines, caption)


def learned(row: Mapping[str, Any], side: str) -> bool:
    """Whether at least half of the seeds of a side fit the task in domain."""
    return bool(row[f"fits_{side}"] >= LEARNED * row[f"n_{side}"])


def _row(
    plan: Plan,
    of: tuple[str, str, float, float],
    pair: tuple[str, str],
    rates: Mapping[tuple[str, str], float],
    rows: pl.DataFrame,
) -> dict[str, Any]:
    task, split, threshold, fits = of
    row: dict[str, Any] = {"task": task, "split": split, "threshold": threshold}
    missing, errors = [], []
    for side, entry in zip("ab", pair, strict=True):
        rate = rates.get((task, entry))
        every = rows.filter(
            pl.col("task") == task, pl.col("entry") == entry,
            pl.lit(False) if rate is None else pl.col("lr") == rate,
        ).unique(["seed", "split"], keep="first", maintain_order=True)  # fmt: skip
        runs = every.filter(pl.col("split") == split)
        inside = every.filter(pl.col("split") == IN_DOMAIN)["error"].fill_null(WORST)
        of_side = runs["error"].fill_null(WORST).to_list()
        errors.append(of_side)
        row |= {
            side: entry,
            f"lr_{side}": rate,
            f"k_{side}": sum(error <= threshold for error in of_side),
            f"n_{side}": len(of_side),
            f"fits_{side}": int((inside <= fits).sum()),
            f"median_{side}": runs["error"].fill_null(WORST).median(),
        }
        if rate is None:
            others = _other_configurations(rows, task, entry)
            missing.append(f"{entry} is not tuned, or failed at every rate{others}")
        elif left := sorted(set(plan.seeds) - set(runs["seed"])):
            seeds = ",".join(map(str, left))
            missing.append(f"{entry} lacks seeds {seeds} at train.lr={rate:g}, which tuning chose")
    if missing:
        return {**row, "verdict": NOT_ENOUGH, "missing": "; ".join(missing)}
    row["p"] = p_value(plan.test, errors[0], errors[1], threshold)
    # The smallest p of three seeds a side is 0.05 but for rounding.
    supported = row["p"] <= plan.level * (1 + 1e-9)
    return {**row, "verdict": SUPPORTED if supported else NOT_SUPPORTED}


def _other_configurations(rows: pl.DataFrame, task: str, entry: str) -> str:
    """Those of the encoding that have runs, as an addition to a sentence; empty for none."""
    like = pl.col("entry").str.starts_with(f"{entry} ")
    names = rows.filter(pl.col("task") == task, like)["entry"].unique().sort().to_list()
    if not names:
        return ""
    return (
        f" (there are runs of {', '.join(names)}: this plan is of {entry} as its yaml has it, keep "
        "other configurations in a runs_dir of their own)"
    )
