"""Run folders, runs/<task>/<pe>/seed<k>-<hash8>/:

config.yaml, overrides.yaml     the resolved configuration, and the overrides it came from
environment.json                the environment of each start
metrics.jsonl                   one row per measurement
checkpoint.pt                   the state to resume from
status.json                     running, interrupted, failed or finished
log.txt                         log records, tracebacks included
summary.json                    the result, once the run is finished, and the digests of the others
evaluations.jsonl, why.jsonl    what pe-lab eval and pe-lab why measured later
"""

import fcntl
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import orjson
from filelock import FileLock, Timeout

from pe_lab.core.errors import DamagedError, HeldError, writing
from pe_lab.core.files import replace_file
from pe_lab.store.files import (
    NO_FIT,
    REMEDY,
    digest_of,
    read_sealed,
    read_sealed_lines,
    reading,
    sealed,
)

State = Literal["running", "interrupted", "failed", "finished"]
DESCRIBING = ("config.yaml", "overrides.yaml", "environment.json")
"""Files that say how a run was made; they stay as they are once it is finished."""
_NAME = re.compile(r"seed\d+-[0-9a-f]{8}")


class RunFolder:
    """One run's folder. Only the process that holds ``lock`` writes in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics, self.checkpoint = path / "metrics.jsonl", path / "checkpoint.pt"
        self.log = path / "log.txt"
        self._lock_file = path.with_name(f".{path.name}.lock")

    @classmethod
    def of(cls, runs_dir: str, task: str, pe: str, seed: int, identity: str) -> "RunFolder":
        task, pe = task.replace("/", "-"), pe.replace("/", "-")
        return cls(Path(runs_dir) / task / pe / f"seed{seed}-{identity}")

    @property
    def run_id(self) -> str:
        """A name for the run, unique in its runs_dir; a run restarted by ``force`` has a number."""
        again = len(list(self.path.parent.glob(f"{self.path.name}.replaced-*")))
        return "-".join(self.path.parts[-3:]) + (f"-again-{again}" if again else "")

    @property
    def identity(self) -> str:
        """The run's hash: the end of the folder's name."""
        return self.path.name.rpartition("-")[2]

    @contextmanager
    def lock(self, wait: float = 0) -> Iterator[None]:
        """Hold the folder; HeldError if another process still holds it after ``wait`` seconds.

        The lock lies beside the folder. It is released when the process that holds it is killed.
        """
        lock = FileLock(self._lock_file)
        with writing(self._lock_file):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire(timeout=wait)
            except Timeout:
                status = self.status()
                raise HeldError(
                    f"{self.path} is being written by process {status.get('pid')} on "
                    f"{status.get('host')}: wait for it, or stop it, then give the command again"
                ) from None
        try:
            yield
        finally:
            lock.release()

    def set_aside(self) -> Path | None:
        """Rename an existing folder to make room for a new start; returns its new path."""
        if not self.path.exists():
            return None
        number = 1
        while (aside := self.path.with_name(f"{self.path.name}.replaced-{number}")).exists():
            number += 1
        with writing(self.path):
            self.path.rename(aside)
        return aside

    def make(self) -> None:
        """Create the folder if it does not exist, and remove what a killed process left."""
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            for part in self.path.glob(".*.part"):
                part.unlink()

    def write(self, name: str, text: str) -> None:
        """Write a file in the folder atomically; MachineError if the disk refuses."""
        with writing(self.path / name):
            replace_file(self.path / name, text.encode())

    def set_status(
        self,
        state: State,
        step: int,
        steps: int,
        error: str | None = None,
        by_machine: bool = False,
    ) -> None:
        """Record the state; ``by_machine``: it failed for lack of room, not by its numbers."""
        status = {"run": self.identity, "state": state, "step": step, "steps": steps}
        status |= {"error": error, "by_machine": by_machine, "pid": os.getpid()}
        self.write(
            "status.json", sealed({**status, "host": socket.gethostname(), "time": time.time()})
        )

    def status(self) -> dict[str, Any]:
        """The last recorded status; empty before the first."""
        return read_sealed(self.path / "status.json") or {}

    def killed(self) -> bool:
        """Whether the recorded state is running and no process holds the run."""
        if self.status().get("state") != "running":
            return False
        # Opened for reading: tables write nothing, and a folder may be read-only.
        with suppress(FileNotFoundError), open(self._lock_file) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def summary(self) -> dict[str, Any] | None:
        """The result of a finished run, else None."""
        summary = read_sealed(self.path / "summary.json")
        if summary is not None and self.identity != summary.get("identity"):
            raise DamagedError(
                f"{self.path}/summary.json belongs to the run {summary.get('identity')}: {REMEDY}"
            )
        return summary

    def digests(self) -> dict[str, str]:
        """The digests of the files of ``DESCRIBING``, for the summary."""
        return {name: digest_of((self.path / name).read_bytes()) for name in DESCRIBING}

    def starts(self) -> list[dict[str, Any]]:
        """What environment.json says of each start of the run."""
        content = self._read("environment.json")
        with reading(self.path / "environment.json"):
            return [dict(start) for start in orjson.loads(content or b"[]")]

    def rows(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl; a last line that was cut off is left out."""
        *lines, _cut_off = self._read("metrics.jsonl").split(b"\n")
        with reading(self.metrics):
            return [dict(orjson.loads(line)) for line in lines]

    def record(self, name: str, remedy: str) -> list[dict[str, Any]]:
        """The rows of evaluations.jsonl or why.jsonl, each of which names its run."""
        rows = read_sealed_lines(self.path / name, remedy)
        for row in rows:
            if row.get("run") != self.identity:
                raise DamagedError(f"{self.path / name} belongs to run {row.get('run')}: {remedy}")
        return rows

    def check(self) -> None:
        """Compare all files with their digests; DamagedError names the first that does not fit."""
        from pe_lab.store import checkpoint

        digests = (self.summary() or {}).get("digests", {})
        self.status()
        for name in digests.keys() - {"checkpoint.pt"}:
            self._read(name)
        if digests or self.checkpoint.exists():
            checkpoint.load(self.checkpoint, self.identity, digests.get("checkpoint.pt"))
        for name in ("evaluations.jsonl", "why.jsonl"):
            self.record(name, f"remove {name}, and measure again")

    def _read(self, name: str) -> bytes:
        """A file of the folder, compared with its digest in summary.json; empty where there is
        none."""
        path, digests = self.path / name, (self.summary() or {}).get("digests", {})
        if not path.exists() and name not in digests:
            return b""
        with reading(path):
            content = path.read_bytes()
            if name in digests and digest_of(content) != digests[name]:
                raise ValueError(NO_FIT)
        return content


def run_folders(folder: Path) -> list[RunFolder]:
    """Every run below a folder of a task, of an encoding or of all runs, without those that
    ``force`` set aside."""
    paths = sorted(path for depth in ("*", "*/*", "*/*/*") for path in folder.glob(depth))
    return [RunFolder(path) for path in paths if _NAME.fullmatch(path.name)]


def runs_called(name: str, runs_dir: Path) -> list[Path]:
    """The runs below ``runs_dir`` whose path or id contains ``name``, which may have the wildcards
    * and ?. A seed at its end is whole: ``seed1`` is not in ``seed10``."""
    if re.search(r"seed\d+$", name):
        name = f"{name}-"
    # The name of runs_dir itself, part of every path, does not count.
    return [
        folder.path
        for folder in run_folders(runs_dir)
        if fnmatchcase(str(folder.path), f"{name}*")
        or any(fnmatchcase(sep.join(folder.path.parts[-3:]), f"*{name}*") for sep in "/-")
    ]


def is_run(path: Path) -> bool:
    """Whether a folder has the name of a run."""
    return bool(_NAME.fullmatch(path.name))
