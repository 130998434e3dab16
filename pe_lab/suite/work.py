"""What of a suite is to be run: its parts in their order, or what the command line names."""

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import product
from typing import get_args

from pe_lab.core.errors import UsageError
from pe_lab.core.suggest import check_known
from pe_lab.results.suite import Suite
from pe_lab.results.suite_file import Group, Phase

DEFAULT = ("tuning", "score")
"""The phases that are run unless others are asked for."""
NAMES = get_args(Phase)


@dataclass(frozen=True)
class Work:
    """Some entries on some tasks, in some phases.

    Args:
        part: of the suite; empty: of none.
        entries: with their columns: ``cope``, ``cope+conv``.
        seeds: how many the score has; None: as many as the protocol says.
    """

    part: str
    tasks: list[str]
    entries: list[str]
    phases: list[str]
    seeds: int | None = None


@dataclass(frozen=True)
class Wanted:
    """What the command line names; empty: all.

    Args:
        entries: names of entries, ``cope`` for all columns and ``cope+conv`` for one.
    """

    tasks: Collection[str] = ()
    entries: Collection[str] = ()
    columns: Collection[str] = ()
    phases: list[str] = field(default_factory=list)
    parts: Collection[int] = ()


def work(suite: Suite, wanted: Wanted) -> list[Work]:
    """The work of a suite that is wanted, part by part; in a suite without parts, all wanted
    entries on all wanted tasks.

    Raises:
        UsageError: a name is unknown, or nothing is left.
    """
    check_known("tasks={}", wanted.tasks, suite.tasks)
    check_known("columns={}", wanted.columns, suite.columns)
    whole = {
        name: tuple(names) for name, names in vars(suite).items() if name in ("tasks", "columns")
    }
    parts = suite.parts or {1: (Group(**whole, entries=tuple(suite.entries)),)}  # type: ignore[call-arg]
    check_known("part={}", [*map(str, wanted.parts)], [*map(str, parts)])
    groups = [
        (str(number) if suite.parts else "", group)
        for number, of_part in parts.items()
        for group in of_part
        if number in wanted.parts or not wanted.parts
    ]
    found = [_chosen(suite, wanted, part, group) for part, group in groups]
    found = [one for one in found if one.tasks and one.entries and one.phases]
    if not found:
        raise UsageError(
            f"suite {suite.name}: no part has these tasks, entries, columns and phases together: "
            "leave one of them out"
        )
    return found


def _chosen(suite: Suite, wanted: Wanted, part: str, group: Group) -> Work:
    own = (suite.split(entry)[0] for entry in wanted.entries)
    yours = [base for base in own if group.yours and base not in suite.entries]
    columns = [name for name in group.columns if name in wanted.columns or not wanted.columns]
    entries = [
        name
        for base, column in product(dict.fromkeys([*group.entries, *yours]), columns)
        if (name := suite.named(base, column)) is not None
        and (not wanted.entries or base in wanted.entries or name in wanted.entries)
    ]
    phases: list[str] = [phase for phase in group.phases if phase in NAMES]
    if wanted.phases:
        phases = [p for p in wanted.phases if p in phases or phases == [*DEFAULT]]
    tasks = [task for task in group.tasks if task in wanted.tasks or not wanted.tasks]
    return Work(part, tasks, entries, phases, group.seeds)
