"""All runs of a folder as one polars table, for commands and notebooks.

>>> from pe_lab.results.frame import by_split, read_runs
>>> runs = read_runs("runs", where="task=flipflop and train.steps>=1000", pe="cope,rope")
>>> by_split(runs).group_by("pe", "split").agg(pl.mean("error"), pl.std("error").alias("sd"))
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl

from pe_lab.core.errors import PeLabError, UsageError
from pe_lab.core.metrics import CHARTED, IN_DOMAIN, OOD, TABLED, metric_name, metric_prefix
from pe_lab.evaluate.record import NOT_FINITE
from pe_lab.results.leaderboard.entries import TUNING_OF, tuning_column
from pe_lab.results.query import condition, one_of
from pe_lab.results.reader import Record, read_records, records_of, text, without_collection
from pe_lab.store.run_folder import RunFolder
from pe_lab.store.run_id import excluded

logger = logging.getLogger("pe_lab")
Kind = pl.DataType | type[pl.DataType]

FACTS: dict[str, Kind] = {
    "path": pl.String,
    "state": pl.String,
    "message": pl.String,
    "step": pl.Int64,
    "steps": pl.Int64,
    "task": pl.String,
    "pe": pl.String,
    "seed": pl.Int64,
    "run_id": pl.String,
    "setting": pl.String,
    "splits": pl.List(pl.String),
    "null_keys": pl.List(pl.String),
    TUNING_OF: pl.String,
}
"""Columns of every run; null where unknown."""

GROUPS = ("positions", "model", "train", "tracker", "preset", "experiment")


def read_runs(
    runs_dir: str | Path = "runs",
    where: str | None = None,
    config_dir: str | Path | None = None,
    **equal: Any,
) -> pl.DataFrame:
    """One row per run, finished or not, without those that ``force`` replaced.

    Columns: ``path``, ``state`` (finished, running, interrupted, failed, killed, not begun or
    broken), ``message`` (why it failed or is broken), ``step`` of ``steps``, ``task``, ``pe``,
    ``seed``, ``run_id``, ``setting`` (eight hex digits of the configuration less the seed),
    ``splits``, ``null_keys`` (null before the configuration was resolved), ``tuning_of`` (the suite
    that chose a learning rate on this run, see ``tuning_column``); the chosen file of each other
    group (``positions``, ``model``, ..); every resolved key (``train.steps``, ``pe.npos``);
    every metric (``in_domain/error``, ``ood/sparse/error``, ``params/total``), and ``ood/error``,
    ``ood/error_seq``, ``ood/loss`` and ``ood/guess``, the means over all splits out of domain (null
    where the encoding could not measure one of them); ``not_finite``, the names of the metrics
    that were infinite or NaN, separated by blanks. A key that a run lacks is null. Keys whose
    values are of several kinds, and lists, are text as on the command line.

    Args:
        where: a condition as in ``pe-lab results where=..`` (see query.py).
        config_dir: ``--config-dir``, whose suites ``tuning_of`` may name.
        equal: keys with the value, or the values joined by commas, that they must have:
            ``pe="cope,rope"``, ``**{"train.steps": 400}``.

    Raises:
        UsageError: ``runs_dir`` is not a folder, a key is unknown, or a condition is not
            understood.

    >>> runs = read_runs("runs", task="flipflop", **{"model.d_model": 64})
    >>> runs.filter(pl.col("state") == "finished").group_by("pe").agg(pl.mean("ood/sparse/error"))
    """
    folder = Path(runs_dir)
    if not folder.is_dir():
        raise UsageError(
            f"runs_dir={runs_dir} is not a folder: give the one your runs are in, or "
            "make one with pe-lab task=flipflop pe=cope"
        )
    with without_collection():
        frame = _frame(read_records(folder), None if config_dir is None else Path(config_dir))
    return filtered(frame, where, equal)


def runs_of(paths: Iterable[str | Path]) -> pl.DataFrame:
    """The rows that ``read_runs`` has for these folders, copies of a run included."""
    records = records_of(RunFolder(Path(path)) for path in paths)
    return _frame(list(records))


def _frame(records: list[Record], config_dir: Path | None = None) -> pl.DataFrame:
    frame = frame_of(records, FACTS).with_columns(tuning_column(records, config_dir))
    return _with_ood_means(frame)


def filtered(frame: pl.DataFrame, where: str | None, equal: Mapping[str, Any]) -> pl.DataFrame:
    """The rows that ``read_runs`` with these conditions has.

    Raises:
        UsageError: a key is unknown, or a condition is not understood.
    """
    if frame.is_empty():
        return frame
    for key, values in equal.items():
        frame = frame.filter(one_of(frame, key, text(values)))
    return frame if where is None else frame.filter(condition(frame, where))


def _with_ood_means(frame: pl.DataFrame) -> pl.DataFrame:
    """With the mean of each metric over the splits out of domain."""
    ood = [split for split in splits_of(frame) if split != IN_DOMAIN]
    n = pl.col("splits").list.len() - pl.col("splits").list.contains(IN_DOMAIN).cast(pl.UInt32)
    means = {}
    for metric in (*(m.name for m in CHARTED), "guess"):
        columns = [c for split in ood if (c := metric_name(split, metric)) in frame.columns]
        if columns:
            measured = pl.sum_horizontal(pl.col(columns).is_not_null())
            mean = pl.mean_horizontal(pl.col(columns).cast(pl.Float64))
            means[f"{OOD}/{metric}"] = pl.when(measured == n).then(mean)
    return frame.with_columns(**means)


def config_keys(frame: pl.DataFrame) -> list[str]:
    """The columns that are keys of the configuration: ``train.steps``, ``pe.npos``, .."""
    return [name for name in frame.columns if "." in name.partition("/")[0]]


def compared_keys(frame: pl.DataFrame) -> list[str]:
    """The ``config_keys`` that can change a run's numbers."""
    return [key for key in config_keys(frame) if not excluded(key)]


