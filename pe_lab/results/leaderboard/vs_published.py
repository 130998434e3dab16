"""Published numbers of a suite's tasks and encodings beside those of the suite."""

import math
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import polars as pl
import yaml

from pe_lab.results.cell_text import CLUSTERED, CLUSTERS
from pe_lab.results.formats import Cell, Table
from pe_lab.results.leaderboard.scores import CELL, Scores
from pe_lab.results.published import Published, published
from pe_lab.results.statistics.proportions import rate_of, with_rates
from pe_lab.results.suite import Suite
from pe_lab.results.verdicts import RULE, SEEDS, seeds_text, verdict, with_bounds

MODEL = ("model.n_layers", "model.n_heads", "model.d_model")
SHOWN = (*MODEL, "train.steps", "task.length")
"""Keys of a source's protocol that are shown: the suite's are other ones."""


def published_table(found: Scores, tasks: Sequence[str]) -> Table:
    """A row for each published error of a task and an encoding with scored runs, on a split of the
    suite: theirs, and our seeds. The protocols differ, so that a verdict says only on which side of
    our seeds the published number lies. Of several published sizes the nearest to the suite's is
    taken."""
    names = {choice: task for choice, task in _tasks(found.suite).items() if task in tasks}
    cells = _cells(found.rows).rows_by_key(CELL, named=True, unique=True)
    rows = []
    for number in _nearest(found.suite):
        task = names.get(number.task)
        ours = cells.get((task, number.pe, number.split))
        if task is None or ours is None or number.metric != "error":
            continue
        protocol = {**number.setting, **number.size}
        keys = ", ".join(f"{k.partition('.')[2]} {protocol[k]}" for k in SHOWN if k in protocol)
        words = (task, number.pe, number.split, number.source, keys, verdict(number, ours))
        numbers = (number.printed, seeds_text(ours), f"{number.seeds or '?'}, {ours['n']}")
        rows.append([Cell(text) for text in (*words, *numbers)])
    return Table(
        title="published errors beside those of the suite, in %",
        columns=[
            *("task", "encoding", "split", "source", "their protocol", "verdict"),
            *("theirs", "seeds of ours", "seeds: theirs, ours"),
        ],
        words=6,
        rows=rows,
        caption=(
            "Ours are in the suite's small setting, no reproduction of a source with another "
            f"protocol. {RULE} {SEEDS} The thresholds are those of the tables of tasks. Not shown "
            "are published errors of whole sequences (sort, majority, unique copy), of other sizes "
            "of a task, and of splits that the suite does not have: pe-lab compare lists them."
        ),
        marks=CLUSTERED if any(CLUSTERS in row[-2].text for row in rows) else "",
    )


def _cells(runs: pl.DataFrame) -> pl.DataFrame:
    """Of each task, entry and split what ``verdict`` and ``seeds_text`` take, over the runs of the
    score that measured the split."""
    measured = runs.filter("counts", pl.col("error").is_not_null())
    return with_rates(
        with_bounds(measured, "error", "n")
        .group_by(CELL)
        .agg(
            n=pl.len().cast(pl.Int64),
            range_low=pl.col("error_low").min(),
            range_high=pl.col("error_high").max(),
            **rate_of(pl.col("error"), pl.col("threshold")),
        )
    )


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
