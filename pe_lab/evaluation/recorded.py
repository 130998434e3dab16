"""What runs were evaluated on, read from their records."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from pe_lab.common.errors import RunError
from pe_lab.common.metrics import GENERATED
from pe_lab.evaluation.record import FACTS, MEASURED, NAME, TRAINED, rows_of

Row = Mapping[str, Any]


def evaluated_paths(runs: pl.DataFrame) -> list[str]:
    """The finished ones of these runs that have a record."""
    finished = runs.filter(pl.col("state") == "finished")
    return [path for path in finished["path"] if (Path(path) / NAME).exists()]


def recorded(runs: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """All that these runs (``frame.read_runs``) were evaluated on, a row for each run, encoding,
    split and length, and a sentence for each record that cannot be read.

    What was measured several times counts once: with the most sequences, and of these the last.
    The columns are those of ``evaluate``, with the ``length`` in tokens read and without what
    only one evaluation knows; ``k`` is null in records from before it was kept.
    """
    facts = ("path", "task", "pe", "seed", "setting")
    known = runs.filter(pl.col("path").is_in(evaluated_paths(runs))).select(facts)
    measured = MEASURED | dict.fromkeys(GENERATED, pl.Float64)
    table, unread = [], []
    for run in known.iter_rows():
        path = Path(run[0]) / NAME
        try:
            cells = _cells(rows_of(path))
        except (RunError, OSError) as error:
            told = str(error) if isinstance(error, RunError) else f"{path} cannot be read"
            unread.append(f"{told}; until then what it holds is left out")
            continue
        for (word, split, tokens), row in sorted(cells.items(), key=_order):
            numbers = (row.get(name) for name in measured)
            table.append([*run, word, row.get("k"), split, tokens, tokens, *numbers])
    frame = pl.DataFrame(table, {**FACTS, **measured}, orient="row")
    return frame, unread


def _cells(rows: Iterable[Row]) -> dict[tuple[str, str, int], Row]:
    found: dict[tuple[str, str, int], Row] = {}
    for row in rows:
        cell = _word(row), row["split"], row["tokens"]
        before = found.get(cell, {"sequences": 0})
        if row["sequences"] == before["sequences"]:
            # Answers that the model wrote by itself may have been asked for once only.
            found[cell] = {**before, **row}
        elif row["sequences"] > before["sequences"]:
            found[cell] = row
    return found


def _word(row: Row) -> str:
    """The encoding as it was asked for, with the scale that was given to all."""
    if row["trained"]:
        return TRAINED
    word, k = str(row["encoding"]), row["pe"].get("k")
    return word if k is None or ":k=" in word else f"{word}:k={k:.15g}"


def _order(cell: tuple[tuple[str, str, int], Row]) -> tuple[bool, int]:
    (word, _, tokens), _ = cell
    return word != TRAINED, tokens
