"""Published numbers of a suite's tasks and encodings, each with the suite's runs of the same."""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import polars as pl
import yaml

from pe_lab.results.leaderboard.scores import CELL, Scores
from pe_lab.results.published import Published, published, with_bounds
from pe_lab.results.statistics.seeds import rate_of, with_rates
from pe_lab.results.suite import Suite

MODEL = ("model.n_layers", "model.n_heads", "model.d_model")


class Beside(NamedTuple):
    """A published number of a task of the suite, and our cell: what ``published.verdict`` reads,
    with ``k``, ``median``, ``threshold`` and ``values``."""

    task: str
    number: Published
    ours: Mapping[str, Any]


def beside_published(found: Scores, tasks: Sequence[str]) -> list[Beside]:
    """Each published error of a task and an encoding with scored runs, on a split of the suite. Of
    several published sizes the nearest to the suite's is taken."""
    names = {choice: task for choice, task in _tasks(found.suite).items() if task in tasks}
    measured = found.rows.filter("counts", pl.col("error").is_not_null())
    cells = with_rates(
        with_bounds(measured, "error", "n")
        .group_by(CELL)
        .agg(
            n=pl.len().cast(pl.Int64),
            range_low=pl.col("error_low").min(),
            range_high=pl.col("error_high").max(),
            **rate_of(pl.col("error"), pl.col("threshold")),
        )
    ).rows_by_key(CELL, named=True, unique=True)
    return [
        Beside(names[number.task], number, ours)
        for number in _nearest(found.suite)
        if number.task in names
        and number.metric == "error"
        and (ours := cells.get((names[number.task], number.pe, number.split)))
    ]


def _nearest(suite: Suite) -> list[Published]:
    """Of each published table the row of each encoding whose model is nearest to the suite's: the
    smallest sum of the log-ratios of layers, heads and width. Rows of a table that differ in the
    task, as in its number of variables, are of the suite's value only."""
    words = (word.partition("=") for word in suite.model)
    ours = {key: float(value) for key, _, value in words if key in MODEL}
    best: dict[tuple[str, ...], tuple[float, list[Published]]] = {}
    for number in filter(_same_task, published()):
        theirs = {**number.setting, **number.size}
        far = sum(
            abs(math.log(float(theirs[key]) / ours[key]))
            for key in MODEL
            if key in theirs and key in ours
        )
        key = (number.source, number.where, number.task, number.pe, number.split, number.metric)
        least, numbers = best.setdefault(key, (far, []))
        if far < least:
            best[key] = (far, [number])
        elif far == least:
            numbers.append(number)
    return [number for _, numbers in best.values() for number in numbers]


def _same_task(number: Published) -> bool:
    """Whether the keys of the task in which rows of this table differ have the values of its yaml,
    as in the suite."""
    ours = _task_yaml(number.task)
    named = ((key.partition("task.")[2], value) for key, value in number.size.items())
    return all(ours[key] == value for key, value in named if key in ours)


@cache
def _task_yaml(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(
        files("pe_lab.conf").joinpath("task", f"{name}.yaml").read_text("utf-8")
    )
    return content


def _tasks(suite: Suite) -> dict[str, str]:
    """Task of conf/task/ -> its name in the suite, where it runs as its preset has it."""
    found: dict[str, str] = {}
    for name, task in suite.tasks.items():
        words = [word.partition("=") for word in task.words]
        changed = [key for key, _, _ in words if key.startswith("task.")]
        (choice,) = (value for key, _, value in words if key == "task")
        if not changed:
            found[choice] = name
    return found
