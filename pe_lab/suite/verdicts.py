"""Verdicts of ``pe-lab why`` on the runs of a suite: of the file that ships, and of run folders."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl

from pe_lab.explain.record import Diagnosis, Row, read_diagnoses
from pe_lab.explain.verdict import Diagnosed, DiagnosedCell, leading_cells
from pe_lab.results.table import damage_named, runs_of
from pe_lab.store.run_folder import RunFolder
from pe_lab.suite.rows import OTHER_SEEDS, read_shipped, rows_of
from pe_lab.suite.scores import Scores
from pe_lab.suite.suite import SCORE, Suite

# One number of a diagnosis a row: what names the run, then ``Diagnosis`` and its ``Row``.
SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "method": pl.Int64,
    **dict.fromkeys(("suite", "task", "entry", "run_id"), pl.String),
    "lr": pl.Float64,
    "seed": pl.Int64,
    "split": pl.String,
    "answers": pl.Int64,
    **dict.fromkeys(("guess", "guess_in_domain"), pl.Float64),
    **dict.fromkeys(("name", "kind"), pl.String),
    **dict.fromkeys(("value", "in_domain", "restored"), pl.Float64),
}
RUN = ("task", "entry", "seed", "run_id", "lr", "split")


def diagnosis_rows(diagnosed: Sequence[Diagnosed], suite: Suite) -> pl.DataFrame:
    """Return the rows of these diagnoses, less those of runs that the suite does not score."""
    runs = rows_of(suite, runs_of(one.path for one in diagnosed)).unique("run_id")
    places = {run["run_id"]: run for run in runs.iter_rows(named=True)}
    rows = []
    for one in diagnosed:
        name = "-".join(one.path.absolute().parts[-3:])
        facts: dict[str, Any] = {"task": one.task, "entry": one.label, "suite": None, "lr": None}
        if name in places:
            if places[name]["phase"] not in (SCORE, OTHER_SEEDS):
                continue
            facts = {key: places[name][key] for key in facts}
        about = asdict(one.diagnosis)
        facts |= {key: about[key] for key in SCHEMA if key in about}
        facts |= {"run_id": name, "seed": one.seed}
        rows += [{**facts, **asdict(row)} for row in one.diagnosis.rows if row.kind != "detail"]
    return pl.DataFrame(rows, SCHEMA).sort(RUN, maintain_order=True)


def shipped_diagnoses(suite: Suite) -> list[Diagnosed]:
    """Return the diagnoses of the suite's runs that ship, each with its ``run_id`` as path.

    Those of method 2 have no placebos, so no told intervention but far keys masked names a cause.
    """
    rows, diagnoses = read_shipped(suite, ".why", SCHEMA), []
    for part in rows.partition_by(RUN, maintain_order=True):
        one = part.row(0, named=True)
        numbers = [Row(*row) for row in part.select(*Row.__annotations__).iter_rows()]
        keys = ("method", "split", "guess", "guess_in_domain", "answers")
        facts = {key: one[key] for key in keys} | {"run": one["run_id"].rpartition("-")[2]}
        diagnosis = Diagnosis(**facts, heads=[], rows=numbers)
        place = one["task"], one["entry"], one["seed"]
        diagnoses.append(Diagnosed(Path(one["run_id"]), *place, diagnosis))
    return diagnoses


def verdicts_of(
    scores: Scores, shipped: Sequence[Diagnosed], folders: Mapping[str, RunFolder]
) -> dict[tuple[str, str], DiagnosedCell]:
    """Return (task, entry) -> its diagnosed seeds on their leading split, of the scored runs.

    Args:
        folders: by ``run_id``, those of own runs; a shipped diagnosis of the same run comes first.
    """
    scored = scores.rows.filter("counts").unique("run_id", maintain_order=True)
    places = {
        run: (task, entry, seed)
        for task, entry, seed, run in scored.select("task", "entry", "seed", "run_id").iter_rows()
    }
    known = [one for one in shipped if str(one.path) in places]
    for run in sorted(places.keys() & folders.keys() - {str(one.path) for one in known}):
        with damage_named("it has no verdict"):
            diagnoses = read_diagnoses(folders[run])
            known += [Diagnosed(Path(run), *places[run], one) for one in diagnoses]
    return dict(sorted(leading_cells(known).items()))


def with_verdicts(
    rows: pl.DataFrame, cells: Mapping[tuple[str, str], DiagnosedCell]
) -> pl.DataFrame:
    """Return the rows with the column ``verdict``, null where a cell has none."""
    verdicts = [
        (task, entry, cell.split, cell.verdict.cause) for (task, entry), cell in cells.items()
    ]
    schema = dict.fromkeys(("task", "entry", "split", "verdict"), pl.String)
    table = pl.DataFrame(verdicts, schema, orient="row")
    return rows.join(table, on=["task", "entry", "split"], how="left", maintain_order="left")
