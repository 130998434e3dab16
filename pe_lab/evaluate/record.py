"""evaluations.jsonl: measurements of a finished run after its training.

One row per cell, each with the identity of the run; the last line has the digest of all rows.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from pe_lab.core.errors import RunError
from pe_lab.core.metrics import METRICS
from pe_lab.store.run_folder import RunFolder, seal_lines
from pe_lab.store.run_id import add_new_keys

NAME = "evaluations.jsonl"
# Stands for the encoding that a run was trained with.
TRAINED = "trained"
# The columns that identify a cell.
CELL_COLUMNS: dict[str, pl.DataType | type[pl.DataType]] = {
    **dict.fromkeys(("path", "task", "pe"), pl.String),
    "seed": pl.Int64,
    **dict.fromkeys(("setting", "encoding"), pl.String),
    "k": pl.Float64,
    "split": pl.String,
    **dict.fromkeys(("length", "tokens"), pl.Int64),
}
METRIC_COLUMNS: dict[str, pl.DataType | type[pl.DataType]] = {
    **{m.name: pl.Int64 if m.unit == "count" else pl.Float64 for m in METRICS},
    "seconds": pl.Float64,
}


@dataclass(frozen=True)
class Measurement:
    """What was measured of a run: the encoding, and the sequences it read.

    Args:
        trained: whether the encoding is the one that the run was trained with.
        pe: the encoding's keys, resolved.
        max_len: the number of positions that the encoding is built for.
        tokens: per sequence.
        generated: whether the model also generated the answers itself.
    """

    trained: bool
    pe: Mapping[str, Any]
    max_len: int
    split: str
    tokens: int
    sequences: int
    generated: bool


# Measurements that agree in these have the same numbers.
_IDENTITY = ("trained", "pe", "max_len", "split", "tokens", "sequences")
REMEDY = "remove it, and pe-lab eval measures again"


def _key(row: Mapping[str, Any]) -> str:
    # Classes have moved since the first rows were recorded.
    values = {**row, **add_new_keys({"pe": row["pe"]})}
    return json.dumps([values.get(name) for name in _IDENTITY], sort_keys=True)


class Evaluations:
    """The record of one run; existing rows are never changed.

    A row is on the disk when ``add`` returns, and a kill leaves the record before it or the one
    after it. Several processes may add to one record.

    Raises:
        DamagedError: the record is not as it was written, or is that of another run.
        RunError: the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        self.summary = self.folder.summary()
        self.rows = self.folder.record(NAME, REMEDY)

    def find(self, measurement: Measurement) -> dict[str, Any] | None:
        """Return the last row of this measurement, with generated answers if it asks for them."""
        key = _key(vars(measurement))
        same = (row for row in reversed(self.rows) if _key(row) == key)
        return next((r for r in same if r.get("generated") or not measurement.generated), None)

    def add(self, measurement: Measurement, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Append a row of what was measured, and return it.

        Raises:
            RunError: the disk refuses, another process holds the folder, or the run in it was
                replaced meanwhile.
        """
        measured = {"run": self.folder.identity, **vars(measurement), **facts}
        row = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in measured.items()
        }
        # Others may be adding a row to the same folder.
        with self.folder.lock(wait=60):
            if self.folder.summary() != self.summary:
                raise RunError(
                    f"{self.folder.path} was changed while it was evaluated: run the same command "
                    "again"
                )
            self.folder.make()
            # Another process may have added rows.
            self.rows = [*self.folder.record(NAME, REMEDY), row]
            self.folder.write(NAME, seal_lines(self.rows))
        return row
