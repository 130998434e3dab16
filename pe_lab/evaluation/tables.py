"""What was evaluated as tables: encoding x length, one for each task and split."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from pe_lab.common.errors import UsageError
from pe_lab.common.metrics import GENERATED, METRICS, TITLED, metric_name
from pe_lab.common.suggest import did_you_mean
from pe_lab.evaluation.record import TRAINED
from pe_lab.results.aggregate import grouped
from pe_lab.results.columns import frame_of
from pe_lab.results.frame import FACTS, labels
from pe_lab.results.reader import Record, records_of
from pe_lab.results.sheets import Spread, sheets
from pe_lab.results.tables import Sheet
from pe_lab.store.run_folder import RunFolder

NUMBERS = (*(metric.name for metric in METRICS), *GENERATED)


def tables(
    evaluated: pl.DataFrame,
    metric: str = "error",
    spread: Spread = "both",
    splits_as_columns: bool = False,
) -> list[Sheet]:
    """A sheet for each task and split, a column for each length, a row for each encoding and
    setting with mean and spread over seeds, as ``pe-lab results`` shows them.

    Args:
        evaluated: from ``evaluate``.
        metric: one of the numbers there, or accuracy (1 - error).
        splits_as_columns: one sheet a task, where every split has one length.

    Raises:
        UsageError: there is no such metric.
    """
    frame, told = as_runs(evaluated, splits_as_columns)
    several = evaluated["pe"].n_unique() > 1 and (evaluated["encoding"] != TRAINED).any()
    by = ["encoding", *(["in place of"] if several else []), "setting"]
    groups = grouped(frame, by, metric)
    return [_in_order(sheet, evaluated) for sheet in sheets(groups, told, by, metric, spread)]


def check_metric(metric: str, generate: bool) -> str:
    """The metric; UsageError where the tables have none of that name."""
    known = [*(metric.name for metric in TITLED), "accuracy"]
    known += [f"{m.name}_generated" for m in TITLED if m.generated and generate]
    if metric not in known:
        raise UsageError(f"metric={metric}: {did_you_mean(metric, known)}")
    return metric


def as_runs(
    evaluated: pl.DataFrame, splits_as_columns: bool = False
) -> tuple[pl.DataFrame, dict[str, str]]:
    """A run for each encoding that it was evaluated with, ``encoding`` and what it stands ``in
    place of``, its task that and the split, its splits the lengths: what the tables of runs are
    made from. With the words for their settings (``labels``)."""
    paths = evaluated["path"].unique(maintain_order=True)
    records = list(records_of(RunFolder(Path(path)) for path in paths))
    told = labels(frame_of(records, FACTS))
    known = dict(zip(paths, records, strict=True))
    rows: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for cell in evaluated.iter_rows(named=True):
        title = cell["task"] if splits_as_columns else titled(cell["task"], cell["split"])
        rows.setdefault((cell["path"], cell["encoding"], title), []).append(cell)
    made = [
        _record(known[path], encoding, title, cells, splits_as_columns)
        for (path, encoding, title), cells in rows.items()
    ]
    # On how many each was measured is its own, n_seq.
    return frame_of(made, FACTS).drop("eval.sequences"), told


def titled(task: str, split: str) -> str:
    """What a table of lengths is called."""
    return f"{task}, {split}"


def _record(
    run: Record,
    encoding: str,
    title: str,
    cells: Sequence[dict[str, Any]],
    splits_as_columns: bool,
) -> Record:
    metrics: dict[str, float | None] = {}
    columns = []
    for cell in cells:
        column = cell["split"] if splits_as_columns else str(cell["length"])
        columns.append(column)
        numbers = {name: cell[name] for name in NUMBERS if name in cell}
        if cell["error"] is not None:
            numbers["accuracy"] = 1 - cell["error"]
        numbers["k"] = cell["k"]
        metrics |= {metric_name(column, name): value for name, value in numbers.items()}
    facts = {
        **run.facts,
        "task": title,
        "splits": columns,
        "encoding": label(run.facts["pe"], encoding),
        "in place of": run.facts["pe"],
    }
    return Record(facts, metrics, run.setting)


def label(pe: str, encoding: str) -> str:
    return f"{pe} (trained)" if encoding == TRAINED else encoding


def _in_order(sheet: Sheet, evaluated: pl.DataFrame) -> Sheet:
    """With its rows as they were asked for, the trained encoding first."""
    cells = evaluated.select("pe", "encoding").unique(maintain_order=True).rows()
    order = {label: n for n, label in reversed(list(enumerate(label(*cell) for cell in cells)))}
    return replace(sheet, rows=sorted(sheet.rows, key=lambda row: order[row[0].text]))


def scales(evaluated: pl.DataFrame) -> list[str]:
    """The scale k of each encoding that has one, at each length."""
    given = evaluated.filter(pl.col("k").is_not_null(), pl.col("encoding") != TRAINED)
    words: dict[str, list[str]] = {}
    for (word,), rows in given.group_by("encoding", maintain_order=True):
        pairs = rows.select("k", "length").unique(maintain_order=True).rows()
        words.setdefault(", ".join(f"{k:.4g} at {length}" for k, length in pairs), []).append(word)
    return [f"scale k of {', '.join(alike)}: {told}" for told, alike in words.items()]


def notes(evaluated: pl.DataFrame) -> list[str]:
    """What the tables do not say: scales, cells without numbers, parameters left out."""
    found = scales(evaluated)
    bare = evaluated.filter(pl.col("message").is_not_null())
    for (pe, encoding, split, told), rows in bare.group_by(
        "pe", "encoding", "split", "message", maintain_order=True
    ):
        lengths = ", ".join(map(str, rows["length"].unique(maintain_order=True)))
        found.append(f"{label(pe, encoding)} n/a on {split} at {lengths}: {told}")
    left = evaluated.filter(pl.col("left_out") > 0)
    for (pe, number), rows in left.group_by("pe", "left_out", maintain_order=True):
        words = ", ".join(rows["encoding"].unique(maintain_order=True))
        found.append(f"{number:,} trained parameters of {pe} are left out under {words}")
    earlier = int(evaluated["earlier"].sum())
    if earlier:
        found.append(
            f"{earlier} of {len(evaluated)} numbers were measured before; force=true measures anew"
        )
    return found
