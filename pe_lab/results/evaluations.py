"""The evaluations of runs, read from evaluations.jsonl: a row for each run, encoding, split and
length; and their means over seeds."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from pe_lab.core.errors import RunError
from pe_lab.core.metrics import GENERATED
from pe_lab.evaluate.record import (
    CELL_COLUMNS,
    METRIC_COLUMNS,
    NAME,
    NOT_FINITE,
    TRAINED,
    not_finite,
    read_evaluations,
)
from pe_lab.results.aggregate import (
    THRESHOLDED,
    data_keys,
    group_keys,
    summarized,
)
from pe_lab.results.statistics.seeds import NO_THRESHOLD
from pe_lab.store.run_folder import RunFolder

Row = Mapping[str, Any]
AT_TEST = ("encoding", "in place of")
"""The encoding at test time, and the trained one."""


def evaluated_paths(runs: pl.DataFrame) -> list[str]:
    """The finished ones of these runs that were evaluated."""
    finished = runs.filter(pl.col("state") == "finished")
    # A link to nothing, too: reading it says so.
    return [path for path in finished["path"] if os.path.lexists(Path(path) / NAME)]


def recorded(runs: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """All evaluations of these runs (``frame.read_runs``), a row for each run, encoding, split and
    length, and a message for each file that cannot be read.

    What was measured several times counts once: with the most sequences, and of these the last.
    The columns are those of ``evaluate``, with the ``length`` in tokens read and without those of
    a single evaluation.
    """
    facts = ("path", "task", "pe", "seed", "setting")
    evaluated = runs.filter(pl.col("path").is_in(evaluated_paths(runs))).select(facts)
    measured = METRIC_COLUMNS | dict.fromkeys(GENERATED, pl.Float64)
    table, unread = [], []
    for run in evaluated.iter_rows():
        path = Path(run[0])
        try:
            cells = _cells(read_evaluations(RunFolder(path)))
        except RunError as error:
            unread.append(f"{error}; until then what it holds is left out")
            continue
        for (encoding, split, tokens), row in sorted(cells.items(), key=_order):
            numbers = [row.get(name) for name in measured]
            cell = [*run, encoding, row.get("k"), split, tokens, tokens, not_finite(row)]
            table.append([*cell, *numbers])
    columns = {**CELL_COLUMNS, NOT_FINITE: pl.String, **measured}
    frame = pl.DataFrame(table, columns, orient="row")
    return frame, unread


def _cells(rows: Iterable[Row]) -> dict[tuple[str, str, int], Row]:
    found: dict[tuple[str, str, int], Row] = {}
    for row in rows:
        cell = _encoding(row), row["split"], row["tokens"]
        before = found.get(cell, {"sequences": 0})
        if row["sequences"] == before["sequences"]:
            # Generated answers may have been measured once only.
            found[cell] = {**before, **row}
        elif row["sequences"] > before["sequences"]:
            found[cell] = row
    return found


def _encoding(row: Row) -> str:
    """The encoding as on the command line, with the scale where one was set for all."""
    if row["trained"]:
        return TRAINED
    encoding, k = str(row["encoding"]), row["pe"].get("k")
    return encoding if k is None or ":k=" in encoding else f"{encoding}:k={k:.15g}"


def _order(cell: tuple[tuple[str, str, int], Row]) -> tuple[bool, int]:
    (encoding, _, tokens), _ = cell
    return encoding != TRAINED, tokens


def grouped_evaluations(
    evaluated: pl.DataFrame,
    runs: pl.DataFrame,
    by: Sequence[str],
    metric: str = "error",
    across: str = "length",
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """As ``aggregate.grouped`` without what depends on a threshold, one row for each group, split
    and length, with the scale ``k`` where the group has one; and the rows that are grouped, whose
    task is the title of their table.

    Args:
        evaluated: as ``recorded`` or ``evaluate`` gives them.
        runs: the runs that they are of, with any others.
        by: ``encoding``, ``in place of`` and keys of the runs.
        metric: a column of ``evaluated``, or accuracy (1 - error).
        across: what the columns of a table are: length, or split for a table of all splits.

    Raises:
        UsageError: an unknown key.
    """
    runs = runs.drop("eval.sequences")  # n_seq holds how many were measured.
    keys = group_keys(by, [*runs.columns, *AT_TEST])
    further = [c for c in runs.columns if c not in evaluated.columns or c == "path"]
    value = 1 - pl.col("error") if metric == "accuracy" else pl.col(metric)
    rows = evaluated.join(runs.select(further), on="path", how="left", maintain_order="left")
    rows = rows.with_row_index("_row").with_columns(
        pl.struct(*data_keys(runs), "n_seq").hash().alias("_data"),
        title(across).alias("_title"),
        encoding=shown_encoding(),
        **{"in place of": pl.col("pe")},
    )
    # Tables in the order of their titles, columns as they come.
    rows = rows.with_columns(_column=pl.col("_row").min().over("_title", across))
    rows = rows.sort("_title", "_column", "_row")
    values = rows.with_columns(
        _seed=pl.col("seed"),
        _setting=pl.col("setting"),
        _value=value.cast(pl.Float64),
        _guess=pl.col("guess"),
        _not_finite=pl.col(NOT_FINITE).str.split(" ").list.contains(metric),
        _threshold=NO_THRESHOLD,
    )
    column = ["task", "split", *(["length"] if across == "length" else [])]
    names = ["task", *keys, *column[1:]]
    # Thresholds are of the lengths of a suite. Here k is the scale.
    groups = summarized(values, names, column, metric).drop(THRESHOLDED)
    one = pl.col("k").min() == pl.col("k").max()
    scale = rows.group_by(names, maintain_order=True).agg(k=pl.when(one).then(pl.col("k").min()))
    groups.insert_column(len(names), scale["k"])
    return groups, rows.with_columns(task="_title")


def title(across: str) -> pl.Expr:
    """The title of the table that a row belongs to."""
    return pl.col("task") if across == "split" else pl.format("{}, {}", "task", "split")


def shown_encoding() -> pl.Expr:
    """The encoding at test time; ``rope (trained)`` for the trained one."""
    trained = pl.col("encoding") == TRAINED
    return pl.when(trained).then(pl.format("{} (trained)", "pe")).otherwise("encoding")
