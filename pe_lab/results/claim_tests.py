"""What runs say of claims: the test that each names, at its level, in each task and split."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl

from pe_lab.common.output import counted
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.results.claims import PHASES, Claim, Claims, Test
from pe_lab.results.leaderboard.families import LEARNED
from pe_lab.results.leaderboard.scores import WORST, chosen_rates, once
from pe_lab.results.statistics.pairs import rank_sum_test
from pe_lab.results.suite import Suite

SUPPORTED, NOT_SUPPORTED, NOT_ENOUGH = "supported", "not supported", "not enough runs"
SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    **dict.fromkeys(("claim", "task", "split", "a", "b"), pl.String),
    **dict.fromkeys(("lr_a", "lr_b"), pl.Float64),
    **dict.fromkeys(("k_a", "n_a", "fits_a", "k_b", "n_b", "fits_b"), pl.Int64),
    **dict.fromkeys(("median_a", "median_b", "threshold", "p"), pl.Float64),
    **dict.fromkeys(("verdict", "missing", "exploratory"), pl.String),
}
"""``a`` is claimed to be the better; ``lr`` the rates that tuning chose; ``k`` of ``n`` seeds
generalise and ``fits`` of them fit the task in domain; ``median`` of the error; ``missing`` which
runs are; ``exploratory`` why the claim is."""


class Decided(NamedTuple):
    """A claim and its tests: ``rows`` have the columns ``SCHEMA``; ``exploratory``: why the claim
    does not count as preregistered, None if it does."""

    name: str
    claim: Claim
    rows: pl.DataFrame
    exploratory: str | None

    @property
    def verdict(self) -> str:
        """Supported if every test supports it. This needs no correction for several tests, as none
        of them alone would do (an intersection-union test, Berger 1982)."""
        verdicts = set(self.rows["verdict"])
        if NOT_ENOUGH in verdicts:
            return NOT_ENOUGH
        return SUPPORTED if verdicts == {SUPPORTED} else NOT_SUPPORTED


def decide(
    claims: Claims, suite: Suite, shipped: pl.DataFrame, here: pl.DataFrame
) -> list[Decided]:
    """What the shipped runs and those of a folder say of each claim.

    Args:
        shipped, here: rows of the leaderboard, of these runs.
    """
    rows, every = once(shipped, here)[0], pl.concat([shipped, here])
    rates, found = tuned_rates(rows, suite), []
    for name, claim in claims.claims.items():
        why = _exploratory(_runs(claim, every), claim)
        tests = evaluate(claim, rows, rates, suite).with_columns(
            claim=pl.lit(name), exploratory=pl.lit(why, pl.String)
        )
        found.append(Decided(name, claim, tests.select(*SCHEMA), why))
    return found


def tuned_rates(rows: pl.DataFrame, suite: Suite) -> dict[tuple[str, str], float]:
    """The rate that tuning chose for each task and entry, of those tried at every rate."""
    protocol = suite.protocol
    chosen = chosen_rates(rows, len(protocol.tuning_seeds)).drop_nulls("chosen")
    tried = chosen.filter(pl.col("rates") == len(protocol.rates))
    return {(task, entry): rate for task, entry, rate, _ in tried.iter_rows()}


def evaluate(
    claim: Claim, rows: pl.DataFrame, rates: Mapping[tuple[str, str], float], suite: Suite
) -> pl.DataFrame:
    """A row for each task, split and pair of a claim.

    A run that failed, or whose encoding does not reach the split's length, counts as one that does
    not generalise, with the error 1.

    Args:
        rows: of the leaderboard, each run once.
        rates: of ``tuned_rates``.
    """
    a, *others = claim.encodings
    runs = _runs(claim, rows)
    found = [
        _row(claim, (task, split, limit, suite.tasks[task].fits), (a, b), rates, runs)
        for task, splits in claim.tasks.items()
        for split, limit in splits.items()
        for b in others
    ]
    return pl.DataFrame(found, SCHEMA)


def commands(claim: Claim, suite: Suite, rates: Mapping[tuple[str, str], float]) -> list[list[str]]:
    """The arguments of ``pe-lab`` that make the runs of a claim: of the suite, which tunes too, or
    with the chosen rates for other seeds than the suite's."""
    pairs = [(task, entry) for task in claim.tasks for entry in claim.encodings]
    entries = [f"pe={','.join(claim.encodings)}", f"tasks={','.join(claim.tasks)}"]
    line = ["suite", suite.name, *entries]
    if {*claim.seeds} <= {*range(suite.protocol.seeds)}:
        return [line]
    seeds = f"seed={','.join(map(str, claim.seeds))}"
    lines = [
        ["-m", *suite.common, *suite.tasks[task].words, *suite.words(entry),
         f"train.lr={rates.get((task, entry), 'RATE')}", seeds]
        for task, entry in pairs
    ]  # fmt: skip
    return lines if rates.keys() >= {*pairs} else [[*line, "phases=tuning"], *lines]


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


def learned(row: Mapping[str, Any], side: str) -> bool:
    """Whether at least half of the seeds of a side fit the task in domain."""
    return bool(row[f"fits_{side}"] >= LEARNED * row[f"n_{side}"])


def _runs(claim: Claim, rows: pl.DataFrame) -> pl.DataFrame:
    """The rows of the runs that decide a claim, at any rate (see ``Claim.names``)."""
    return rows.filter(
        pl.col("task").is_in([*claim.tasks]),
        pl.col("phase").is_in(PHASES),
        pl.col("seed").is_in(claim.seeds),
        pl.col("seed") == pl.col("seed_init"),
    )


def _exploratory(rows: pl.DataFrame, claim: Claim) -> str | None:
    if claim.time is None:
        return "it is not registered"
    runs = rows.filter(pl.col("entry").is_in(claim.encodings))
    early = runs.filter(pl.col("started").fill_null(0.0) < claim.time).unique("run_id")
    if early.is_empty():
        return None
    which = f"{counted(len(early), 'run')} began before it was registered or did not record when"
    return f"{which}, such as {early['run_id'].sort()[0]}"


def _row(
    claim: Claim,
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
        # Without a rate, no run.
        every = rows.filter(
            pl.col("task") == task, pl.col("entry") == entry, pl.col("lr") == pl.lit(rate)
        ).unique(["seed", "split"], keep="first", maintain_order=True)
        runs = every.filter(pl.col("split") == split)
        inside = every.filter(pl.col("split") == IN_DOMAIN)["error"].fill_null(WORST)
        of_side = runs["error"].fill_null(WORST)
        errors.append(of_side.to_list())
        row |= {
            side: entry,
            f"lr_{side}": rate,
            f"k_{side}": sum(error <= threshold for error in of_side),
            f"n_{side}": len(of_side),
            f"fits_{side}": int((inside <= fits).sum()),
            f"median_{side}": of_side.median(),
        }
        if rate is None:
            missing.append(f"{entry} is not tuned, or failed at every rate")
        elif left := sorted(set(claim.seeds) - set(runs["seed"])):
            seeds = ",".join(map(str, left))
            missing.append(f"{entry} lacks seeds {seeds} at train.lr={rate:g}, which tuning chose")
    if missing:
        return {**row, "verdict": NOT_ENOUGH, "missing": "; ".join(missing)}
    row["p"] = p_value(claim.test, errors[0], errors[1], threshold)
    # The smallest p of three seeds a side is 0.05 but for rounding.
    supported = row["p"] <= claim.level * (1 + 1e-9)
    return {**row, "verdict": SUPPORTED if supported else NOT_SUPPORTED}
