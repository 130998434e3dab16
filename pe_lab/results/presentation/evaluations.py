"""The tables of ``pe-lab eval`` and of ``pe-lab results evaluations=true``."""

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from pe_lab.core.errors import RunError
from pe_lab.core.metrics import CHARTED
from pe_lab.core.suggest import check_known
from pe_lab.evaluate.record import TRAINED
from pe_lab.results.evaluations import AT_TEST, grouped_evaluations, recorded, shown_encoding
from pe_lab.results.frame import runs_of
from pe_lab.results.labels import named
from pe_lab.results.presentation.formats import Table
from pe_lab.results.presentation.tables import (
    Layout,
    Spread,
    pooled_keys_note,
    tables,
    with_differs,
)


def evaluation_tables(
    evaluated: pl.DataFrame, metric: str = "error", spread: Spread = "sd", across: str = "length"
) -> list[Table]:
    """A table for each task and split, a column for each length, a row for each encoding and
    setting with mean and spread over seeds.

    Args:
        evaluated: from ``evaluate``.
        across: split makes one table a task, where every split has one length.

    Raises:
        UsageError: unknown metric.
        RunError: a run cannot be read any more.
    """
    runs = runs_of_evaluations(evaluated)
    several = evaluated["pe"].n_unique() > 1 and (evaluated["encoding"] != TRAINED).any()
    by = ["encoding", *(["in place of"] if several else []), "setting"]
    groups, _ = grouped_evaluations(evaluated, runs, by, metric, across)
    found = tables(groups, named(runs), Layout(by, metric, spread, across=across))
    return [_in_order(table, evaluated, ["encoding"]) for table in found]


def runs_of_evaluations(evaluated: pl.DataFrame) -> pl.DataFrame:
    """The runs of these evaluations, as ``read_runs`` has them.

    Raises:
        RunError: one of them cannot be read any more.
    """
    runs = runs_of(evaluated["path"].unique(maintain_order=True))
    for message in runs.filter(pl.col("state") == "broken")["message"]:
        raise RunError(f"{message}; what was measured is recorded")
    return runs


def recorded_tables(
    runs: pl.DataFrame,
    metric: str,
    by: Sequence[str] | None,
    splits: Sequence[str] | None,
    sort: str | None,
    spread: Spread,
) -> tuple[list[Table], pl.DataFrame, list[str]]:
    """The tables of all recorded evaluations of these runs, the same as numbers, and notes.

    Args:
        metric, by, splits, sort, spread: as in ``pe-lab results``; None: its default.

    Raises:
        UsageError: one of them has an unknown value.
    """
    evaluated, notes = recorded(runs)
    if evaluated.is_empty():
        none = "none of these runs was evaluated: pe-lab eval run=FOLDER lengths=128,256 does it"
        return [], pl.DataFrame(), notes or [none]
    generated = evaluated["error_generated"].is_not_null().any()
    metric = check_metric(metric, generated)
    evaluated = _of_splits(evaluated, splits)
    runs = runs.filter(pl.col("path").is_in(evaluated["path"].unique().to_list()))
    by = list(dict.fromkeys([*AT_TEST, *(by or ["setting"])]))
    by_length = evaluated.sort("tokens", maintain_order=True)
    groups, rows = grouped_evaluations(by_length, runs, by, metric)
    names = named(runs)
    found = tables(groups, names, Layout(by, metric, spread, sort, "length"))
    if sort is None:
        found = [_in_order(table, evaluated, AT_TEST) for table in found]
    notes += pooled_keys_note(rows, by)
    several = evaluated["task"].n_unique() > 1
    for (task,), rows in evaluated.group_by("task", maintain_order=True):
        notes += [f"{task}: {note}" if several else note for note in scales(rows)]
    return found, with_differs(groups, names), notes


def check_metric(metric: str, generate: bool) -> str:
    """The metric; UsageError for an unknown name."""
    names = [*(metric.name for metric in CHARTED), "accuracy"]
    names += [f"{m.name}_generated" for m in CHARTED if m.generated and generate]
    check_known("metric={}", [metric], names)
    return metric


def _of_splits(evaluated: pl.DataFrame, splits: Sequence[str] | None) -> pl.DataFrame:
    measured = evaluated["split"].unique(maintain_order=True).to_list()
    check_known("splits={}", splits, measured)
    return evaluated.filter(pl.col("split").is_in(splits or measured))


def _in_order(table: Table, evaluated: pl.DataFrame, columns: Sequence[str]) -> Table:
    """With its rows in the order of these columns in ``evaluated``, trained encodings first."""
    shown = evaluated.select(encoding=shown_encoding(), **{"in place of": pl.col("pe")})
    rows = shown.select(columns).unique(maintain_order=True).rows()
    order = {row: n for n, row in enumerate(rows)}
    key = len(columns)
    return replace(
        table, rows=sorted(table.rows, key=lambda row: order[tuple(c.text for c in row[:key])])
    )


def scales(evaluated: pl.DataFrame) -> list[str]:
    """The scale k of each encoding that has one, at each length."""
    scaled = evaluated.filter(pl.col("k").is_not_null(), pl.col("encoding") != TRAINED)
    encodings: dict[str, list[str]] = {}
    for (encoding,), rows in scaled.group_by("encoding", maintain_order=True):
        pairs = rows.select("k", "length").unique(maintain_order=True).rows()
        at = ", ".join(f"{k:.4g} at {length}" for k, length in pairs)
        encodings.setdefault(at, []).append(str(encoding))
    return [f"scale k of {', '.join(alike)}: {at}" for at, alike in encodings.items()]


def notes(evaluated: pl.DataFrame) -> list[str]:
    """What the tables do not show: scales, cells without numbers, parameters left out."""
    found = scales(evaluated)
    empty = evaluated.filter(pl.col("message").is_not_null()).with_columns(
        encoding=shown_encoding()
    )
    for (_, encoding, split, message), rows in empty.group_by(
        "pe", "encoding", "split", "message", maintain_order=True
    ):
        lengths = ", ".join(map(str, rows["length"].unique(maintain_order=True)))
        found.append(f"{encoding} n/a on {split} at {lengths}: {message}")
    left_out = evaluated.filter(pl.col("left_out") > 0)
    for (pe, number), rows in left_out.group_by("pe", "left_out", maintain_order=True):
        encodings = ", ".join(rows["encoding"].unique(maintain_order=True))
        found.append(f"{number:,} trained parameters of {pe} are left out under {encodings}")
    earlier = int(evaluated["earlier"].sum())
    if earlier:
        found.append(
            f"{earlier} of {len(evaluated)} numbers were measured before; force=true measures anew"
        )
    return found
