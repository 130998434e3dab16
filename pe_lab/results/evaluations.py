"""The evaluations of runs by ``pe-lab eval``: their means over seeds, and their tables."""

from collections.abc import Sequence

import polars as pl

from pe_lab.core.errors import check_known
from pe_lab.core.metrics import CHARTED, ENDINGS, NOT_FINITE
from pe_lab.evaluate.record import (
    TRAINED,
)
from pe_lab.results.format import Table
from pe_lab.results.groups import RATES, data_keys, group_keys, named, summarized
from pe_lab.results.table import runs_of
from pe_lab.results.tables import Layout, Spread, tables

# The encoding at test time, and the trained one.
AT_TEST = ("encoding", "in place of")


def grouped_evaluations(
    evaluated: pl.DataFrame,
    runs: pl.DataFrame,
    by: Sequence[str],
    metric: str = "error",
    across: str = "length",
) -> pl.DataFrame:
    """Return the columns of ``groups.grouped`` that do not depend on a threshold, one row for each
    group, split and length, with the scale ``k`` where the group has one.

    Args:
        evaluated: as ``evaluate`` gives them.
        runs: the runs that they are of, with any others.
        by: ``encoding``, ``in place of`` and keys of the runs.
        metric: a column of ``evaluated``, or accuracy (1 - error).
        across: what the columns of a table are: length, or split for a table of all splits.

    Raises:
        UsageError: an unknown key.
    """
    runs = runs.drop("eval.sequences")  # n_seq holds how many were measured.
    keys = group_keys(by, [*runs.columns, *AT_TEST])
    # The setting of ``runs`` knows whether a class was edited.
    evaluated = evaluated.drop("setting")
    further = [c for c in runs.columns if c not in evaluated.columns or c == "path"]
    value = 1 - pl.col("error") if metric == "accuracy" else pl.col(metric)
    rows = evaluated.join(runs.select(further), on="path", how="left", maintain_order="left")
    title = pl.col("task") if across == "split" else pl.format("{}, {}", "task", "split")
    rows = rows.with_row_index("_row").with_columns(
        pl.struct(*data_keys(runs), "n_seq").hash().alias("_data"),
        title.alias("_title"),
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
        _threshold=pl.lit(None, pl.Float64),
    )
    column = ["task", "split", *(["length"] if across == "length" else [])]
    names = ["task", *keys, *column[1:]]
    # Thresholds are of the lengths of a suite. Here k is the scale.
    groups = summarized(values, names, column, metric).drop(RATES)
    one = pl.col("k").min() == pl.col("k").max()
    scale = rows.group_by(names, maintain_order=True).agg(k=pl.when(one).then(pl.col("k").min()))
    return groups.insert_column(len(names), scale["k"])


def shown_encoding() -> pl.Expr:
    """Return the encoding at test time; ``rope (trained)`` for the trained one."""
    trained = pl.col("encoding") == TRAINED
    return pl.when(trained).then(pl.format("{} (trained)", "pe")).otherwise("encoding")


def evaluation_tables(
    evaluated: pl.DataFrame, metric: str = "error", spread: Spread = "sd", across: str = "length"
) -> list[Table]:
    """Return a table for each task and split, a column for each length, a row for each encoding and
    setting with mean and spread over seeds.

    Args:
        evaluated: from ``evaluate``.
        across: split makes one table a task, where every split has one length.
    """
    # Copies of a run are broken ones.
    runs = runs_of(evaluated["path"].unique(maintain_order=True)).filter(state="finished")
    evaluated = evaluated.join(runs.select("path"), on="path", how="semi", maintain_order="left")
    several = evaluated["pe"].n_unique() > 1 and (evaluated["encoding"] != TRAINED).any()
    by = ["encoding", *(["in place of"] if several else []), "setting"]
    groups = grouped_evaluations(evaluated, runs, by, metric, across)
    layout = Layout(by, metric, spread, across=across, as_measured=True)
    return tables(groups, named(runs), layout)


def check_metric(metric: str, generated: bool) -> None:
    """Refuse the name of a metric that evaluations do not have."""
    names = [*(metric.name for metric in CHARTED), "accuracy"]
    if generated:
        names += [*(f"{m.name}_generated" for m in CHARTED if m.generated), *ENDINGS]
    check_known("metric={}", [metric], names)


def scales(evaluated: pl.DataFrame) -> list[str]:
    """Return a line for the encodings with the same scale k at each length."""
    scaled = evaluated.filter(pl.col("k").is_not_null(), pl.col("encoding") != TRAINED)
    encodings: dict[str, list[str]] = {}
    for (encoding,), rows in scaled.group_by("encoding", maintain_order=True):
        pairs = rows.select("k", "length").unique(maintain_order=True).rows()
        at = ", ".join(f"{k:.4g} at {length}" for k, length in pairs)
        encodings.setdefault(at, []).append(str(encoding))
    return [f"scale k of {', '.join(alike)}: {at}" for at, alike in encodings.items()]
