"""Cases of every kind until the time is over, in several processes; counts and violations."""

import json
import os
import shutil
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from tests.chaos import configurations, faults, kills
from tests.chaos.case import Case, Records, Violation, make_records
from tests.chaos.warm import become_reaper

KINDS: dict[str, tuple[Any, float]] = {
    "kills": (kills, 0.6),
    "faults": (faults, 0.25),
    "configurations": (configurations, 0.15),
}
"""What is counted: its module and its share of the time."""


def attack(kind: str, number: int, seed: int, place: Path, records: Records) -> dict[str, Any]:
    """One case: its counts, and the violation if there is one."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    case = Case(kind, number, seed, place)
    functions, weights = zip(*KINDS[kind][0].CASES, strict=True)
    (function,) = case.rng.choices(functions, weights)
    found = None
    try:
        function(case, records)
    except Violation as violation:
        found = str(violation)
    except Exception:
        # A file that cannot be parsed any more, for instance.
        found = f"the case failed: {traceback.format_exc().strip()}"
    what = f"{kind}.{function.__name__}"
    return {"case": case.name, "what": what, "counts": case.counts, "said": case.said,
            "violation": found}  # fmt: skip


def _work(worker: int, jobs: int, folder: Path, seed: int, until: float, records: Records) -> None:
    """Cases until the time is over; the kind that has had the least of its share is next."""
    become_reaper()
    spent = dict.fromkeys(KINDS, 0.0)
    done = Counter[str]()
    with (folder / f"results-{worker}.jsonl").open("w") as out:
        while time.monotonic() < until:
            kind = min(KINDS, key=lambda kind: spent[kind] / KINDS[kind][1])
            began = time.monotonic()
            number = done[kind] * jobs + worker
            result = attack(kind, number, seed, folder / f"place-{worker}", records)
            done[kind] += 1
            spent[kind] += time.monotonic() - began
            if result["violation"]:
                print(f"\nVIOLATION {_shown(result, seed)}", file=sys.stderr, flush=True)
            print(json.dumps(result), file=out, flush=True)


def _shown(result: dict[str, Any], seed: int) -> str:
    said = "\n".join(f"    {line}" for line in result["said"])
    return (
        f"{result['what']}: {result['violation']}\n{said}\n"
        f"    again: python -m tests.chaos seed={seed} case={result['case']}"
    )


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def campaign(folder: Path, minutes: float, seed: int, jobs: int) -> int:
    """Attack for some minutes and print what was found; 1 if a promise was broken."""
    began = time.monotonic()
    _report(f"seed={seed}, {minutes:g} minutes, {jobs} processes")
    try:
        become_reaper()
        records = make_records(folder / "records", _report)
        # At least a little, however long the recording took.
        until = max(began + 60 * minutes, time.monotonic() + 5)
        workers = []
        for worker in range(jobs):
            if (pid := os.fork()) == 0:
                status = 1
                try:
                    _work(worker, jobs, folder, seed, until, records)
                    status = 0
                finally:
                    os._exit(status)
            workers.append(pid)
        ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in workers]
        results = [
            json.loads(line)
            for path in sorted(folder.glob("results-*.jsonl"))
            for line in path.read_text().splitlines()
        ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    counts, violations = Counter[str](), [r for r in results if r["violation"]]
    for result in results:
        counts.update(result["counts"])
    cases = Counter(result["what"] for result in results)
    print(f"\ncases: {', '.join(f'{n} {what}' for what, n in sorted(cases.items()))}")
    print(f"counts: {', '.join(f'{counts[kind]} {kind}' for kind in KINDS)}")
    print(f"violations: {len(violations)}")
    for result in violations:
        print(f"- {_shown(result, seed)}")
    if any(ended):
        print(f"a process of the campaign failed: {ended}")
        return 1
    return int(bool(violations))


def repeat(folder: Path, seed: int, name: str) -> int:
    """One case again, with what it did."""
    kind, _, number = name.partition("-")
    try:
        become_reaper()
        records = make_records(folder / "records", _report)
        result = attack(kind, int(number), seed, folder / "place", records)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(_shown(result, seed))
    return int(result["violation"] is not None)
