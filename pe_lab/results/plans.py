"""Plans: a hypothesis, the runs that decide it and the test, written down before these runs.

A plan is a yaml with a digest (SHA-256) of all it says. A run is planned if a plan whose digest
fits names its suite, task, entry and seed and was written before the run began.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from math import comb
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from pe_lab.common.errors import DamagedError, PeLabError, UsageError, cannot_write
from pe_lab.common.files import read_file, write_new_file
from pe_lab.common.output import counted
from pe_lab.results.suite import OTHER_SEEDS, SCORE
from pe_lab.results.suite_file import Share
from pe_lab.store.run_folder import RunFolder

logger = logging.getLogger("pe_lab")

FOLDER = "plans"
"""Below ``runs_dir``: where plans are written, and looked for."""
NAMED = 3
"""Most plans that ``planned_note`` names."""
PHASES = (SCORE, OTHER_SEEDS)
"""The phases of the runs that a plan is about: those of the suite's steps."""
Test = Literal["fisher", "mann_whitney"]
MARK = "# Written by pe-lab plan"
HEAD = f"""\
{MARK}, before its runs. A changed value has another digest, and the file is then
# no plan: commit the file or publish the digest, which shows when it was there.
"""


def _with_zone(time: str) -> str:
    if datetime.fromisoformat(time).tzinfo is None:
        raise ValueError("the time needs its zone: 2026-11-22T17:00:00+00:00")
    return time


class Plan(BaseModel):
    """What is claimed, and how it is decided.

    Args:
        hypothesis: in words.
        suite: its name and digest, ``v1-ae09a1ba``.
        encodings: the first is claimed to be better than each of the others.
        tasks: task -> split -> the largest error that counts as generalised (in domain: as
            learned), a share. The claim is of each of them.
        seeds: of the runs, each of initial weights and data.
        test: ``fisher``, of how many seeds generalise, or ``mann_whitney``, of the errors.
        level: the p-value up to which a test supports the claim.
        written: when, with the zone.
        git_revision: of pe-lab; None: not known.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    hypothesis: Annotated[str, Field(min_length=1)]
    suite: str
    encodings: Annotated[tuple[str, ...], Field(min_length=2)]
    tasks: Annotated[dict[str, dict[str, Share]], Field(min_length=1)]
    seeds: Annotated[tuple[NonNegativeInt, ...], Field(min_length=2)]
    test: Test
    level: Annotated[float, Field(gt=0, lt=1)]
    written: Annotated[str, AfterValidator(_with_zone)]
    git_revision: str | None

    @property
    def suite_name(self) -> str:
        """``v1``."""
        return self.suite.rpartition("-")[0]

    @property
    def time(self) -> float:
        """``written`` in seconds since 1970."""
        return datetime.fromisoformat(self.written).timestamp()

    @property
    def digest(self) -> str:
        """64 hex digits of everything above."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def names(self, run: Mapping[str, Any]) -> bool:
        """Whether a run (see ``planned``) is one of those that decide the plan."""
        return run["seed"] in self.seeds and self.is_about(run)

    def is_about(self, run: Mapping[str, Any]) -> bool:
        """Whether a run is such a one but for its seed."""
        return (
            run["suite"] == self.suite
            and run["task"] in self.tasks
            and run["entry"] in self.encodings
            and run["seed_init"] == run["seed"]
            and run["phase"] in PHASES
        )


def least_p(seeds: int) -> float:
    """The smallest p-value that either test, one-sided, can give with so many seeds a side: that of
    all errors of one side below all of the other, 1 / C(2n, n)."""
    return 1 / comb(2 * seeds, seeds)


def planned(run: Mapping[str, Any], started: float | None, plans: Iterable[Plan]) -> str | None:
    """The digest of the earliest plan that names a run and was written before it began; None: the
    run is exploratory.

    Args:
        run: ``suite`` (name and digest), ``task``, ``entry``, ``phase``, ``seed``, ``seed_init``,
            as in the leaderboard's rows.
        started: when it was first started, in seconds since 1970 (``started`` of its folder); None
            where that was not recorded: it then cannot be planned.
    """
    if started is None:
        return None
    found = [plan for plan in plans if plan.time <= started and plan.names(run)]
    return min(found, key=lambda plan: plan.time).digest if found else None


def started(path: Path) -> float | None:
    """When the run of a folder was first started, one that ``force`` replaced included, in seconds
    since 1970; None where that was not recorded or cannot be read."""
    times = []
    # What is damaged, `pe-lab verify` says.
    with suppress(PeLabError, KeyError, IndexError):
        for folder in (path, *path.parent.glob(f"{path.name}.replaced-*")):
            times.append(RunFolder(folder).starts()[0]["time"])
        return min(times)
    return None


def planned_note(digests: Sequence[str | None]) -> str:
    """How many of these runs are planned, as a sentence, with the plans' digests where these are
    few.

    Args:
        digests: of each run's plan; None: exploratory.
    """
    n = sum(digest is not None for digest in digests)
    runs = counted(len(digests), "run")
    if not n:
        return f"exploratory: no plan (pe-lab plan) names any of these {runs}"
    names = sorted({digest[:12] for digest in digests if digest is not None})
    rest = "" if n == len(digests) else "; the rest is exploratory"
    once = " (a run that two plans name is counted for one of them)" if len(names) > 1 else ""
    by = ", ".join(names) if len(names) <= NAMED else f"{len(names)} plans"
    return (
        f"planned: {n} of {runs}, by {by}{once}{rest}. The planned test is that of "
        "pe-lab plan result=FILE, not one of these"
    )


def write_plan(plan: Plan, path: Path) -> None:
    """Write a new file.

    Raises:
        UsageError: there is a file already.
        RunError: it cannot be written.
    """
    content = {**plan.model_dump(mode="json"), "digest": plan.digest}
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_new_file(path, (HEAD + text).encode())
    except FileExistsError:
        raise UsageError(
            f"to={path} exists, and a plan is not written over: choose another name"
        ) from None
    except OSError as error:
        raise cannot_write(path, error, "another to=FILE.yaml") from None


def read_plan(path: Path) -> Plan:
    """The plan in a file.

    Raises:
        UsageError: there is no such file, or it never was a plan.
        DamagedError: it was a plan and is damaged, or its digest is that of something else.
    """
    try:
        text = read_file(path)
        content = yaml.safe_load(text)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror}): give the file of a plan"
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise _no_plan(path, text, f"{reason:.200}") from None
    if not isinstance(content, dict):
        raise _no_plan(path, text, "it has no keys")
    digest = content.pop("digest", None)
    try:
        plan = Plan.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise _no_plan(path, text, f"{key}: {first['msg']}") from None
    if plan.digest != digest:
        raise DamagedError(
            f"{path} does not fit its digest, it was changed after it was written and is no plan: "
            "put back what was written, or write another plan for runs to come"
        )
    return plan


def _no_plan(path: Path, text: bytes, reason: str) -> PeLabError:
    """Of a file with the first line or the last key of a plan: it is damaged, else another file."""
    if text.startswith(MARK.encode()) or b"\ndigest: " in text:
        return DamagedError(
            f"{path} is no plan any more ({reason}): put back what was written, or write another "
            "plan for runs to come"
        )
    return UsageError(f"{path} is no plan ({reason}): give the file of one; pe-lab plan writes one")


def plans_in(folder: Path) -> list[Plan]:
    """The plans of a folder (``runs_dir``/plans); what is none is left out with a warning."""
    plans = []
    for path in sorted(folder.glob("*.yaml")):
        try:
            plans.append(read_plan(path))
        except PeLabError as error:
            logger.warning("%s", error)
    return plans
