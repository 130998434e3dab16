"""why.jsonl: the diagnoses of a finished run, one of a split each; the last line has their digest.

Read without torch, so that tables and reports show verdicts.
"""

from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property

from pydantic import TypeAdapter

from pe_lab.core.errors import DamagedError
from pe_lab.store.run_folder import RunFolder, report_damage, seal_lines

METHOD = 3
"""The number of this method: the rows of another one are measured again."""
NEEDED = ("plain", "oracle", "source masked", "follows a wrong token", "mass")
"""The rows of every diagnosis, without which there is no verdict."""
NAME, WHOLE = "why.jsonl", "plain, all sequences"
REMEDY = "remove it, or give force=true, and pe-lab why measures again"
LOCK_TIMEOUT_S = 60.0
HALF = 0.5
"""The least share of the added error that an intervention must restore to count."""


@dataclass(frozen=True)
class Row:
    """One number of a diagnosis.

    Args:
        kind: ``error`` of the model with nothing changed, ``intervention``, its ``placebo``, a
            ``detail`` of one, ``control`` or ``attention`` (a measure of the heads that read the
            answer).
        value, in_domain: on the split, and in domain; None: it does not apply there.
        restored: the share of the added error that an intervention takes away.
    """

    name: str
    kind: str
    value: float | None
    in_domain: float | None = None
    restored: float | None = None

    @property
    def helps(self) -> bool:
        """Whether it restores at least half of the added error."""
        return self.restored is not None and self.restored >= HALF


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

    @cached_property
    def by_name(self) -> dict[str, Row]:
        """The rows by their names."""
        return {row.name: row for row in self.rows}

    @property
    def errors(self) -> tuple[float, float]:
        """The error on the split and in domain: of all sequences, where the run measured them."""
        row = self.by_name[WHOLE if WHOLE in self.by_name else "plain"]
        return row.value or 0.0, row.in_domain or 0.0

    def restored(self, name: str) -> float:
        """The share of the added error that an intervention restores; 0: it was not measured."""
        row = self.by_name.get(name)
        return 0.0 if row is None or row.restored is None else row.restored


_READ = TypeAdapter(Diagnosis)


def read_diagnoses(folder: RunFolder) -> list[Diagnosis]:
    """The diagnoses of a run by this method; none where there is no record.

    Raises:
        DamagedError: the record is not as it was written, or is that of another run.
        RunError: the file cannot be read.
    """
    rows = folder.record(NAME, REMEDY)
    with report_damage(folder.path / NAME, REMEDY):
        found = [_READ.validate_python(row) for row in rows if row["method"] == METHOD]
        for one in found:
            if missing := [name for name in NEEDED if name not in one.by_name]:
                raise ValueError(f"a diagnosis has no row {missing[0]}")
        return found


def record_diagnosis(folder: RunFolder, diagnosis: Diagnosis, *, force: bool = False) -> None:
    """Add a diagnosis to a run's record, in place of one of the same split.

    Args:
        force: also in place of a damaged record.

    Raises:
        DamagedError: as ``read_diagnoses``.
        RunError: the disk refuses, or another process holds the folder.
    """
    with folder.lock(LOCK_TIMEOUT_S):
        known: list[Diagnosis] = []
        with suppress(*[DamagedError] if force else []):
            known = read_diagnoses(folder)
        kept = [one for one in known if one.split != diagnosis.split]
        folder.make()
        folder.write(NAME, seal_lines(asdict(one) for one in (*kept, diagnosis)))
