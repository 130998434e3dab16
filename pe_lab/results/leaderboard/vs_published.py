"""Published numbers of a suite's tasks and encodings beside those of the suite."""

import math
from collections.abc import Sequence

import polars as pl

from pe_lab.common.console import percent
from pe_lab.results.formats import Cell, Table
from pe_lab.results.leaderboard.scores import Scores
from pe_lab.results.published import Published, published
from pe_lab.results.suite import Suite

MODEL = ("model.n_layers", "model.n_heads", "model.d_model")
SHOWN = (*MODEL, "train.steps", "task.length")
"""Keys of a source's protocol that are shown: the suite's are other ones."""


def published_table(found: Scores, tasks: Sequence[str]) -> Table:
    """A row for each published error of a task and an encoding with scored runs, on a split of the
    suite: theirs, and the range of our seeds. The protocols differ, so that a verdict says only on
    which side of our seeds the published number lies. Of several published sizes the nearest to the
    suite's is taken."""
    names = {choice: task for choice, task in _tasks(found.suite).items() if task in tasks}
    parts = found.rows.filter("counts").partition_by("task", "entry", "split", as_dict=True)
    rows = []
    for number in _nearest(found.suite):
        task = names.get(number.task)
        part = parts.get((task, number.pe, number.split))
        if task is None or part is None or number.metric != "error":
            continue
        measured = part.filter(pl.col("error").is_not_null())
        ours = measured["error"].to_list()
        if not ours:
            continue
        protocol = {**number.setting, **number.size}
        keys = ", ".join(f"{k.partition('.')[2]} {protocol[k]}" for k in SHOWN if k in protocol)
        median = float(pl.Series(ours).median() or 0)  # type: ignore[arg-type]
        cells = (task, number.pe, number.split, number.source, keys, _verdict(number, measured))
        numbers = (
            number.printed,
            f"{percent(median)} ({percent(min(ours))}..{percent(max(ours))})",
            f"{number.seeds or '?'}, {len(ours)}",
        )
        rows.append([Cell(text) for text in (*cells, *numbers)])
    return Table(
        title="published errors beside those of the suite, in %",
        columns=[
            *("task", "encoding", "split", "source", "their protocol", "verdict"),
            *("theirs", "ours", "seeds: theirs, ours"),
        ],
        words=6,
        rows=rows,
        caption=(
            "Ours: the median of our seeds and their range, in the suite's small setting; it is no "
            "reproduction of a source with another protocol. Within ours: the published number, as "
            "rounded, meets the range, or is above it by less than one of our answers. Not shown "
            "are published errors of whole sequences (sort, majority, unique copy) and of splits "
            "that the suite does not have: pe-lab compare lists them."
        ),
    )


def _nearest(suite: Suite) -> list[Published]:
    """Of each published table the row of each encoding whose model is nearest to the suite's: the
    smallest sum of the log-ratios of layers, heads and width."""
    words = (word.partition("=") for word in suite.model)
    ours = {key: float(value) for key, _, value in words if key in MODEL}
    best: dict[tuple[str, ...], tuple[float, list[Published]]] = {}
    for number in published():
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


def _verdict(number: Published, measured: pl.DataFrame) -> str:
    """On which side of our errors the published one lies. A run of n answers does not have errors
    between two of its n + 1 possible ones."""
    error, n = pl.col("error"), pl.col("n")
    least, most, one = measured.select(least=error.min(), most=error.max(), one=1 / n.max()).row(0)
    if number.high < least:
        return "ours higher"
    return "ours lower" if number.low >= most + one else "within ours"
