"""SIGKILL at random moments: what was killed goes on to the same numbers."""

import os
from pathlib import Path

from tests.chaos.case import Case, Recorded, Records, Violation, evaluated, small
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
            case.run("results", statuses=(0,) if _any(case) else STATUS_EMPTY)


STATUS_EMPTY = (0, 2)
"""Where nothing has been written, ``results`` may say so."""


def _any(case: Case) -> bool:
    return any(case.place.glob("runs/*/*/seed*"))


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


def _worker(launcher: int) -> int:
    """A worker process of a sweep, 0 if there is none."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent == launcher and b"popen_loky" in stat.with_name("cmdline").read_bytes():
                return int(stat.parent.name)
        except OSError:
            continue
    return 0


def parallel_sweep(case: Case, records: Records) -> None:
    """joblib: a worker, the launcher, or the whole group."""
    line = ("-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", *records.sweep.words[1:])
    victims = {"worker": _worker, "launcher": lambda pid: pid, "group": lambda pid: -pid}
    for _ in range(case.rng.randint(1, 3)):
        name = case.rng.choice(list(victims))
        after = case.rng.uniform(0, 4 * records.sweep.seconds)
        ended = case.run(*line, statuses=(0, 1, -9), kill_after=after, victim=victims[name])
        case.said.append(f"{name} after {after:.2f} s")
        case.counts["kills"] += ended.status != 0 or "a worker was killed" in ended.output
    case.run(*line, statuses=(0,))
    case.equal(records.sweep)


def with_wandb(case: Case, records: Records) -> None:
    """A run logged to wandb offline; its process ends too."""
    line = (*small("pe=cope", "tracker.wandb.mode=offline"),)
    os.environ["WANDB_SILENT"] = "true"
    for _ in range(case.rng.randint(1, 2)):
        after = case.rng.uniform(0, 4 + records.sweep.seconds)
        ended = case.run(*line, statuses=KILLED, kill_after=after)
        case.counts["kills"] += ended.status != 0
    case.run(*line, statuses=(0,))
    case.nothing_left_over()


CASES = [(single_run, 70), (sweep, 20), (evaluation, 6), (parallel_sweep, 1), (with_wandb, 2)]
"""With how often each is drawn."""
