"""Preregistered claims about a suite: hypotheses, and the runs and the test that decide them,
written before the runs. docs/suite.md shows such a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import polars as pl
from pydantic import AwareDatetime, ConfigDict, Field
from pydantic.dataclasses import dataclass

from pe_lab.core.errors import UsageError, check_known
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.core.validation import closed, read_checked
from pe_lab.results.statistics import holm
from pe_lab.suite.rows import OTHER_SEEDS
from pe_lab.suite.scores import WORST, choose_rates, fisher, unite
from pe_lab.suite.suite import SCORE, Share, Suite

SUPPORTED, NOT_SUPPORTED, NOT_ENOUGH = "supported", "not supported", "open"
# A claim is open while runs are missing.
# ``a`` is claimed to be the better; ``k`` of ``n`` seeds generalise and ``fits`` fit in domain;
# ``missing`` runs; why the claim is ``exploratory``; ``p_holm``: the claim's corrected p-value.
SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    **dict.fromkeys(("claim", "task", "split", "a", "b"), pl.String),
    **dict.fromkeys(("lr_a", "lr_b"), pl.Float64),
    **dict.fromkeys(("k_a", "n_a", "fits_a", "k_b", "n_b", "fits_b"), pl.Int64),
    **dict.fromkeys(("median_a", "median_b", "threshold", "p", "p_holm"), pl.Float64),
    **dict.fromkeys(("verdict", "missing", "exploratory"), pl.String),
}


@closed
class Claim:
    """What is claimed, and how it is decided.

    Args:
        encodings: the first one is claimed to be better than each of the others.
        tasks: task -> split -> the largest error that counts as generalised.
        seeds: of the runs.
        test: Fisher's exact test, one-sided, of how many seeds generalise.
        level: the largest p-value that supports the claim.
        written: when it was written, with the time zone.
        git_revision, digest: of pe-lab and of the claim at that time.
    """

    hypothesis: str
    encodings: Annotated[tuple[str, ...], Field(min_length=2)]
    tasks: Annotated[
        dict[str, Annotated[dict[str, Share], Field(min_length=1)]], Field(min_length=1)
    ]
    seeds: Annotated[frozenset[int], Field(min_length=2)]
    test: Literal["fisher"] = "fisher"
    level: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    written: AwareDatetime | None = None
    git_revision: str | None = None
    digest: str | None = None

    def runs(self) -> pl.Expr:
        """Return whether a row is of a run that decides the claim."""
        return (
            pl.col("task").is_in([*self.tasks])
            & pl.col("entry").is_in(self.encodings)
            & pl.col("phase").is_in([SCORE, OTHER_SEEDS])
            & pl.col("seed").is_in(self.seeds)
            & (pl.col("seed") == pl.col("seed_init"))
        )


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="allow"))
class Claims:
    """A file of claims about the suite of this name and digest: ``v2-2a77e5da``.

    Its other keys are the words of a preregistration: a rule, lists of runs, claims that have
    another test. Nothing here reads them.
    """

    suite: str
    claims: Annotated[dict[str, Claim], Field(min_length=1)]

    @property
    def words(self) -> list[str]:
        """The keys that nothing here reads."""
        return [key for key in vars(self) if key not in Claims.__annotations__]


def read_claims(path: Path, suite: Suite) -> Claims:
    """Return the claims in a file.

    Raises:
        UsageError: the file cannot be read, or is about another suite, task or split.
    """
    keys = [*Claims.__annotations__, *Claim.__annotations__]
    claims, _ = read_checked(path, Claims, keys, "docs/suite.md")
    if claims.suite != suite.version:
        raise UsageError(f"{path}: it is about suite {claims.suite}, not {suite.version}")
    known = [f"{task}.{split}" for task, of in suite.tasks.items() for split in of.thresholds]
    for name, claim in claims.claims.items():
        used = [f"{task}.{split}" for task, of in claim.tasks.items() for split in of]
        check_known(f"{path}: {name}.tasks.{{}} is unknown", used, known)
    return claims


def decide_claims(
    claims: Claims, suite: Suite, shipped: pl.DataFrame, own: pl.DataFrame
) -> pl.DataFrame:
    """Return a row for each claim, task, split and pair of encodings (``SCHEMA``).

    Only runs at the rate that tuning chose count. A run that failed counts as one that does not
    generalise. ``p_holm`` is a claim's largest p-value, 1 while it is open, with Holm's correction
    over all claims.
    """
    rows, every, tests = unite(shipped, own), pl.concat([shipped, own]), []
    tuned = choose_rates(rows, suite).filter(pl.col("rates") == len(suite.protocol.rates))
    rates = {(task, entry): rate for task, entry, rate, _ in tuned.iter_rows()}
    rows = rows.join(tuned, on=["task", "entry"]).filter(pl.col("lr") == pl.col("chosen"))
    for name, claim in claims.claims.items():
        runs, why = rows.filter(claim.runs()), _why_exploratory(claim, every)
        for task, splits in claim.tasks.items():
            for split, limit in splits.items():
                first, *others = (
                    _side(runs, claim, (task, entry), (split, limit), suite.tasks[task].fits, rates)
                    for entry in claim.encodings
                )
                facts = {"claim": name, "task": task, "split": split, "threshold": limit}
                tests += [{**facts, "exploratory": why, **_test(claim, first, b)} for b in others]
    frame = pl.DataFrame(tests, SCHEMA)
    largest = frame.group_by("claim").agg(pl.col("p").fill_null(1).max())
    corrected = dict(zip(largest["claim"], holm([*largest["p"]]), strict=True))
    return frame.with_columns(p_holm=pl.col("claim").replace_strict(corrected))


def judge_claims(tests: pl.DataFrame) -> dict[str, str]:
    """Return claim -> its verdict: supported if every one of its tests supports it. This needs no
    correction for several tests (intersection-union test, Berger 1982)."""
    verdicts = {}
    for name, verdict in tests.group_by("claim", maintain_order=True).agg("verdict").iter_rows():
        decided = SUPPORTED if {*verdict} == {SUPPORTED} else NOT_SUPPORTED
        verdicts[name] = NOT_ENOUGH if NOT_ENOUGH in verdict else decided
    return verdicts


def _why_exploratory(claim: Claim, rows: pl.DataFrame) -> str | None:
    """Return why a claim does not count as preregistered, None if it does."""
    if claim.written is None:
        return "it does not say when it was written"
    written = claim.written.timestamp()
    early = rows.filter(claim.runs(), pl.col("started").fill_null(0.0) < written)
    runs = early["run_id"].unique().sort()
    return f"{len(runs)} of its runs began before it was written: {runs[0]}" if len(runs) else None


def _side(
    runs: pl.DataFrame,
    claim: Claim,
    place: tuple[str, str],
    limit: tuple[str, float],
    fits: float,
    rates: Mapping[tuple[str, str], float | None],
) -> dict[str, Any]:
    """Return what one encoding has on a split, and which runs are ``missing``."""
    (task, entry), (split, threshold), rate = place, limit, rates.get(place)
    runs = runs.filter(task=task, entry=entry)
    at, inside = (runs.filter(split=name) for name in (split, IN_DOMAIN))
    errors = at["error"].fill_null(WORST)
    missing = f"{entry} is not tuned, or failed at every rate" if rate is None else ""
    if rate is not None and (left := sorted(claim.seeds - {*at["seed"]})):
        seeds = ",".join(map(str, left))
        missing = f"{entry} lacks seeds {seeds} at train.lr={rate:g}, which tuning chose"
    return {
        "": entry, "lr_": rate, "k_": int((errors <= threshold).sum()), "n_": len(errors),
        "fits_": int((inside["error"].fill_null(WORST) <= fits).sum()),
        "median_": errors.median(), "missing": missing,
    }  # fmt: skip


def _test(claim: Claim, a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {
        f"{key}{side}": of[key]
        for side, of in (("a", a), ("b", b))
        for key in a
        if key != "missing"
    }
    if missing := "; ".join(filter(None, (a["missing"], b["missing"]))):
        return {**row, "verdict": NOT_ENOUGH, "missing": missing}
    p = fisher((a["k_"], a["n_"]), (b["k_"], b["n_"]), "greater")
    # The smallest p-value of three seeds a side is 0.05 but for rounding.
    verdict = SUPPORTED if p <= claim.level * (1 + 1e-9) else NOT_SUPPORTED
    return {**row, "p": p, "verdict": verdict}
