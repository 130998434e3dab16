"""``make test-chaos``: commands killed at random moments end with the undisturbed numbers.

    python -m tests.chaos [minutes=10] [seed=N]
    python -m tests.chaos runs=1000 launcher=queue,joblib,slurm,ray

A single run, a sweep or an evaluation is killed up to eight times in a row, then finished. A
violation is a traceback, another number, a run that cannot be continued or a file left over. With
``runs``, half of a sweep's workers are killed every few seconds; ``queue`` are four processes of
the same line, as on four machines.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

sys.path.insert(0, str(Path(__file__).parent))

from program import rows, start, summary, tiny

MOST_KILLS = 8
SMALL = ("train.steps=30", "train.checkpoint_every=4", "tracker=none", "threads=1")
COMMANDS = {
    "dropout": tiny(*SMALL, "pe=cope", "model.dropout=0.1"),
    "positions": tiny(*SMALL, "pe=rope", "positions=randomized", "positions.max=64"),
    "stopping early": tiny(*SMALL, "pe=learned", "train.stop_below=0.01", "train.patience=1"),
    "accumulating": tiny(
        *SMALL,
        "pe=alibi",
        "positions=floats",
        "train.accumulate=2",
        "task.train_sequences=20",
        "train.optimizer=adam",
        "train.precision=bfloat16",
    ),
    "sweep": ["-m", *tiny(*SMALL, "pe=none,rope", "train.log_every=3")],
}


def numbers(cwd: Path) -> dict[str, Any]:
    """Rows and summary of every run, and what was evaluated of it without times."""
    found: dict[str, Any] = {}
    for folder in sorted(cwd.glob("runs/*/*/seed*")):
        record = folder / "evaluations.jsonl"
        lines = record.read_text().splitlines()[:-1] if record.exists() else []
        measured = [line.partition('"seconds"')[0] for line in lines]
        found[folder.name] = rows(folder), summary(folder), measured
    return found


def finish(words: list[str], cwd: Path) -> float:
    """Run a command to its end, and evaluate its runs; the seconds it took."""
    began = time.monotonic()
    for line in (words, ["eval", "run=runs", "lengths=8,16"]):
        ended = start(*line, cwd=cwd)
        assert ended.status == 0, ended.stderr
    return time.monotonic() - began


def kill(words: list[str], cwd: Path, after: float) -> None:
    """Start a command, or the evaluation of a finished one, and kill it."""
    finished = any(cwd.glob("runs/*/*/seed*/summary.json"))
    running = start(*(["eval", "run=runs", "lengths=8,16"] if finished else words), cwd=cwd)
    time.sleep(after)
    with suppress(ProcessLookupError):
        running.send(signal.SIGKILL)
    assert running.status in (0, 1, -signal.SIGKILL)
    assert "Traceback" not in running.stderr, running.stderr


def campaign(minutes: float, seed: int, place: Path) -> tuple[int, int]:
    """How many commands were disturbed, and how often they were killed."""
    rng, kills, cases = random.Random(seed), 0, 0
    undisturbed: dict[str, tuple[float, dict[str, Any]]] = {}
    until = time.monotonic() + 60 * minutes
    while time.monotonic() < until or not cases:
        name = rng.choice([*COMMANDS])
        if name not in undisturbed:
            whole = place / name
            whole.mkdir(parents=True)
            undisturbed[name] = finish(COMMANDS[name], whole), numbers(whole)
        seconds, expected = undisturbed[name]
        cwd = place / "disturbed"
        shutil.rmtree(cwd, ignore_errors=True)
        cwd.mkdir()
        for _ in range(rng.randint(1, MOST_KILLS)):
            kill(COMMANDS[name], cwd, rng.uniform(0, seconds))
            kills += 1
        finish(COMMANDS[name], cwd)
        assert numbers(cwd) == expected, name
        assert not list(cwd.glob("runs/*/*/seed*/.*.part")), name
        cases += 1
    return cases, kills


def kill_workers(cwd: Path, rng: random.Random, done: threading.Event) -> int:
    """Kill half of the processes that do a run, at random moments; how many were killed."""
    kills = 0
    while not done.wait(rng.uniform(6, 15)):
        statuses = [orjson.loads(path.read_bytes()) for path in cwd.glob("runs/*/*/*/status.json")]
        running = {one["pid"] for one in statuses if one["state"] == "running"}
        alive = sorted(pid for pid in running if Path(f"/proc/{pid}").exists())
        for pid in rng.sample(alive, (len(alive) + 1) // 2):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                kills += 1
    return kills


def disturb_workers(
    words: list[str], launcher: str, seed: int, cwd: Path, expected: dict[str, Any]
) -> int:
    """A sweep whose workers are killed has the numbers of one process; how many were killed."""
    cwd.mkdir()
    lines = 4 if launcher == "queue" else 1
    other = [*words, f"hydra/launcher={'basic' if launcher == 'queue' else launcher}"]
    other += ["hydra.launcher.n_jobs=4"] * (launcher == "joblib")
    other += ["hydra.launcher.workers=4"] * (launcher in ("slurm", "ray"))
    done = threading.Event()
    with ThreadPoolExecutor() as pool:
        kills = pool.submit(kill_workers, cwd, random.Random(seed), done)

        def go_on() -> None:
            # Ray kills workers, too, where other programs fill the memory.
            env = {**os.environ, "RAY_memory_monitor_refresh_ms": "0"}
            while subprocess.run(other, cwd=cwd, env=env, stdout=subprocess.DEVNULL).returncode:
                pass

        for line in [pool.submit(go_on) for _ in range(lines)]:
            line.result()
        done.set()
    assert numbers(cwd) == expected
    starts = [orjson.loads(one.read_bytes()) for one in cwd.glob("runs/*/*/*/environment.json")]
    # A pool of joblib's that loses a worker ends the other three.
    most = kills.result() * (4 if launcher == "joblib" else 1)
    assert 0 <= sum(map(len, starts)) - len(expected) <= most, "a run was made twice"
    return kills.result()


def disturb_launchers(runs: int, launchers: str, seed: int, place: Path) -> None:
    """``disturb_workers`` of each, against one undisturbed process."""
    words = [sys.executable, "-m", "pe_lab", "-m"]
    words += tiny(*SMALL, "pe=none,rope", f"seed=range(0,{runs // 2})")
    alone = place / "alone"
    alone.mkdir()
    subprocess.run(
        [*words, "hydra/launcher=basic"], cwd=alone, check=True, stdout=subprocess.DEVNULL
    )
    expected = numbers(alone)
    assert len(expected) == runs
    for launcher in launchers.split(","):
        began = time.monotonic()
        kills = disturb_workers(words, launcher, seed, place / launcher, expected)
        seconds = time.monotonic() - began
        print(f"{launcher}: {runs} runs, {kills} workers killed, {seconds:.0f} s, no violation")


if __name__ == "__main__":
    given = dict(word.split("=") for word in sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        seed = int(given.get("seed", random.randrange(10**6)))
        print(f"seed={seed}")
        if "runs" in given:
            disturb_launchers(int(given["runs"]), given["launcher"], seed, Path(folder))
            sys.exit()
        done = campaign(float(given.get("minutes", 10)), seed, Path(folder))
    print(f"{done[0]} commands, {done[1]} kills, no violation")
