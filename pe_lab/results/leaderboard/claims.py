"""Preregistered claims about a suite: a yaml of hypotheses, each with the runs and the test that
decide it, registered before these runs begin."""

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from importlib.resources import files
from math import comb
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import polars as pl
from pydantic import Field, model_validator

from pe_lab.core.errors import DamagedError, PeLabError, UsageError
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.core.output import counted
from pe_lab.core.suggest import check_known
from pe_lab.core.validation import closed, read_checked
from pe_lab.results.leaderboard.families import LEARNED
from pe_lab.results.leaderboard.scores import WORST, chosen_rates, once
from pe_lab.results.suite import OTHER_SEEDS, SCORE, Suite
from pe_lab.results.suite_file import Once, Seed

logger = logging.getLogger("pe_lab")

FILE = "claims.yaml"
"""Below ``runs_dir``: the claims by which the leaderboard calls its runs planned."""
PHASES = (SCORE, OTHER_SEEDS)
"""The phases of the runs that a claim is about: those of the suite's number of steps."""
Threshold = Annotated[float, Field(ge=0, lt=1)]


@closed
class Claim:
    """What is claimed, and how it is decided.

    Args:
        encodings: the first is claimed to be better than each of the others.
        tasks: task -> split -> the largest error that counts as generalised (in domain: as
            learned), a share. The claim is of each of them.
        seeds: of the runs, each of initial weights and data.
        test: Fisher's exact test of how many seeds generalise.
        level: the p-value up to which a test supports the claim.
        written: when it was registered, with the zone.
        git_revision: of pe-lab at that time; None: not known.
        digest: SHA-256 of all of these and the suite.
    """

    hypothesis: Annotated[str, Field(min_length=1)]
    encodings: Annotated[Once[str], Field(min_length=2)]
    tasks: Annotated[
        dict[str, Annotated[dict[str, Threshold], Field(min_length=1)]], Field(min_length=1)
    ]
    seeds: Annotated[Once[Seed], Field(min_length=2)]
    test: Literal["fisher"] = "fisher"
    level: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    written: str | None = None
    git_revision: str | None = None
    digest: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if least_p(len(self.seeds)) > self.level:
            enough = next(n for n in range(1, 1000) if least_p(n) <= self.level)
            raise ValueError(
                f"no outcome of {len(self.seeds)} seeds a side has a p of at most {self.level:g}: "
                f"list {enough} seeds or more"
            )
        if (self.written is None) != (self.digest is None):
            raise ValueError("written and digest are set by preregister=true: leave both out")
        return self

    @property
    def time(self) -> float | None:
        """``written`` in seconds since 1970; None: it is not registered."""
        return datetime.fromisoformat(self.written).timestamp() if self.written else None

    @property
    def names(self) -> pl.Expr:
        """Whether a row of the leaderboard is of a run that decides it."""
        return (
            pl.col("task").is_in([*self.tasks])
            & pl.col("entry").is_in(self.encodings)
            & pl.col("phase").is_in(PHASES)
            & pl.col("seed").is_in(self.seeds)
            & (pl.col("seed") == pl.col("seed_init"))
        )


@closed
class Claims:
    """A file of claims about a suite, which it has by name and digest: ``v2-2a77e5da``."""

    suite: str
    claims: Annotated[dict[str, Claim], Field(min_length=1)]


def least_p(seeds: int) -> float:
    """The smallest p-value that Fisher's exact test, one-sided, can give with so many seeds a side:
    that of all of one side and none of the other, 1 / C(2n, n)."""
    return 1 / comb(2 * seeds, seeds)


