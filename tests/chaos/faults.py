"""Failing file operations and signals, by the preloaded library: one clear sentence, nothing lost,
and the same command finishes once the cause is gone."""

import json
from pathlib import Path

from pe_lab.store.run_folder import RunFolder
from tests.chaos.case import Case, Records, Violation
from tests.chaos.warm import FAULTS, Fault

SIGNALS = {"sigterm": (143, -15), "sigint": (130,), "sighup": (129, -1)}
"""Exit statuses; negative: before a run has begun, the signal ends the process."""
KINDS = [kind for kind in FAULTS if kind not in ("count", "kill", "torn_write")]


def _files(case: Case) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in (case.place / "runs").rglob("*") if p.is_file()}


def _running(case: Case) -> set[Path]:
    """The runs whose recorded state is running."""
    paths = case.place.glob("runs/*/*/seed*/status.json")
    return {path.parent for path in paths if json.loads(path.read_text())["state"] == "running"}


def _fault(case: Case, operations: int) -> Fault:
    return Fault(case.rng.choice(KINDS), case.rng.randint(1, max(2, operations)))


def _statuses(fault: Fault) -> tuple[int, ...]:
    return (0, 1, 2, *SIGNALS.get(fault.kind, ()))


def training(case: Case, records: Records) -> None:
    """Single runs and sweeps, beside a finished run whose files stay as they are."""
    recorded = case.rng.choice([*records.single, records.sweep])
    finished = records.several.runs[0]
    beside = case.place / "runs" / "beside" / finished.name
    beside.parent.mkdir(parents=True)
    for path in finished.iterdir():
        beside.mkdir(exist_ok=True)
        (beside / path.name).write_bytes(path.read_bytes())
    before = _files(case)
    for _ in range(case.rng.randint(1, 6)):
        fault = _fault(case, recorded.operations)
        case.said.append(str(fault))
        # A disk may have refused the state of the process before.
        already = _running(case)
        ended = case.train(recorded, statuses=_statuses(fault), fault=fault)
        case.counts["faults"] += 1
        running = _running(case)
        if ended.status < 0 and (left := running - already):
            raise Violation(f"{fault.kind} ended the process and left {left} running")
        if shown := {path for path in running if not RunFolder(path).killed()}:
            raise Violation(f"no process is at {shown}, shown as running")
    case.train(recorded, statuses=(0,))
    case.equal(recorded)
    if any(p.read_bytes() != content for p, content in before.items()):
        raise Violation("a file of a finished run changed")


def _kept(path: Path, before: bytes, after: bytes) -> bool:
    """Whether a file begins as it was; of evaluations.jsonl the rows, without the digest of them
    all in its last line."""
    if path.name != "evaluations.jsonl":
        return after.startswith(before)
    old, new = ([json.loads(line) for line in text.splitlines()[:-1]] for text in (before, after))
    return new[: len(old)] == old


def reading(case: Case, records: Records) -> None:
    """Commands that read finished runs: what was written before stays as it was."""
    case.copy(records.several)
    before = _files(case)
    words = case.rng.choice([("results",), ("compare",), (*records.evaluation, "sequences=2")])
    for _ in range(case.rng.randint(1, 6)):
        fault = _fault(case, 60)
        case.said.append(str(fault))
        case.run(*words, statuses=_statuses(fault), fault=fault)
        case.counts["faults"] += 1
    after = _files(case)
    for path, content in before.items():
        if path not in after or not _kept(path, content, after[path]):
            raise Violation(f"{path.name} changed or was lost")
    case.run(*words, statuses=(0,))
    case.nothing_left_over()


CASES = [(training, 80), (reading, 20)]
