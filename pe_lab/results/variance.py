"""The parts of the variance over runs with crossed ``seed.init`` and ``seed.data``."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from pe_lab.common.console import percent
from pe_lab.core.metrics import OOD, is_share
from pe_lab.results.aggregate import column_of, selected_splits
from pe_lab.results.formats import Cell, Table
from pe_lab.results.frame import compared_keys
from pe_lab.results.labels import Names
from pe_lab.results.statistics.variance import FEWEST, variance_parts

SEED = "seed."
INIT = "seed.init"
SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    **dict.fromkeys(("task", "pe", "setting", "split"), pl.String),
    **dict.fromkeys(("inits", "datas"), pl.List(pl.Int64)),
    **dict.fromkeys(("mean", "sd", "init", "data", "both"), pl.Float64),
}
SHARES = ("init", "data", "both")
COLUMNS = ("mean", "sd", *SHARES)
CAPTION = (
    "Shares of the variance over runs: of the initial weights, of the data (batches, order, "
    "dropout), and of their combination; sd of one run. Few seeds give rough shares."
)
CROSSED = (
    "no runs with crossed seeds of a setting: pe-lab -m task=flipflop pe=cope seed.init=0,1,2,3 "
    "seed.data=0,1,2,3 makes sixteen"
)


def variance_over_seeds(
    runs: pl.DataFrame, metric: str = "error", splits: Sequence[str] | None = None
) -> pl.DataFrame:
    """A row for each setting and split whose finished runs cross at least two values of
    ``seed.init`` with two of ``seed.data``.

    Of runs that are not fully crossed, those of the largest rectangle that is found count.
    Columns: ``task``, ``pe``, ``setting`` (of the first run), ``split``, ``inits`` and ``datas``
    (the seeds), ``mean``, ``sd`` and the shares ``init``, ``data`` and ``both`` (see
    ``variance_parts``; null where nothing varies).

    Raises:
        UsageError: an unknown metric or split.
    """
    finished = runs.filter(pl.col("state") == "finished")
    if finished.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    if INIT not in finished.columns:
        finished = finished.with_columns(pl.lit(None, pl.Int64).alias(INIT))
    keys = [key for key in compared_keys(finished) if not key.startswith(SEED)]
    rows: list[dict[str, Any]] = []
    names = ["task", "pe", *(k for k in ("model", "positions") if k in finished.columns), *keys]
    # The mean out of domain only where it is asked for.
    wanted = {
        task: [s for s in selected_splits(runs, task, metric, splits) if splits or s != OOD]
        for task in finished["task"].unique()
    }
    for of_setting in finished.partition_by(names, maintain_order=True):
        for split in wanted[of_setting["task"][0]]:
            name = column_of(of_setting, split, metric)
            if name in of_setting.columns and (row := _row(of_setting, name)):
                facts = of_setting.select("task", "pe", "setting").row(0, named=True)
                rows.append({**facts, "split": split, **row})
    return pl.DataFrame(rows, SCHEMA)


def variance_tables(parts: pl.DataFrame, names: Names, metric: str = "error") -> list[Table]:
    """A table for each task of ``variance_over_seeds``; shares in %."""
    shares = SHARES if not is_share(metric) else COLUMNS
    tables = []
    for (task,), rows in parts.group_by("task", maintain_order=True):
        lines = [
            [
                Cell(_name(row, names)),
                Cell(row["split"]),
                Cell(f"{len(row['inits'])} x {len(row['datas'])}"),
                *(Cell(_number(row[k], k in shares)) for k in COLUMNS),
            ]
            for row in rows.iter_rows(named=True)
        ]
        head = ["encoding", "split", "init x data", *COLUMNS]
        title = f"{task}: {metric}, parts of its variance in %"
        tables.append(Table(title, head, 3, lines, CAPTION))
    return tables


def _name(row: Mapping[str, Any], names: Names) -> str:
    """The encoding and what tells its settings apart, but for the seed that is crossed."""
    label = names.labels.get(row["setting"], "").split()
    return " ".join([row["pe"], *(word for word in label if not word.startswith(f"{INIT}="))])


def _number(value: float | None, share: bool) -> str:
    if value is None:
        return ""
    return percent(value) if share else f"{value:.3f}"


def _row(runs: pl.DataFrame, name: str) -> dict[str, Any] | None:
    """The parts for one setting and metric; None where too few runs are crossed."""
    init = pl.col(INIT).cast(pl.Int64).fill_null(pl.col("seed"))
    columns = init, pl.col("seed"), pl.col(name).cast(pl.Float64)
    values = {
        (i, d): value for i, d, value in runs.select(*columns).iter_rows() if value is not None
    }
    inits, datas = _rectangle(values)
    if min(len(inits), len(datas)) < FEWEST:
        return None
    table = np.array([[values[i, d] for d in datas] for i in inits])
    found = variance_parts(table)
    shares = {"init": found.init, "data": found.data, "both": found.both} if found else {}
    sd = found.sd if found else 0.0
    return {"inits": inits, "datas": datas, "mean": float(table.mean()), "sd": sd, **shares}


def _rectangle(values: Mapping[tuple[int, int], Any]) -> tuple[list[int], list[int]]:
    """Rows and columns all of whose combinations are there: while one is missing, the row or the
    column with most missing is left out."""
    inits, datas = (sorted({pair[n] for pair in values}) for n in (0, 1))
    while True:
        missing = [(i, d) for i in inits for d in datas if (i, d) not in values]
        if not missing:
            return inits, datas
        shares = [
            (sum(pair[n] == one for pair in missing) / len(others), n, one)
            for n, (these, others) in enumerate(((inits, datas), (datas, inits)))
            for one in these
        ]
        _, n, worst = max(shares)
        (inits, datas)[n].remove(worst)