def digest_of(suite: str, claim: Mapping[str, Any]) -> str:
    """64 hex digits that identify what a claim says, given its keys and values."""
    content = {key: value for key, value in {**claim, "suite": suite}.items() if key != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_claims(path: Path) -> Claims:
    """The claims in a file.

    Raises:
        UsageError: the file cannot be read or is none of claims.
        DamagedError: a claim was changed after it was registered.
    """
    keys = [*Claims.__annotations__, *Claim.__annotations__]
    claims, _ = read_checked(path, Claims, keys, "docs/suite.md")
    for name, claim in claims.claims.items():
        if claim.digest is not None and claim.digest != digest_of(claims.suite, vars(claim)):
            raise DamagedError(
                f"{path}: {name} does not fit its digest, it was changed after it was registered: "
                "put back what it said, or remove written, git_revision and digest and register "
                "it anew"
            )
    return claims


def check_claims(path: Path, claims: Claims, suite: Suite, entries: Sequence[str]) -> None:
    """UsageError for claims of another suite, or of entries, tasks or splits that there are not."""
    if claims.suite != suite.version:
        raise UsageError(f"{path}: suite: it is {suite.version} now, and not {claims.suite}")
    for name, claim in claims.claims.items():
        checks = [("encodings", entry, [*entries]) for entry in claim.encodings]
        checks += [("tasks", task, [*suite.tasks]) for task in claim.tasks]
        for task in claim.tasks.keys() & suite.tasks.keys():
            known = [*suite.tasks[task].thresholds]
            checks += [(f"tasks.{task}", split, known) for split in claim.tasks[task]]
        for key, value, known in checks:
            check_known(f"{path}: claims.{name}.{key}: {{}} is unknown", [value], known)


def shipped_claims(name: str) -> Path:
    """Where the package has the preregistered claims about a suite; there may be no such file."""
    return Path(str(files("pe_lab.results.leaderboard").joinpath(f"{name}.claims.yaml")))


def registered(runs_dir: Path, suite: Suite) -> list[Claim]:
    """The shipped claims about a suite, and those in ``runs_dir``. A file that cannot be read as
    claims is left out, with a warning."""
    found: list[Claim] = []
    for path in (shipped_claims(suite.name), runs_dir / FILE):
        try:
            claims = read_claims(path) if path.exists() else None
        except PeLabError as error:
            logger.warning("%s", error)
            continue
        found += claims.claims.values() if claims and claims.suite == suite.version else []
    return found


def planned(claims: Iterable[Claim]) -> pl.Expr:
    """The digest of the earliest claim that names a row's run and was registered before it began;
    null: the run is exploratory."""
    found = pl.lit(None, pl.String)
    registered = [(claim.time, claim) for claim in claims if claim.time is not None]
    for time, claim in sorted(registered, key=lambda pair: pair[0], reverse=True):
        before = claim.names & (pl.col("started") >= time)
        found = pl.when(before).then(pl.lit(claim.digest)).otherwise(found)
    return found


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
        why = _exploratory(every, claim)
        tests = evaluate(claim, rows, rates, suite).with_columns(
            claim=pl.lit(name), exploratory=pl.lit(why, pl.String)
        )
        found.append(Decided(name, claim, tests.select(*SCHEMA), why))
    return found


def tuned_rates(rows: pl.DataFrame, suite: Suite) -> dict[tuple[str, str], float]:
    """The rate that tuning chose for each task and entry, of those tried at every rate."""
    protocol = suite.protocol
    chosen = chosen_rates(rows, protocol).drop_nulls("chosen")
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
    runs = rows.filter(claim.names)
    found = []
    for task, splits in claim.tasks.items():
        for split, limit in splits.items():
            limits = limit, suite.tasks[task].fits
            sides = [
                _side(runs, claim, (task, split), entry, rates, limits) for entry in claim.encodings
            ]
            found += [_tested(claim, (task, split, limit), sides[0], b) for b in sides[1:]]
    return pl.DataFrame(found, SCHEMA)


def p_value(a: Sequence[float], b: Sequence[float], threshold: float) -> float:
    """Fisher's exact test of how many errors are at most ``threshold``, one-sided: how probable it
    would be that so many more of a than of b are, if both were alike."""
    # Imported here: a second.
    from scipy.stats import fisher_exact

    k_a, k_b = (sum(error <= threshold for error in side) for side in (a, b))
    table = [[k_a, len(a) - k_a], [k_b, len(b) - k_b]]
    return float(fisher_exact(table, alternative="greater").pvalue)


def learned(row: Mapping[str, Any], side: str) -> bool:
    """Whether at least half of the seeds of a side fit the task in domain."""
    return bool(row[f"fits_{side}"] >= LEARNED * row[f"n_{side}"])


def _exploratory(rows: pl.DataFrame, claim: Claim) -> str | None:
    if claim.time is None:
        return "it is not registered"
    early = rows.filter(claim.names, pl.col("started").fill_null(0.0) < claim.time)
    early = early.unique("run_id")
    if early.is_empty():
        return None
    which = f"{counted(len(early), 'run')} began before it was registered or did not record when"
    return f"{which}, such as {early['run_id'].sort()[0]}"


class _Side(NamedTuple):
    """The runs of one encoding on a split: the columns of ``SCHEMA`` without the side, the errors,
    and which runs are missing."""

    columns: dict[str, Any]
    errors: list[float]
    missing: str


def _side(
    rows: pl.DataFrame,
    claim: Claim,
    of: tuple[str, str],
    entry: str,
    rates: Mapping[tuple[str, str], float],
    limits: tuple[float, float],
) -> _Side:
    task, split = of
    threshold, fits = limits
    rate = rates.get((task, entry))
    # Without a rate, no run.
    every = rows.filter(
        pl.col("task") == task, pl.col("entry") == entry, pl.col("lr") == pl.lit(rate)
    ).unique(["seed", "split"], keep="first", maintain_order=True)
    runs = every.filter(pl.col("split") == split)
    inside = every.filter(pl.col("split") == IN_DOMAIN)["error"].fill_null(WORST)
    errors = runs["error"].fill_null(WORST)
    columns = {
        "": entry,
        "lr_": rate,
        "k_": int((errors <= threshold).sum()),
        "n_": len(errors),
        "fits_": int((inside <= fits).sum()),
        "median_": errors.median(),
    }
    missing = ""
    if rate is None:
        missing = f"{entry} is not tuned, or failed at every rate"
    elif left := sorted(set(claim.seeds) - set(runs["seed"])):
        seeds = ",".join(map(str, left))
        missing = f"{entry} lacks seeds {seeds} at train.lr={rate:g}, which tuning chose"
    return _Side(columns, errors.to_list(), missing)


def _tested(claim: Claim, of: tuple[str, str, float], a: _Side, b: _Side) -> dict[str, Any]:
    row: dict[str, Any] = dict(zip(("task", "split", "threshold"), of, strict=True))
    for name, side in (("a", a), ("b", b)):
        row |= {f"{key}{name}": value for key, value in side.columns.items()}
    if missing := "; ".join(filter(None, (a.missing, b.missing))):
        return {**row, "verdict": NOT_ENOUGH, "missing": missing}
    row["p"] = p_value(a.errors, b.errors, of[2])
    # The smallest p of three seeds a side is 0.05 but for rounding.
    supported = row["p"] <= claim.level * (1 + 1e-9)
    return {**row, "verdict": SUPPORTED if supported else NOT_SUPPORTED}