def by_split(frame: pl.DataFrame) -> pl.DataFrame:
    """The finished runs, one row per run and split: ``path``, ``task``, ``pe``, ``seed``,
    ``setting``, ``split``, ``place`` (the prefix of its metrics), ``error``, ``error_low``,
    ``error_high`` (95 % Wilson), ``error_seq``, ``loss``, ``n``, ``guess``; null where the split
    was too long for the encoding."""
    finished = frame.filter(pl.col("state") == "finished")
    parts = []
    for split in splits_of(frame):
        numbers = [
            pl.col(name).cast(pl.Float64).alias(kind)
            if (name := metric_name(split, kind)) in frame.columns
            else pl.lit(None, pl.Float64).alias(kind)
            for kind in TABLED
        ]
        parts.append(
            finished.filter(pl.col("splits").list.contains(split)).select(
                "path", "task", "pe", "seed", "setting",
                pl.lit(split).alias("split"), pl.lit(metric_prefix(split)).alias("place"), *numbers,
            )
        )  # fmt: skip
    return pl.concat(parts) if parts else pl.DataFrame()


def splits_of(frame: pl.DataFrame) -> list[str]:
    """The splits of these runs: in_domain, sparse, .., in the order measured."""
    lists = frame["splits"].to_list()
    return list(dict.fromkeys(split for splits in lists for split in splits or ()))


def curves(frame: pl.DataFrame, unread: list[str] | None = None) -> pl.DataFrame:
    """The rows of the runs' metrics.jsonl: ``path``, ``pe``, ``seed``, ``setting``, ``step`` and
    the metrics. An incomplete last line is left out, and so is a run without rows or with a file
    that cannot be read.

    Args:
        unread: gets the message for each file that cannot be read, which is a warning too.
    """
    rows: list[dict[str, Any]] = []
    for run in frame.select("path", "pe", "seed", "setting").iter_rows(named=True):
        try:
            rows += [{**run, **row} for row in RunFolder(Path(run["path"])).rows()]
        except PeLabError as error:
            _left_out(str(error), unread)
    facts = {name: FACTS[name] for name in ("path", "pe", "seed", "setting", "step")}
    names = [name for name in dict.fromkeys(k for row in rows for k in row) if name not in facts]
    columns = {name: pl.Series(name, [r.get(name) for r in rows], facts[name]) for name in facts}
    metrics = [pl.Series(name, [r.get(name) for r in rows], pl.Float64) for name in names]
    return pl.DataFrame([*columns.values(), *metrics])


def breakdowns(frame: pl.DataFrame, unread: list[str] | None = None) -> pl.DataFrame:
    """The errors of the finished runs by property of the answer: ``path``, ``task``, ``pe``,
    ``seed``, ``setting``, ``split``, ``kind`` (length, distance, depth, ..), ``bucket`` (3-4),
    ``error``, ``loss`` (null where it is not finite), ``n``.

    Args:
        unread: gets a message for each breakdown that is left out, which is a warning too.
    """
    facts = ("path", "task", "pe", "seed", "setting")
    finished = frame.filter(pl.col("state") == "finished").select(facts)
    rows = [(*run, *cell) for run in finished.iter_rows() for cell in _breakdown(run[0], unread)]
    schema = {name: FACTS[name] for name in facts}
    schema |= dict.fromkeys(("split", "kind", "bucket"), pl.String)
    schema |= dict.fromkeys(("error", "loss"), pl.Float64) | {"n": pl.Int64}
    return pl.DataFrame(rows, schema, orient="row")


