"""``pe-lab results evaluations=true``: what finished runs were evaluated on, from their records."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from pe_lab.common.errors import UsageError
from pe_lab.common.suggest import did_you_mean
from pe_lab.evaluation.recorded import recorded
from pe_lab.evaluation.tables import as_runs, check_metric, label, scales, titled
from pe_lab.results.aggregate import grouped, pooled_told
from pe_lab.results.sheets import Spread, sheets
from pe_lab.results.tables import Sheet

AT_TEST = ("encoding", "in place of")
"""The encoding at test time, and the trained one."""


def evaluated_tables(
    runs: pl.DataFrame,
    metric: str,
    by: Sequence[str] | None,
    splits: Sequence[str] | None,
    sort: str | None,
    spread: Spread,
) -> tuple[list[Sheet], pl.DataFrame, list[str]]:
    """A sheet for each task and split, a column for each length; the same as numbers, a row for
    each row and length; and what they do not say.

    Args:
        metric, by, splits, sort, spread: as in ``pe-lab results``; None where not given.

    Raises:
        UsageError: one of them makes no sense.
    """
    evaluated, notes = recorded(runs)
    if evaluated.is_empty():
        none = "none of these runs was evaluated: pe-lab eval run=FOLDER lengths=128,256 does it"
        return [], pl.DataFrame(), notes or [none]
    generated = evaluated["error_generated"].is_not_null().any()
    metric = check_metric(metric, generated)
    evaluated = _of_splits(evaluated, splits)
    frame, told = as_runs(evaluated)
    by = list(dict.fromkeys([*AT_TEST, *(by or ["setting"])]))
    lengths = [str(length) for length in evaluated["tokens"].unique().sort()]
    groups = grouped(frame, by, metric, lengths)
    found = sheets(groups, told, by, metric, spread, sort)
    if sort is None:
        found = [_in_order(sheet, evaluated) for sheet in found]
    notes += pooled_told(frame, by)
    several = evaluated["task"].n_unique() > 1
    for (task,), rows in evaluated.group_by("task", maintain_order=True):
        notes += [f"{task}: {note}" if several else note for note in scales(rows)]
    rows = _rows(groups, grouped(frame, by, "k", lengths), evaluated, by, told)
    return found, rows, notes


def _of_splits(evaluated: pl.DataFrame, splits: Sequence[str] | None) -> pl.DataFrame:
    known = evaluated["split"].unique(maintain_order=True).to_list()
    for split in splits or ():
        if split not in known:
            raise UsageError(f"splits={split}: {did_you_mean(split, known)}")
    return evaluated.filter(pl.col("split").is_in(splits or known))


def _in_order(sheet: Sheet, evaluated: pl.DataFrame) -> Sheet:
    """With what stands in place of one encoding together, that encoding itself first."""
    cells = evaluated.select("pe", "encoding").unique(maintain_order=True).rows()
    order = {(label(*cell), cell[0]): n for n, cell in enumerate(cells)}
    rows = sorted(sheet.rows, key=lambda row: order[row[0].text, row[1].text])
    return replace(sheet, rows=rows)


def _rows(
    groups: pl.DataFrame,
    scaled: pl.DataFrame,
    evaluated: pl.DataFrame,
    by: Sequence[str],
    told: Mapping[str, str],
) -> pl.DataFrame:
    """The groups with task, split and length apart, and the scale where a group has one."""
    names: dict[str, tuple[Any, ...]] = {
        titled(*pair): pair for pair in evaluated.select("task", "split").unique().rows()
    }
    one = pl.col("sd").fill_null(0) == 0
    k = scaled.select(k=pl.when(one).then(pl.col("mean")))["k"]
    found = groups.with_columns(
        length=pl.col("split").cast(pl.Int64),
        split=pl.col("task").replace_strict({title: pair[1] for title, pair in names.items()}),
        task=pl.col("task").replace_strict({title: pair[0] for title, pair in names.items()}),
        k=k,
    )
    if "setting" in by:
        line = [told.get(setting) for setting in found["setting"]]
        found = found.with_columns(pl.Series("differs", line, pl.String))
    first = ["task", *by, *(["differs"] if "setting" in by else []), "split", "length", "k"]
    return found.select(*first, pl.exclude(first))
