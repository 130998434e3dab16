"""Cases of every kind until the time is over, in several processes; counts and violations."""

import json
import os
import platform
import shutil
import subprocess
import sys
import time
import traceback
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

from docs.markdown import insert, table
from pe_lab.experiment.machine import processor
from tests.chaos import configurations, damage, faults, kills, mutations
from tests.chaos.case import Case, Records, Violation, make_records
from tests.chaos.warm import become_reaper
from tests.program import ROOT

KINDS: dict[str, tuple[Any, float]] = {
    "kills": (kills, 0.45),
    "faults": (faults, 0.15),
    "corruptions": (damage, 0.18),
    "mutations": (mutations, 0.12),
    "configurations": (configurations, 0.1),
}
"""What is counted: its module and its share of the time."""
PAGE = ROOT / "docs" / "reliability.md"
KEPT = 12
"""Campaigns on the page, the newest first."""


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


def campaign(folder: Path, minutes: float, seed: int, jobs: int, page: bool) -> int:
    """Attack for some minutes; print, and write the page. 1 if a promise was broken."""
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
    if page:
        minutes_passed = (time.monotonic() - began) / 60
        write_page([_commit(), f"{minutes_passed:.0f}", str(seed),
                    *(str(counts[kind]) for kind in KINDS), str(len(violations))])  # fmt: skip
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


def _commit() -> str:
    """The commit; with a + where files differ from it."""
    git = ["git", "-C", str(ROOT)]
    revision = subprocess.run(
        [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    changed = subprocess.run(
        [*git, "status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True
    ).stdout.strip()
    return revision + ("+" if changed else "")


def write_page(row: list[str]) -> None:
    """Put a campaign on the first row of the page's table."""
    text = PAGE.read_text("utf-8")
    lines = [line for line in text.splitlines() if line.startswith("| 20")]
    before = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]
    machine = f"{processor() or platform.machine()}, Python {platform.python_version()}"
    rows = [[date.today().isoformat(), machine, *row], *before][:KEPT]
    columns = ["date", "machine", "commit", "minutes", "seed", *KINDS, "violations"]
    insert(PAGE, table(columns, rows), "make test-chaos")