BUCKET = re.compile(r"(?:[0-9]{1,15}-)?-?[0-9]{1,15}")
"""A value, or the first and the last: 0, 1, 2, 3-4, 5-8, .."""


def _breakdown(path: str, unread: list[str] | None) -> Iterator[tuple[Any, ...]]:
    """Split, kind, bucket, error, loss and n of every cell of a run, without the kinds that have a
    bucket that is not a number."""
    try:
        by: dict[str, dict[str, Any]] = (RunFolder(Path(path)).summary() or {}).get("by", {})
    except PeLabError as error:
        _left_out(str(error), unread)
        return
    damaged = {
        kind: bucket
        for kinds in by.values()
        for kind, buckets in kinds.items()
        for bucket in buckets
        if not BUCKET.fullmatch(bucket)
    }
    for kind, bucket in damaged.items():
        message = (
            f"{path}/summary.json: the breakdown by {kind} has {bucket!r}, not a number: "
            "make the run again with force=true"
        )
        _left_out(message, unread)
    for split, kinds in by.items():
        for kind, buckets in kinds.items():
            for bucket, cell in () if kind in damaged else buckets.items():
                yield split, kind, bucket, cell["error"], cell.get("loss"), cell["n"]


def _left_out(message: str, unread: list[str] | None) -> None:
    """A run whose files cannot be read is one warning."""
    if unread is not None:
        unread.append(message)
    logger.warning("%s; until then it is left out", message)


def frame_of(records: list[Record], schema: dict[str, Kind]) -> pl.DataFrame:
    """One row per record: the facts of ``schema``, all other facts, the keys of the setting and the
    metrics; null where a record has none."""
    facts = [record.facts for record in records]
    columns = [
        pl.Series(name, [f.get(name) for f in facts], dtype) for name, dtype in schema.items()
    ]
    settings = list({id(r.setting): r.setting for r in records if r.setting is not None}.values())
    index = {id(setting): number for number, setting in enumerate(settings)}
    rows = pl.Series([index.get(id(record.setting)) for record in records], dtype=pl.UInt32)
    identities = pl.Series("setting", [s.identity for s in settings], pl.String)
    columns = [identities.gather(rows) if s.name == "setting" else s for s in columns]
    names = dict.fromkeys(name for f in facts for name in f if name not in schema)
    groups = [_column(name, [f.get(name) for f in facts], pl.String) for name in names]
    keys = dict.fromkeys(key for setting in settings for key in setting.keys)
    config = [
        _column(key, [s.keys.get(key) for s in settings], pl.String).gather(rows)
        for key in keys
        if key not in names
    ]
    return pl.DataFrame([*columns, *groups, *config, _not_finite(records), *_metrics(records)])


def _not_finite(records: list[Record]) -> pl.Series:
    """The metrics that each run measured as infinite or NaN: JSON holds them as null, whereas a
    metric that a run did not measure is absent."""
    names = [" ".join(k for k, value in r.metrics.items() if value is None) for r in records]
    return pl.Series(NOT_FINITE, names, pl.String)


def _metrics(records: list[Record]) -> list[pl.Series]:
    """A column for each metric. Runs with the same metrics are transposed together."""
    same: dict[tuple[str, ...], list[int]] = {}
    for number, record in enumerate(records):
        same.setdefault(tuple(record.metrics), []).append(number)
    tables = []
    for names, numbers in same.items():
        values = zip(*(records[number].metrics.values() for number in numbers), strict=True)
        columns = [
            _column(name, list(v), pl.Float64) for name, v in zip(names, values, strict=True)
        ]
        tables.append(pl.DataFrame([pl.Series("row", numbers), *columns]))
    if not tables:
        return []
    return pl.concat(tables, how="diagonal_relaxed").sort("row").drop("row").get_columns()


def _column(name: str, values: list[Any], empty: type[pl.DataType]) -> pl.Series:
    """Numbers, booleans or text, whichever holds all the values."""
    kinds = set(map(type, values)) - {type(None)}
    dtype: type[pl.DataType] = pl.String
    if kinds == {int}:
        with suppress(TypeError, OverflowError):
            return pl.Series(name, values, pl.Int64)
    if not kinds:
        dtype = empty
    elif kinds == {bool}:
        dtype = pl.Boolean
    elif kinds <= {int, float}:
        dtype = pl.Float64
    if dtype == pl.String:
        values = [None if value is None else text(value) for value in values]
    return pl.Series(name, values, dtype, strict=False)
