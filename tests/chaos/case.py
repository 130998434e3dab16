"""One case of the campaign: its place, its random numbers, what it counts and what it finds."""

import json
import os
import random
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pe_lab.cli import train
from pe_lab.config.compose import CommandLine
from pe_lab.experiment.run import run_and_print
from pe_lab.sweeps.sweep import multirun
from tests.chaos.warm import Ended, Fault, run
from tests.program import rows, summary, tiny

STATUSES = (0, 1, 2)
TIMED = {"seconds", "time", "git_revision", "git_changed"}
"""Columns of evaluations that differ between two equal measurements."""


class Violation(Exception):  # noqa: N818
    """The program broke a promise of docs/reliability.md."""


@dataclass(frozen=True)
class Recorded:
    """A command line with what it leaves when nothing disturbs it."""

    name: str
    words: tuple[str, ...]
    folder: Path
    """The current folder of the command, with ``runs`` in it."""
    seconds: float
    operations: int
    """File operations below ``runs``."""
    prepared: Callable[[], Any]
    """Runs it as composed; composing takes more time than a small run."""

    @property
    def runs(self) -> list[Path]:
        return run_folders(self.folder)


@dataclass
class Case:
    """Everything random in a case follows from its name."""

    kind: str
    number: int
    seed: int
    place: Path
    """An empty folder."""
    counts: Counter[str] = field(default_factory=Counter)
    said: list[str] = field(default_factory=list)
    """What was done, for whoever reproduces it."""

    def __post_init__(self) -> None:
        self.rng = random.Random(f"{self.seed} {self.kind} {self.number}")

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.number}"

    def run(self, *words: str, statuses: Sequence[int] = STATUSES, **how: Any) -> Ended:
        """A command line that may end with these statuses, and says in one sentence why."""
        ended = run(words, self.place, **how)
        self.said.append(f"pe-lab {' '.join(words)} -> {ended.status}")
        check(ended, statuses)
        return ended

    def train(self, recorded: Recorded, **how: Any) -> Ended:
        """The command of a recorded run; one time in ten it is parsed and composed again."""
        if self.rng.random() < 0.9:
            how["instead"] = recorded.prepared
        return self.run(*recorded.words, **how)

    def copy(self, recorded: Recorded) -> None:
        """Put what a recorded command left into the place."""
        shutil.copytree(recorded.folder / "runs", self.place / "runs", dirs_exist_ok=True)

    def equal(self, recorded: Recorded) -> None:
        """Every recorded run is there, finished, with the same numbers, and no temporary file."""
        found = {path.name: path for path in run_folders(self.place)}
        for theirs in recorded.runs:
            ours = found.get(theirs.name)
            if ours is None or not (ours / "summary.json").exists():
                raise Violation(f"{theirs.name} is not finished")
            same_numbers(ours, theirs)
        self.nothing_left_over()

    def nothing_left_over(self) -> None:
        """No temporary file is left in the folders of runs."""
        files = [path for run in run_folders(self.place) for path in run.rglob("*")]
        left = [path for path in files if re.search(r"\.part|\.probe", path.name)]
        if left:
            raise Violation(f"left over: {', '.join(p.name for p in left)}")


def check(ended: Ended, statuses: Sequence[int]) -> None:
    """Raise Violation for a traceback, another status, a hanging or an orphaned process."""
    text = ended.output
    if "Traceback (most recent call last)" in text:
        raise Violation(f"traceback: {text.strip().splitlines()[-1][:200]}")
    if "debug=true shows where" in text:
        raise Violation(f"raw exception: {text.strip().splitlines()[-1][:200]}")
    if "\x1b" in text:
        raise Violation("an escape sequence of a file reaches the terminal")
    if ended.orphans:
        raise Violation(f"orphans: {ended.orphans}")
    if ended.status not in statuses:
        raise Violation(f"exit status {ended.status}: {text.strip()[-200:]}")
    if ended.status in (1, 2) and not text.strip():
        raise Violation(f"exit status {ended.status} without a word")


def same_numbers(ours: Path, theirs: Path) -> None:
    """Raise Violation unless two folders of one run have the same measurements."""
    if rows(ours) != rows(theirs):
        raise Violation(f"{theirs.name}: metrics.jsonl has other numbers")
    same_summary(ours, theirs)


