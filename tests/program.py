"""Small runs of the program: in this process, as a command, or as a process to be killed."""

import csv
import io
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from pe_lab.cli.main import main
from pe_lab.cli.train import planned
from pe_lab.config.compose import CommandLine
from pe_lab.config.schema import Config

ROOT = Path(__file__).parents[1]
ENCODINGS = sorted(path.stem for path in (ROOT / "conf" / "pe").glob("*.yaml"))

TINY = {
    "task": "flipflop",
    "task.length": "16",
    "pe": "none",
    "model.n_layers": "1",
    "model.n_heads": "2",
    "model.d_model": "16",
    "train.steps": "20",
    "train.batch_size": "8",
    "train.warmup": "2",
    "train.log_every": "1",
    "train.checkpoint_every": "7",
    "eval.every": "10",
    "eval.sequences": "32",
    "eval.quick_sequences": "8",
    "tracker.wandb.mode": "disabled",
}


def in_this_process(words: Sequence[str]) -> list[str]:
    """The words, with the launcher that a test can watch where they sweep and choose none."""
    chosen = any(word.startswith("hydra/launcher=") for word in words)
    return [*words] if chosen or "-m" not in words else [*words, "hydra/launcher=basic"]


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """``main`` in a fixture of a module: from this folder, under the program's name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("sys.argv", ["pe-lab"])
        yield


def ran(factory: pytest.TempPathFactory, *lines: list[str]) -> Path:
    """A new folder in which these lines of ``pe-lab`` have run."""
    folder = factory.mktemp("ran")
    with working_in(folder):
        for words in lines:
            assert main(in_this_process(words)) == 0
    return folder


def tiny(*words: str) -> list[str]:
    """A run of a second; these words replace keys of TINY, a task also its length and a tracker
    its mode."""
    keys = {word.partition("=")[0].lstrip("+") for word in words if "=" in word}
    keys |= {"task.length"} if "task" in keys else set()
    keys |= {"tracker.wandb.mode"} if "tracker" in keys else set()
    return [f"{key}={value}" for key, value in TINY.items() if key not in keys] + list(words)


def checked_jobs(words: Sequence[str]) -> list[Config]:
    """The checked configuration of every job of a line; raises what training it would."""
    return [plan.config for plan in planned(CommandLine.parse(words))[1]]


def command(
    *words: str, cwd: Path, env: dict[str, str] | None = None, status: int | None = None
) -> subprocess.CompletedProcess[str]:
    """``python -m pe_lab WORDS`` as a subprocess, which must end with this status if given one."""
    ended = subprocess.run(
        [sys.executable, "-m", "pe_lab", *words],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert status in (None, ended.returncode), ended.stderr
    return ended


@dataclass
class Outcome:
    """Exit status and output of a command line that ran in this process."""

    status: int
    out: str
    err: str


Here = Callable[..., Outcome]


def assert_has(text: str, *parts: str) -> None:
    for part in parts:
        assert part in text, f"{part!r} is not in {text}"


def assert_refused(outcome: Outcome, *parts: str, status: int = 2) -> None:
    """This exit status, nothing done if it is 2, and one sentence that has these parts."""
    assert (outcome.status, bool(status == 2 and outcome.out)) == (status, False), outcome
    (line,) = outcome.err.splitlines()
    assert_has(line, *parts)


def succeeded(outcome: Outcome) -> Outcome:
    """The outcome of a command, whose exit status is 0."""
    assert outcome.status == 0, outcome.err
    return outcome


def csv_rows(text: str) -> list[dict[str, str]]:
    """The rows of a table printed with ``format=csv``."""
    return list(csv.DictReader(io.StringIO(text)))


@dataclass
class Process:
    """The program in a process of its own; its output is in files."""

    process: BaseProcess
    cwd: Path

    @property
    def stderr(self) -> str:
        return (self.cwd / "stderr").read_text()

    @property
    def status(self) -> int:
        """Wait for the exit status; negative signal number if a signal ended the process."""
        self.process.join(60)
        assert self.process.exitcode is not None, "the process hangs"
        return self.process.exitcode

    def wait_for(self, condition: Callable[[], Any]) -> None:
        """Poll until the condition holds."""
        end = time.monotonic() + 60
        while not condition():
            assert self.process.is_alive(), f"ended too early:\n{self.stderr}"
            assert time.monotonic() < end, "timeout"
            time.sleep(0.001)

    def send(self, signum: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signum)


# Forked from a small server that has imported torch: this saves seconds compared with a new
# interpreter.
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["pe_lab.experiment.run", "pe_lab.cli.train"])


def start(*words: str, cwd: Path) -> Process:
    """Start the program; ``status`` waits for its end."""
    # ``stderr`` is read also of a process that is killed before it opens its output.
    (cwd / "stderr").touch()
    process = _server.Process(target=_main, args=(words, cwd))
    process.start()
    return Process(process, cwd)


def _main(words: tuple[str, ...], cwd: Path) -> None:
    os.chdir(cwd)
    # Set by a test in the process that started the server; each run has its own wandb.
    os.environ.pop("WANDB_SERVICE", None)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.exit(main(in_this_process(words)))


def the_run(runs: Path) -> Path:
    """The folder of the only run in there."""
    (folder,) = (p for p in runs.glob("*/*/seed*") if "replaced" not in p.name)
    return folder


def rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl without times."""
    return [_untimed(json.loads(line)) for line in (folder / "metrics.jsonl").open()]


def summary(folder: Path) -> dict[str, Any]:
    """The run's result without times, digests and overrides."""
    content = json.loads((folder / "summary.json").read_text())
    # Checkpoint and metrics hold times, and so their digests do.
    for name in ("overrides", "digests", "digest"):
        del content[name]
    del content["config"]["runs_dir"]
    return {**content, "metrics": _untimed(content["metrics"])}


def state(folder: Path) -> dict[str, Any]:
    """The content of status.json."""
    return json.loads((folder / "status.json").read_text())


def _untimed(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if not key.startswith("time/")}
