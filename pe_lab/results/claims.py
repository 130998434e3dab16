"""Preregistered claims about a suite: a yaml of hypotheses, each with the runs and the test that
decide it, registered before these runs begin."""

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from math import comb
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import polars as pl
import yaml
from pydantic import Field, model_validator

from pe_lab.common.errors import DamagedError, PeLabError, UsageError, cannot_write
from pe_lab.common.files import replace_file
from pe_lab.common.output import counted
from pe_lab.common.suggest import did_you_mean
from pe_lab.common.validation import closed, read_checked
from pe_lab.results.suite import OTHER_SEEDS, SCORE, Suite
from pe_lab.results.suite_file import Once, Seed

logger = logging.getLogger("pe_lab")

FILE = "claims.yaml"
"""Below ``runs_dir``: the claims by which the leaderboard calls its runs planned."""
SEE = "docs/plans.md"
PHASES = (SCORE, OTHER_SEEDS)
"""The phases of the runs that a claim is about: those of the suite's number of steps."""
Test = Literal["fisher", "mann_whitney"]
Threshold = Annotated[float, Field(ge=0, lt=1)]


@closed
class Claim:
    """What is claimed, and how it is decided.

    Args:
        encodings: the first is claimed to be better than each of the others.
        tasks: task -> split -> the largest error that counts as generalised (in domain: as
            learned), a share. The claim is of each of them.
        seeds: of the runs, each of initial weights and data.
        test: ``fisher``, of how many seeds generalise, or ``mann_whitney``, of the errors.
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
    test: Test = "fisher"
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

    def names(self, run: Mapping[str, Any]) -> bool:
        """Whether a run of the suite (a row of the leaderboard) is one of those that decide it."""
        return (
            run["task"] in self.tasks
            and run["entry"] in self.encodings
            and run["seed"] in self.seeds
            and run["seed_init"] == run["seed"]
            and run["phase"] in PHASES
        )


@closed
class Claims:
    """A file of claims about a suite, which it has by name and digest: ``v1-38c43db3``."""

    suite: str
    claims: Annotated[dict[str, Claim], Field(min_length=1)]


def least_p(seeds: int) -> float:
    """The smallest p-value that either test, one-sided, can give with so many seeds a side: that of
    all errors of one side below all of the other, 1 / C(2n, n)."""
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
    claims, _ = read_checked(path, Claims, keys, SEE)
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
            if value not in known:
                raise UsageError(
                    f"{path}: claims.{name}.{key}: {value} is unknown: {did_you_mean(value, known)}"
                )


def register(
    path: Path, claims: Claims, suite: Suite, rows: pl.DataFrame, revision: str | None
) -> list[str]:
    """Add time, revision and digest to the claims in a file that have none, and return their names.

    Args:
        rows: of all runs whose numbers are known; one made again has the same numbers.

    Raises:
        UsageError: a seed of a claim is for tuning, or its numbers are known.
        MachineError: the file cannot be written.
    """
    named, now = dict(claims.claims), datetime.now(UTC).isoformat()
    new = [name for name, claim in named.items() if claim.digest is None]
    for name in new:
        known = {run["seed"] for run in rows.iter_rows(named=True) if named[name].names(run)}
        known |= {*suite.protocol.tuning_seeds}
        if used := sorted(known & {*named[name].seeds}):
            raise UsageError(
                f"{path}: claims.{name}.seeds: the numbers of seed {used[0]} are known or for "
                f"tuning: choose other seeds, such as {max(known) + 1} or more"
            )
        content = {**vars(named[name]), "written": now, "git_revision": revision}
        named[name] = Claim(**{**content, "digest": digest_of(claims.suite, content)})
    plain = {name: json.loads(json.dumps(vars(claim))) for name, claim in named.items()}
    content = {"suite": claims.suite, "claims": plain}
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise cannot_write(path, error, "another file") from None
    return new


def registered(runs_dir: Path, suite: Suite) -> list[Claim]:
    """The claims about a suite in ``runs_dir``; a file that is none of claims is a warning."""
    path = runs_dir / FILE
    try:
        claims = read_claims(path) if path.exists() else None
    except PeLabError as error:
        logger.warning("%s", error)
        return []
    return [*claims.claims.values()] if claims and claims.suite == suite.version else []


def planned(run: Mapping[str, Any], started: float | None, claims: Iterable[Claim]) -> str | None:
    """The digest of the earliest claim that names a run and was registered before it began; None:
    the run is exploratory.

    Args:
        started: when it was first started, in seconds since 1970; None: not recorded.
    """
    before = [
        (claim.time, claim.digest)
        for claim in claims
        if started and claim.time and claim.time <= started and claim.names(run)
    ]
    return min(before)[1] if before else None


def planned_note(digests: Sequence[str | None]) -> str:
    """How many runs are planned, as a sentence.

    Args:
        digests: of each run's claim; None: exploratory.
    """
    runs, named = counted(len(digests), "run"), [digest for digest in digests if digest]
    if not named:
        return f"exploratory: no claim (pe-lab plan) names any of these {runs}"
    return f"planned: {len(named)} of {runs}, by {counted(len({*named}), 'claim')}"
