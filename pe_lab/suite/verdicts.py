"""What ``pe-lab why`` has measured of runs, for reports and the leaderboard: from the run folders,
and from the file in which diagnoses of a suite's runs ship. Nothing is measured here, and verdicts
are made of the numbers by this version's rule. docs/why.md defines them.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import polars as pl

from pe_lab.core.errors import PeLabError, UsageError
from pe_lab.core.output import counted
from pe_lab.explain.cells import Cell, Diagnosed, cells_of
from pe_lab.explain.record import METHOD, Diagnosis, Row, read_diagnoses
from pe_lab.results.leaderboard.entries import phase_of, placed
from pe_lab.results.leaderboard.file import Kind, checked_columns, read_frame, write_frame
from pe_lab.results.leaderboard.rows import run_id
from pe_lab.results.leaderboard.scores import Scores
from pe_lab.results.reader import records_of
from pe_lab.results.suite import OTHER_SEEDS, SCORE, Suite
from pe_lab.results.verdicts import leading
from pe_lab.store.run_folder import RunFolder

logger = logging.getLogger("pe_lab")

SCHEMA: dict[str, Kind] = {
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
"""``method`` of ``diagnosis.record``; ``suite`` name and digest, null for a run of no task of the
suite; ``task`` and ``entry`` as the suite names them, ``run_id`` and ``lr`` as in the file of runs;
the rest as in ``Diagnosis`` and its ``Row``."""
RUN = ("task", "entry", "seed", "run_id", "lr", "split")
COMMAND = "pe-lab why task=.. pe=.. out=FILE.parquet"
LEFT_OUT = "detail"
"""The kind of rows that no verdict and no table of several runs needs."""


def shippable(found: Sequence[Diagnosed], suite: Suite) -> tuple[pl.DataFrame, list[Path]]:
    """The rows of a file of these diagnoses, and the runs of the suite's tasks that are left out,
    since they are not of its score: made for tuning, or with other steps."""
    places = {
        record.facts["path"]: (setting, place)
        for record, setting, place in placed(
            records_of(RunFolder(one.path) for one in found), suite
        )
    }
    rows, left = [], []
    for one in found:
        facts: dict[str, Any] = {"task": one.task, "entry": one.label, "suite": None, "lr": None}
        if str(one.path) in places:
            setting, place = places[str(one.path)]
            train, seed_init = setting.config["train"], setting.keys.get("seed.init", one.seed)
            if phase_of(suite, place, one.seed, seed_init, train) not in (SCORE, OTHER_SEEDS):
                left.append(one.path)
                continue
            facts = {"task": place.task, "entry": place.entry, "suite": suite.version}
            facts["lr"] = float(train["lr"])
        about = asdict(one.diagnosis)
        facts |= {key: about[key] for key in SCHEMA.keys() & about.keys()}
        facts |= {"run_id": run_id(one.path.absolute()), "seed": one.seed}
        rows += [{**facts, **asdict(row)} for row in one.diagnosis.rows if row.kind != LEFT_OUT]
    return pl.DataFrame(rows, SCHEMA).sort(RUN, maintain_order=True), left


def write(rows: pl.DataFrame, path: Path) -> str:
    """Write ``shippable`` rows, and their SHA-256 beside; returns its first eight hex digits.

    Raises:
        RunError: it cannot be written.
    """
    return write_frame(rows, path, "out=")


def read(path: Path, suite: Suite) -> tuple[pl.DataFrame, str]:
    """The rows of a file, and the first eight hex digits of its SHA-256.

    Raises:
        UsageError: there is no such file, or it is of another method or another version of the
            suite.
        DamagedError: it is not as it was written.
    """
    frame, digest = read_frame(path, COMMAND)
    frame = checked_columns(frame, SCHEMA, path, COMMAND)
    for what, column, now in (("method", "method", METHOD), ("suite", "suite", suite.version)):
        others = frame.filter(pl.col(column) != now)
        if len(others):
            raise UsageError(
                f"{path}: {counted(others['run_id'].n_unique(), 'run')} diagnosed with {what} "
                f"{others[column][0]}, which is now {now}: write it again with {COMMAND}"
            )
    return frame, digest


def shipped_file(name: str) -> Path:
    """Where the package has the diagnoses of a suite's runs; there may be no such file."""
    return Path(str(files("pe_lab.results.leaderboard").joinpath(f"{name}.why.parquet")))


def shipped_diagnoses(suite: Suite, *, wanted: bool = True) -> pl.DataFrame:
    """The diagnoses of the suite's runs that ship, if they are wanted; none, with a warning, if
    they are of another method or version of the suite."""
    path = shipped_file(suite.name)
    if wanted and path.exists():
        try:
            return read(path, suite)[0]
        except UsageError as error:
            logger.warning("%s; until then it is left out", error)
    return pl.DataFrame(schema=SCHEMA)


def diagnosed(rows: pl.DataFrame) -> list[Diagnosed]:
    """The diagnoses in the rows of a file, each under its ``run_id`` as path."""
    found = []
    for part in rows.partition_by(RUN, maintain_order=True):
        one = part.row(0, named=True)
        numbers = [Row(*row) for row in part.select(*Row.__annotations__).iter_rows()]
        diagnosis = Diagnosis(
            one["run_id"].rpartition("-")[2], one["method"], one["split"], one["guess"],
            one["guess_in_domain"], one["answers"], [], numbers,
        )  # fmt: skip
        place = one["task"], one["entry"], one["seed"], one["run_id"]
        found.append(_of_entry(place, diagnosis))
    return found


def of_scores(
    found: Scores, tasks: Sequence[str], rows: pl.DataFrame, folders: Mapping[str, Path]
) -> dict[tuple[str, str], Cell]:
    """(task, entry) -> its diagnosed seeds on the ``leading`` split, of the runs that count.

    Args:
        rows: of a file; they come before what a folder has of the same run.
        folders: by ``run_id``, those of runs.
    """
    counting = found.rows.filter(pl.col("counts") & pl.col("task").is_in(tasks)).unique("run_id")
    place = {row[-1]: row for row in counting.select("task", "entry", "seed", "run_id").iter_rows()}
    of_file = diagnosed(rows.filter(pl.col("run_id").is_in([*place])))
    known = [(one.path.name, one.diagnosis) for one in of_file]
    for run in sorted(place.keys() & folders.keys() - {run for run, _ in known}):
        try:
            known += [(run, one) for one in read_diagnoses(RunFolder(folders[run]))]
        except PeLabError as error:
            logger.warning("%s; until then it has no verdict", error)
    cells: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells_of(_of_entry(place[run], one) for run, one in known):
        cells.setdefault((cell.task, cell.pe), []).append(cell)
    order = sorted(cells, key=lambda key: (tasks.index(key[0]), key[1]))
    return {key: leading(cells[key]) for key in order}


def _of_entry(place: tuple[Any, ...], one: Diagnosis) -> Diagnosed:
    task, entry, seed, run = place
    return Diagnosed(Path(run), task, entry.partition(" ")[0], entry, seed, one)
