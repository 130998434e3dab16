"""A run's folder: runs/<task>/<pe>/seed<k>-<hash8>/, what lies in it, and who may write it.

config.yaml, overrides.yaml    what was asked for, resolved and as given
environment.json, git.diff     with what it ran
metrics.jsonl                  one row a measurement
checkpoint.pt                  the state to go on from
status.json                    running, interrupted, failed or finished
log.txt                        what was said, tracebacks too
summary.json                   the result; there only once the run is finished
"""

import json
import os
import platform
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import IO, Any, Literal

from filelock import FileLock, Timeout

from pe_lab.errors import RunError, UsageError

State = Literal["running", "interrupted", "failed", "finished"]
_NAME = re.compile(r"seed\d+-[0-9a-f]{8}")


def replace_file(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Write a file whole or not at all: beside it first, flushed to disk, then renamed."""
    beside = path.with_name(f".{path.name}.part")
    try:
        with open(beside, "wb") as handle:
            write(handle)
            handle.flush()
            os.fsync(handle.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def check_writable(runs_dir: str) -> None:
    """UsageError unless run folders can be made below ``runs_dir``."""
    path = Path(runs_dir)
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(
            f"runs_dir={runs_dir} cannot be written ({error.strerror}): choose another folder"
        ) from None


class RunFolder:
    """One run's folder. Only the process that holds ``lock`` writes in it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, runs_dir: str, task: str, pe: str, seed: int, identity: str) -> "RunFolder":
        """The folder of the run with this identity."""
        task, pe = task.replace("/", "-"), pe.replace("/", "-")
        return cls(Path(runs_dir) / task / pe / f"seed{seed}-{identity}")

    @property
    def run_id(self) -> str:
        """A name for the run that is unique in its runs_dir, also outside of it."""
        return "-".join(self.path.parts[-3:])

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.pt"

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder; RunError at once where another process has it.

        The lock lies beside the folder and belongs to the process: a kill releases it.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path.with_name(f".{self.path.name}.lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            status = self.status()
            raise RunError(
                f"{self.path} is being written by process {status.get('pid')} on "
                f"{status.get('host')}: wait for it, or stop it, then start the same line again"
            ) from None
        try:
            yield
        finally:
            lock.release()

    def set_aside(self) -> Path | None:
        """Move what is there out of the way, for a new start; returns where to."""
        if not self.path.exists():
            return None
        number = 1
        while (aside := self.path.with_name(f"{self.path.name}.replaced-{number}")).exists():
            number += 1
        self.path.rename(aside)
        return aside

    def write_text(self, name: str, text: str) -> None:
        """A file in the folder, atomically; RunError where the disk refuses."""
        path = self.path / name
        try:
            replace_file(path, lambda handle: handle.write(text.encode()))
        except OSError as error:
            raise RunError(
                f"{path} cannot be written ({error.strerror}): make room or choose another "
                "runs_dir, then start the same line again"
            ) from None

    def write_json(self, name: str, value: Any) -> None:
        """A JSON file in the folder, atomically."""
        self.write_text(name, json.dumps(value, indent=1, allow_nan=False) + "\n")

    def read_json(self, name: str) -> Any:
        """A JSON file of the folder; None where it is missing, UsageError where it is broken."""
        path = self.path / name
        try:
            return json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{path} cannot be read ({error}): put back a copy or remove the run's folder"
            ) from None

    def set_status(self, state: State, step: int, steps: int, error: str | None = None) -> None:
        """Record where the run stands."""
        status = {"state": state, "step": step, "steps": steps, "error": error}
        host = {"pid": os.getpid(), "host": socket.gethostname()}
        self.write_json("status.json", {**status, **host, "time": time.time()})

    def status(self) -> dict[str, Any]:
        """The last recorded status; empty before the first."""
        return self.read_json("status.json") or {}

    def summary(self) -> dict[str, Any] | None:
        """The result of a finished run, else None."""
        summary = self.read_json("summary.json")
        assert summary is None or isinstance(summary, dict)
        return summary


def run_folders(runs_dir: Path) -> list[RunFolder]:
    """Every run below ``runs_dir``, without those that ``force`` set aside."""
    return [
        RunFolder(path)
        for path in sorted(runs_dir.glob("*/*/seed*"))
        if _NAME.fullmatch(path.name) and path.is_dir()
    ]


def environment(threads: int, device: str) -> tuple[dict[str, Any], str]:
    """With what a run is made, and the git diff of an uncommitted program ("" where clean)."""
    import torch

    source = Path(__file__).resolve().parent.parent

    def git(*words: str) -> str:
        try:
            asked = ["git", "-C", str(source), *words]
            return subprocess.run(asked, capture_output=True, text=True, timeout=10).stdout
        except (OSError, subprocess.TimeoutExpired):
            return ""

    ours = git("ls-files", "pe_lab/runs.py").strip() != ""
    versions: dict[str, str | None] = {}
    for name in ("pe-lab", "torch", "numpy", "hydra-core", "wandb"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    gpu = torch.cuda.get_device_name() if device == "cuda" else None
    facts = {
        "command": sys.argv,
        "git_revision": git("rev-parse", "HEAD").strip() or None if ours else None,
        "python": platform.python_version(),
        "versions": versions,
        "platform": platform.platform(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": threads,
        "device": device,
        "gpu": gpu,
        "host": socket.gethostname(),
    }
    return facts, git("diff", "HEAD") if ours else ""