def same_summary(ours: Path, theirs: Path) -> None:
    """Raise Violation unless two summaries of one run have the same measurements."""
    one, other = summary(ours), summary(theirs)
    # A run made again with force=true has a new id.
    for content in (one, other):
        del content["run_id"], content["config"]["force"]
    if differing := [key for key in one | other if one.get(key) != other.get(key)]:
        raise Violation(f"{theirs.name}: summary.json differs in {', '.join(differing)}")


def run_folders(place: Path) -> list[Path]:
    """The folders of runs, without those that were set aside."""
    return sorted(p for p in place.glob("runs/*/*/seed*") if "replaced" not in p.name)


def evaluated(folder: Path) -> set[str]:
    """The rows of evaluations.jsonl without times."""
    path = folder / "evaluations.jsonl"
    # The last line is the digest of the others.
    lines = path.read_text().splitlines()[:-1] if path.exists() else []
    kept = ({k: v for k, v in json.loads(n).items() if k not in TIMED} for n in lines)
    return {json.dumps(row, sort_keys=True) for row in kept}


def record(name: str, folder: Path, *words: str) -> Recorded:
    """Run a command undisturbed: its numbers, its time and its file operations."""
    folder.mkdir(parents=True)
    prepared = _prepared(words)
    if "-m" in words:
        check(run(words, folder, instead=prepared), [0])
    else:
        # In this process: what a run imports, compiles and checks is then there for its forks.
        before = Path.cwd()
        os.chdir(folder)
        with open(folder / "output", "w") as file, redirect_stdout(file):
            prepared()
        os.chdir(before)
    counted = folder / "counted"
    counted.mkdir()
    ended = run(words, counted, fault=Fault("count", 0), instead=prepared)
    check(ended, [0])
    shutil.rmtree(counted)
    return Recorded(name, words, folder, ended.seconds, ended.operations, prepared)


def _prepared(words: Sequence[str]) -> Callable[[], Any]:
    """What ``pe_lab.cli.train.launch`` does with a line of training, after composing it."""
    line = CommandLine.parse(words)
    jobs, plans = train.planned(line)
    if line.multirun:
        return lambda: multirun(line, jobs, plans)
    return lambda: run_and_print(plans[0], words[:])


@dataclass(frozen=True)
class Records:
    """The undisturbed runs that cases start from and compare with."""

    single: list[Recorded]
    sweep: Recorded
    several: Recorded
    """Finished runs of two encodings and three seeds; the first is evaluated."""
    evaluation: tuple[str, ...]
    """The command that evaluates the first of them."""


SMALL = ("model.d_model=8", "train.batch_size=4", "train.steps=4", "train.warmup=1",
         "train.checkpoint_every=2", "eval.every=2", "eval.sequences=4", "eval.quick_sequences=2",
         "task.splits={sparse:{p_ignore:0.9}}")  # fmt: skip
SINGLE = {
    "cope": ("pe=cope", "model.dropout=0.1"),
    "rope": ("pe=rope", "positions=randomized", "positions.max=64", "train.accumulate=2"),
    "learned": ("pe=learned", "train.stop_below=0.01", "train.patience=1"),
    "gru": ("pe=none", "model=seq2seq", "task=copy", "task.splits={}", "eval.generate=true"),
    "linear": ("pe=rope", "model=linear_attention", "train.precision=bfloat16"),
}


def options_of(**defaults: str) -> dict[str, str]:
    """The options of the command line, all of which have defaults."""
    given = dict(word.partition("=")[::2] for word in sys.argv[1:])
    if wrong := given.keys() - defaults.keys():
        raise SystemExit(f"{', '.join(wrong)}: the options are {', '.join(defaults)}")
    return defaults | given


def small(*words: str) -> tuple[str, ...]:
    """A run of four steps."""
    keys = {word.partition("=")[0] for word in words}
    base = [word for word in SMALL if word.partition("=")[0] not in keys]
    made = tiny(*base, *words)
    without = ("model.n_heads",) if "model=seq2seq" in words else ()
    return tuple(word for word in made if word.partition("=")[0] not in without)


def make_records(folder: Path) -> Records:
    """Train them."""
    single = []
    for name, words in SINGLE.items():
        single.append(record(name, folder / name, *small(*words)))
    sweep = record("sweep", folder / "sweep", "-m", *small("pe=cope", "seed=0,1,2"))
    several = record("several", folder / "several", "-m", *small("pe=cope,rope", "seed=0,1,2"))
    evaluation = ("eval", f"run={several.runs[0].relative_to(several.folder)}", "lengths=8,16")
    check(run(evaluation, several.folder), [0])
    return Records(single, sweep, several, evaluation)
