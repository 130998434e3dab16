"""Records as one polars table."""

from contextlib import suppress
from typing import Any

import polars as pl

from pe_lab.evaluation.record import NOT_FINITE
from pe_lab.results.reader import Record, text

Kind = pl.DataType | type[pl.DataType]


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
