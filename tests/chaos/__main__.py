"""``make test-chaos``: attacks on runs and their folders for some minutes.

    python -m tests.chaos [minutes=10] [seed=N] [case=KIND-NUMBER]

Runs, sweeps and evaluations are killed at random moments and file operations fail:
docs/reliability.md says what must hold.
A violation is printed with the command that repeats it. Linux, with a C compiler.
"""

import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from tests.chaos import faults, kills
from tests.chaos.case import Case, Records, Violation, make_records, options_of
from tests.chaos.preload import build
from tests.chaos.warm import become_reaper

KINDS: dict[str, tuple[Any, float]] = {
    "kills": (kills, 0.7),
    "faults": (faults, 0.3),
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


def _shown(result: dict[str, Any], seed: int) -> str:
    said = "\n".join(f"    {line}" for line in result["said"])
    return (
        f"{result['what']}: {result['violation']}\n{said}\n"
        f"    again: python -m tests.chaos seed={seed} case={result['case']}"
    )


def campaign(place: Path, minutes: float, seed: int, records: Records) -> list[dict[str, Any]]:
    """Cases until the time is over; the kind that has had the least of its share is next."""
    spent, done = dict.fromkeys(KINDS, 0.0), Counter[str]()
    results = []
    until = time.monotonic() + 60 * minutes
    while time.monotonic() < until:
        kind = min(KINDS, key=lambda kind: spent[kind] / KINDS[kind][1])
        began = time.monotonic()
        results.append(attack(kind, done[kind], seed, place, records))
        done[kind] += 1
        spent[kind] += time.monotonic() - began
        if results[-1]["violation"]:
            print(f"\nVIOLATION {_shown(results[-1], seed)}", file=sys.stderr, flush=True)
    return results


def main() -> int:
    """Start again with the library preloaded, then attack; 1 if a promise was broken."""
    options = options_of(minutes="10", seed=str(random.randrange(10**6)), case="")
    if "LD_PRELOAD" not in os.environ:
        shm = Path("/dev/shm")
        folder = tempfile.mkdtemp(prefix="pe-lab-chaos-", dir=shm if shm.is_dir() else None)
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        environment = {**os.environ, **one, "LD_PRELOAD": str(build(Path(folder)))}
        words = [f"{key}={value}" for key, value in options.items()]
        os.execve(sys.executable, [sys.executable, "-m", "tests.chaos", *words], environment)
    folder, seed = Path(os.environ["LD_PRELOAD"]).parent, int(options["seed"])
    try:
        become_reaper()
        records = make_records(folder / "records")
        if options["case"]:
            kind, _, number = options["case"].partition("-")
            results = [attack(kind, int(number), seed, folder / "place", records)]
            print(_shown(results[0], seed))
        else:
            results = campaign(folder / "place", float(options["minutes"]), seed, records)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    cases = Counter(result["what"] for result in results)
    counts = sum((result["counts"] for result in results), Counter[str]())
    violations = [result for result in results if result["violation"]]
    print(f"\ncases: {', '.join(f'{n} {what}' for what, n in sorted(cases.items()))}")
    print(f"counts: {', '.join(f'{counts[kind]} {kind}' for kind in KINDS)}")
    print(f"violations: {len(violations)}")
    for result in violations:
        print(f"- {_shown(result, seed)}")
    return int(bool(violations))


if __name__ == "__main__":
    sys.exit(main())
