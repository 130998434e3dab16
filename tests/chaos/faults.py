"""Failing file operations and signals, by the preloaded library: one clear sentence, nothing lost,
and the same command finishes once the cause is gone."""

import json
from pathlib import Path

from tests.chaos.case import Case, Records, Violation
from tests.chaos.warm import FAULTS, Fault

SIGNALS = {"sigterm": (143, -15), "sigint": (130,), "sighup": (129, -1)}
"""Exit statuses; negative: before a run has begun, the signal ends the process."""
KINDS = [kind for kind in FAULTS if kind not in ("count", "kill", "torn_write")]


def _files(case: Case) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in (case.place / "runs").rglob("*") if p.is_file()}


def _states(case: Case) -> set[str]:
    """The states of the runs."""
    paths = case.place.glob("runs/*/*/seed*/status.json")
    return {json.loads(path.read_text())["state"] for path in paths}


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
        ended = case.train(recorded, statuses=_statuses(fault), fault=fault)
        case.counts["faults"] += 1
        if ended.status < 0 and (left := _states(case) & {"running"}):
            raise Violation(f"{fault.kind} ended the process and left a run {left}")
    case.train(recorded, statuses=(0,))
    case.equal(recorded)
    if any(p.read_bytes() != content for p, content in before.items()):
        raise Violation("a file of a finished run changed")


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
        if not after.get(path, b"").startswith(content):
            raise Violation(f"{path.name} changed or was lost")
    case.run(*words, statuses=(0,))
    case.nothing_left_over()


CASES = [(training, 80), (reading, 20)]
