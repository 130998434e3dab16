"""SIGKILL at random moments: what was killed goes on to the same numbers."""

from tests.chaos.case import Case, Recorded, Records, Violation, evaluated
from tests.chaos.warm import Fault

MOST = 12
"""Kills in a row of one command."""
KILLED = (0, -9)


def _disturbed(case: Case, recorded: Recorded) -> None:
    """Kill the command up to MOST times: after a random time, or at a random file operation."""
    for _ in range(case.rng.randint(1, MOST)):
        if case.rng.random() < 0.5:
            how = {"kill_after": case.rng.uniform(0, recorded.seconds)}
        else:
            kind = case.rng.choice(["kill", "torn_write"])
            how = {"fault": Fault(kind, case.rng.randint(1, max(2, recorded.operations * 2 // 3)))}
        ended = case.train(recorded, statuses=KILLED, **how)
        case.said.append(str(how))
        if ended.status == 0:
            break
        case.counts["kills"] += 1
        if case.rng.random() < 0.05:
            # Where nothing has been written, ``results`` may say so.
            written = any(case.place.glob("runs/*/*/seed*"))
            case.run("results", statuses=(0,) if written else (0, 2))


def single_run(case: Case, records: Records) -> None:
    recorded = case.rng.choice(records.single)
    _disturbed(case, recorded)
    case.train(recorded, statuses=(0,))
    case.equal(recorded)


def sweep(case: Case, records: Records) -> None:
    """One run after another in one process."""
    _disturbed(case, records.sweep)
    case.train(records.sweep, statuses=(0,))
    case.equal(records.sweep)


def evaluation(case: Case, records: Records) -> None:
    """``pe-lab eval`` of a finished run."""
    case.copy(records.several)
    recorded = next(iter(records.several.runs))
    ours = case.place / recorded.relative_to(records.several.folder)
    (ours / "evaluations.jsonl").unlink()
    for _ in range(case.rng.randint(1, MOST)):
        after = case.rng.uniform(0, records.several.seconds)
        ended = case.run(*records.evaluation, statuses=KILLED, kill_after=after)
        if ended.status == 0:
            break
        case.counts["kills"] += 1
    case.run(*records.evaluation, statuses=(0,))
    if evaluated(ours) != evaluated(recorded):
        raise Violation("evaluations.jsonl has other numbers")
    case.nothing_left_over()
    for path in case.place.glob("runs/evaluations/*.csv"):
        if not path.read_text().endswith("\n"):
            raise Violation(f"{path.name} is cut off")


CASES = [(single_run, 70), (sweep, 20), (evaluation, 10)]
"""With how often each is drawn."""
