"""why.jsonl: the diagnoses of a finished run, one of a split each; the last line has their digest.

Read without torch, so that tables and reports show verdicts.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from pe_lab.common.errors import DamagedError, PeLabError, RunError
from pe_lab.common.files import read_file
from pe_lab.store.run_folder import RunFolder
from pe_lab.store.schema import sealed_lines, unsealed_lines

METHOD = 1
"""The number of this method: the rows of another one are measured again."""
NAME = "why.jsonl"
REMEDY = "remove it, and pe-lab why measures again"
LOCK_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Row:
    """One number of a diagnosis.

    Args:
        kind: ``error`` of the model with nothing changed, ``intervention``, a ``detail`` of one,
            ``part`` (of the encoding left out), ``control`` or ``attention`` (a measure of the
            heads that read the answer).
        value, in_domain: on the split, and in domain; None: it does not apply there.
        restored: the share of the added error that an intervention takes away.
    """

    name: str
    kind: str
    value: float | None
    in_domain: float | None = None
    restored: float | None = None


@dataclass(frozen=True)
class Distance:
    """Attention to the tokens that hold the answer at distances above half of ``distance``, up to
    it: the mean ``mass`` and ``margin`` of ``answers`` answers."""

    split: str
    distance: int
    mass: float
    margin: float
    answers: int


@dataclass(frozen=True)
class Diagnosis:
    """What was measured of one run on one split.

    Args:
        run: the identity of the run.
        guess, guess_in_domain: the error of guessing there, as the run measured it.
        answers: how many were read of the split.
        heads: those that read the answer in domain, as (layer, head).
    """

    run: str
    method: int
    split: str
    guess: float
    guess_in_domain: float
    answers: int
    heads: list[tuple[int, int]]
    rows: list[Row]
    distances: list[Distance]

    @cached_property
    def by_name(self) -> dict[str, Row]:
        """The rows by their names."""
        return {row.name: row for row in self.rows}


_READ = TypeAdapter(Diagnosis)


def read_diagnoses(folder: RunFolder) -> list[Diagnosis]:
    """The diagnoses of a run by this method; none where there is no record.

    Raises:
        DamagedError: the record is not as it was written, or is that of another run.
        RunError: the file cannot be read.
    """
    path = folder.path / NAME
    try:
        content = read_file(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(
            f"{path} cannot be read ({error.strerror}): make it readable, or remove it"
        ) from None
    try:
        lines = unsealed_lines(content, path, REMEDY).splitlines()
        found = [_READ.validate_json(line) for line in lines]
    except ValidationError as error:
        problem = error.errors()[0]
        raise DamagedError(
            f"{path} is not a record of pe-lab why ({problem['msg']} at "
            f"{'.'.join(map(str, problem['loc']))}): {REMEDY}"
        ) from None
    for one in found:
        if one.run != folder.identity:
            raise DamagedError(
                f"{path} is of the run {one.run}, not of {folder.identity}: {REMEDY}"
            )
    return [one for one in found if one.method == METHOD]


def keep(folder: RunFolder, diagnosis: Diagnosis) -> None:
    """Add a diagnosis to a run's record, in place of one of the same split.

    Raises:
        RunError: the disk refuses, or another process holds the folder.
    """
    with folder.lock(LOCK_TIMEOUT_S):
        kept = [one for one in read_diagnoses(folder) if one.split != diagnosis.split]
        folder.make()
        folder.write(NAME, sealed_lines(b"".join(_lines([*kept, diagnosis]))))


def _lines(diagnoses: Iterable[Diagnosis]) -> Iterable[bytes]:
    for one in diagnoses:
        yield json.dumps(asdict(one), allow_nan=False).encode() + b"\n"


def diagnoses_of(paths: Iterable[str | Path]) -> dict[str, list[Diagnosis]]:
    """The recorded diagnoses of runs: path -> diagnoses; a damaged record counts as none."""
    found: dict[str, list[Diagnosis]] = {}
    for path in map(Path, paths):
        if (path / NAME).exists():
            try:
                found[str(path)] = read_diagnoses(RunFolder(path))
            except PeLabError:
                continue
    return found
