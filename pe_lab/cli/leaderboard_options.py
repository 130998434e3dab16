"""The keys of ``pe-lab leaderboard``, and which of them go together."""

from pathlib import Path
from typing import Literal

import polars as pl
from pydantic import PositiveFloat

from pe_lab.cli.leaderboard_files import PARQUET
from pe_lab.common.errors import UsageError
from pe_lab.common.options import CommaSeparated, Flag, Options
from pe_lab.common.suggest import did_you_mean
from pe_lab.config.choices import choices
from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.results.leaderboard.order import SUITE
from pe_lab.results.leaderboard.tables import by_family
from pe_lab.results.output import Format
from pe_lab.results.runs_file import FINDINGS, shipped_findings
from pe_lab.results.suite import DEFAULT, Suite


class LeaderboardOptions(Options):
    """The keys of ``pe-lab leaderboard``."""

    command = "leaderboard"

    suite: str = DEFAULT
    family: CommaSeparated[str] | None = None
    task: CommaSeparated[str] | None = None
    split: CommaSeparated[str] | None = None
    runs_dir: str = "runs"
    shipped: Flag = True
    view: Literal["families", "across", "published", "tuning"] = "families"
    sort: str | None = None
    thresholds: PositiveFloat = 1.0
    format: Format = "table"
    to: Path | None = None


def tasks_of(suite: Suite, options: LeaderboardOptions) -> list[str]:
    """The tasks that the options select.

    Raises:
        UsageError: the suite has no such family, task or split, or not together.
    """
    families = list(dict.fromkeys(task.family for task in suite.tasks.values()))
    splits = [s for task in suite.tasks.values() for s in (IN_DOMAIN, *task.generalises)]
    wanted = {"family": families, "task": list(suite.tasks), "split": list(dict.fromkeys(splits))}
    for key, known in wanted.items():
        for value in getattr(options, key) or ():
            if key == "task" and value not in known and value in choices("task"):
                raise UsageError(
                    f"task={value} is not in suite {suite.name}: {_where(suite, value)}"
                )
            if value not in known:
                raise UsageError(f"{key}={value}: {did_you_mean(value, known)}")
    found = [
        name
        for name, task in suite.tasks.items()
        if (options.family is None or task.family in options.family)
        and (options.task is None or name in options.task)
        and (
            options.split is None
            or any(task.threshold(split) is not None for split in options.split)
        )
    ]
    if not found:
        words = {key: getattr(options, key) for key in wanted if getattr(options, key)}
        line = " ".join(f"{key}={','.join(values)}" for key, values in words.items())
        raise UsageError(f"{line}: no task of suite {suite.name} is of all these; leave one out")
    return found


def _where(suite: Suite, task: str) -> str:
    """What has the results of a task that the suite lacks."""
    names = [name for name, of in suite.tasks.items() if f"task={task}" in of.words]
    if names:
        return f"it has that task with other keys, task={','.join(names)}"
    if task in pl.scan_parquet(shipped_findings()).select("task").unique().collect()["task"]:
        return f"pe-lab results file={FINDINGS} task={task} shows the runs that ship"
    return f"no runs of it ship; pe-lab -m task={task} pe=rope,alibi seed=0,1,2 trains some"


def columns_of(suite: Suite, tasks: list[str], options: LeaderboardOptions) -> dict[str, list[str]]:
    """The tasks of each column of the overview."""
    if options.family is not None:
        return {task: [task] for task in tasks}
    return by_family(suite, tasks)


def check_together(options: LeaderboardOptions) -> None:
    """UsageError for keys of which one would have no effect."""
    chosen = options.model_fields_set
    without: tuple[str, ...] = ()
    why = ""
    if options.to is not None:
        parquet = options.to.suffix == PARQUET
        without = ("split", "view", "format", "sort")
        without += ("family", "task", "thresholds") if parquet else ()
        what = "all runs" if parquet else "P(generalises) of all splits"
        why = f"to={options.to} writes {what}"
    elif options.view != "families":
        without = ("split", "sort", "thresholds")
        of = "in domain" if options.view == "tuning" else "on all scored splits"
        why = f"view={options.view} shows errors {of}"
        if options.format in ("csv", "json"):
            without, why = ("view",), f"format={options.format} has a row for each cell, not a view"
    elif options.format in ("csv", "json"):
        without, why = ("sort",), f"format={options.format} has a row for each cell"
    elif options.split is not None:
        without, why = ("sort",), f"split={','.join(options.split)} is ordered by that split"
    for key in without:
        if key in chosen:
            raise UsageError(f"{key}= has no effect here, as {why}: leave it out")


def check_sort(suite: Suite, tasks: list[str], options: LeaderboardOptions) -> None:
    """UsageError if ``sort`` is no column of every table."""
    if options.sort in (None, SUITE):
        return
    names = list(columns_of(suite, tasks, options))
    if options.task is not None:
        first = [IN_DOMAIN, *suite.tasks[tasks[0]].generalises]
        names = [s for s in first if all(suite.tasks[t].threshold(s) is not None for t in tasks)]
    if options.sort not in names:
        raise UsageError(f"sort={options.sort}: {did_you_mean(options.sort, [*names, SUITE])}")
