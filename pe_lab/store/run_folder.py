"""Run folders, runs/<task>/<pe>/seed<k>-<hash8>/:

config.yaml, overrides.yaml     the resolved configuration, and the overrides it came from
environment.json, git-<n>.diff  the environment of each start, and the n-th one's uncommitted code
metrics.jsonl                   one row per measurement
checkpoint.pt                   the state to resume from
status.json                     running, interrupted, failed or finished
log.txt                         log records, tracebacks included
summary.json                    the result, once the run is finished
"""

import errno
import fcntl
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, TypeVar

from filelock import FileLock, Timeout
from pydantic import TypeAdapter

from pe_lab.core.errors import DamagedError, HeldError, RunError, cannot_write, writing
from pe_lab.core.files import no_link, read_file, replace_file
from pe_lab.store.metrics_log import read_metrics
from pe_lab.store.schema import (
    REMEDY,
    STARTS,
    STATUS,
    SUMMARY,
    TRACKED,
    Start,
    Tracked,
    digest_of,
    does_not_fit,
    read_json,
    read_rows,
    sealed,
    unsealed_lines,
)

T = TypeVar("T")
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
        """The run's hash: the end of the folder's name, or that of the summary in a folder that
        was named otherwise; empty where neither has one."""
        if _NAME.fullmatch(self.path.name):
            return self.path.name.rpartition("-")[2]
        summary = read_json(SUMMARY, self.path / "summary.json", seal=True)
        return "" if summary is None else summary["identity"]

    @contextmanager
    def lock(self, wait: float = 0) -> Iterator[None]:
        """Hold the folder; HeldError if another process still holds it after ``wait`` seconds.

        The lock lies beside the folder and belongs to the process: it is released when the process
        is killed.
        """
        lock = FileLock(self._lock_file)
        with writing(self.path.parent):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=wait)
        except Timeout:
            pid, host = (self.status().get(key) for key in ("pid", "host"))
            writer = "another process" if pid is None else f"process {pid} on {host}"
            raise HeldError(
                f"{self.path} is being written by {writer}: wait for it, or stop it, then run the "
                "same command again"
            ) from None
        except OSError as error:
            raise cannot_write(self._lock_file, error) from None
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

    def sealed_rows(
        self, name: str, schema: TypeAdapter[T], run_of: Callable[[T], str], remedy: str
    ) -> list[T]:
        """The rows of a sealed file of JSON lines, each of this run; none if there is no such file.

        Args:
            run_of: the identity of the run that a row is of.

        Raises:
            DamagedError: the file is not as it was written, or is that of another run.
            RunError: it cannot be read.
        """
        path = self.path / name
        try:
            content = read_file(path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RunError(
                f"{path} cannot be read ({error.strerror}): make it readable, or remove it"
            ) from None
        rows = read_rows(schema, path, remedy, unsealed_lines(content, path, remedy))
        for row in rows:
            if run_of(row) != self.identity:
                raise DamagedError(
                    f"{path} is of the run {run_of(row)}, not of {self.identity}: {remedy}"
                )
        return rows

    def write(self, name: str, content: bytes) -> None:
        """A file in the folder, written atomically; RunError if that fails."""
        with writing(self.path / name):
            replace_file(self.path / name, content)

    def write_text(self, name: str, text: str) -> None:
        self.write(name, text.encode())

    def write_json(self, name: str, value: Any) -> None:
        self.write_text(name, json.dumps(value, indent=1, allow_nan=False) + "\n")

    def set_status(
        self,
        state: State,
        step: int,
        steps: int,
        error: str | None = None,
        by_machine: bool = False,
    ) -> None:
        status: dict[str, Any] = {"run": self.identity, "state": state}
        status |= {"step": step, "steps": steps, "error": error}
        status |= {"by_machine": True} if by_machine else {}
        host = {"pid": os.getpid(), "host": socket.gethostname()}
        self.write_text("status.json", sealed({**status, **host, "time": time.time()}))

    def status(self) -> dict[str, Any]:
        """The last recorded status; empty before the first."""
        found = read_json(STATUS, self.path / "status.json", seal=True)
        if found is None:
            return {}
        self.check_identity(found["run"], "status.json")
        return dict(found)

    def starts(self) -> list[Start]:
        """What environment.json says of each start.

        Raises:
            DamagedError: it is not as it was written.
        """
        self.check_digest("environment.json")
        return read_json(STARTS, self.path / "environment.json") or []

    def digests(self) -> dict[str, str]:
        """The digests of the files of ``DESCRIBING`` that are there, for the summary."""
        found = {}
        for path in (self.path / name for name in DESCRIBING):
            with suppress(FileNotFoundError):
                found[path.name] = digest_of(self._content(path))
        return found

    def check_digest(self, name: str) -> None:
        """DamagedError if the run is finished and a file is not the one that its summary counts."""
        summary, path = self.summary(), self.path / name
        if summary is None or name not in summary["digests"]:
            return
        try:
            content = self._content(path)
        except FileNotFoundError:
            raise DamagedError(f"{path} is missing: {REMEDY}") from None
        if digest_of(content) != summary["digests"][name]:
            raise DamagedError(does_not_fit(path, "digest in summary.json"))

    def tracked(self) -> Tracked | None:
        """What tracker.json says; None before a tracker has begun."""
        return read_json(TRACKED, self.path / "tracker.json")

    def _content(self, path: Path) -> bytes:
        try:
            return read_file(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise RunError(f"{path} cannot be read ({error.strerror}): {REMEDY}") from None

    def rows(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl; none of a run that has not begun to write it.

        Raises:
            DamagedError: a line is not a row, or the run is finished and these are not the rows
                that its summary counts.
            RunError: the file cannot be read.
        """
        self.check_digest("metrics.jsonl")
        try:
            content = self._content(self.metrics)
        except FileNotFoundError:
            return []
        return read_metrics(self.metrics, content)

    def killed(self) -> bool:
        """Whether the recorded state is running and no process holds the run."""
        if self.status().get("state") != "running":
            return False
        # Opened for reading: tables write nothing, and a folder may be read-only.
        try:
            with open(self._lock_file, opener=no_link) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            # Nobody can hold a lock that is a link.
            return error.errno in (errno.ENOENT, errno.ELOOP)
        return True

    def summary(self) -> dict[str, Any] | None:
        """The result of a finished run, else None."""
        if (found := read_json(SUMMARY, self.path / "summary.json", seal=True)) is None:
            return None
        self.check_identity(found["identity"], "summary.json")
        return dict(found)

    def check_identity(self, of: str, name: str) -> None:
        """DamagedError if the file ``name`` is of the run ``of`` and the folder is another's."""
        if _NAME.fullmatch(self.path.name) and of != self.identity:
            raise DamagedError(
                f"{self.path / name} is of the run {of}, not of {self.identity}: {REMEDY}"
            )


def run_folders(runs_dir: Path) -> list[RunFolder]:
    """Every run below ``runs_dir``, without those that ``force`` set aside."""
    return [
        RunFolder(Path(run))
        for task in _folders(runs_dir)
        for pe in _folders(task)
        for run in _folders(pe)
        if _NAME.fullmatch(run.name)
    ]


def misplaced_folders(runs_dir: Path) -> list[RunFolder]:
    """Run folders that ``run_folders`` leaves out: not in a folder of an encoding, or renamed."""
    tasks = _folders(runs_dir)
    encodings = [pe for task in tasks for pe in _folders(task)]
    named = [Path(entry) for entry in (*tasks, *encodings) if _NAME.fullmatch(entry.name)]
    others = (Path(run) for pe in encodings for run in _folders(pe) if not _NAME.match(run.name))
    return [RunFolder(path) for path in (*named, *(path for path in others if is_run(path)))]


def runs_called(name: str, runs_dir: Path) -> list[Path]:
    """The runs below ``runs_dir`` whose path or id contains ``name``, which may have the wildcards
    * and ?. A seed at its end is whole: ``seed1`` is not in ``seed10``."""
    if re.search(r"seed\d+$", name):
        name = f"{name}-"
    # The name of runs_dir itself, part of every path, does not count.
    return [
        folder.path
        for folder in (run_folders(runs_dir) if runs_dir.is_dir() else [])
        if fnmatchcase(str(folder.path), f"{name}*")
        or any(fnmatchcase(sep.join(folder.path.parts[-3:]), f"*{name}*") for sep in "/-")
    ]


def runs_below(folder: Path) -> list[Path]:
    """The runs in a folder of a task, of an encoding or of all."""
    found = (path for depth in ("*", "*/*", "*/*/*") for path in folder.glob(depth))
    return sorted(path for path in found if _NAME.fullmatch(path.name) and path.is_dir())


def is_run(path: Path) -> bool:
    """Whether a folder has the name or a file of a run."""
    files = ("summary.json", "status.json", "config.yaml")
    return bool(_NAME.fullmatch(path.name)) or any((path / name).exists() for name in files)


def _folders(parent: Path | os.DirEntry[str]) -> list[os.DirEntry[str]]:
    """Sorted by name. Path.glob would call stat for every entry."""
    with suppress(PermissionError), os.scandir(parent) as entries:
        return sorted(filter(_is_folder, entries), key=lambda entry: entry.name)
    return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):  # A link to itself.
        return entry.is_dir()
    return False
