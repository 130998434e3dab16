"""Run folders, runs/<task>/<pe>/seed<k>-<hash8>/:

config.yaml, overrides.yaml     the resolved configuration, and the overrides it came from
environment.json                the environment of each start
metrics.jsonl                   one row per measurement
checkpoint.pt                   the state to resume from
status.json                     running, interrupted, failed or finished
log.txt                         log records, tracebacks included
summary.json                    the result, once the run is finished, and the digests of the others
evaluations.jsonl, why.jsonl    what pe-lab eval and pe-lab why measured later

A digest (SHA-256) detects a flipped bit, a torn copy or an edited digit. JSON objects and the last
two files close with theirs; the digests of all other files are in summary.json.
"""

import fcntl
import hashlib
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeVar

import orjson
from filelock import FileLock, Timeout
from pydantic import ConfigDict, ValidationError, create_model

from pe_lab.core.errors import DamagedError, HeldError, PeLabError, reason, writing
from pe_lab.core.files import replace_file

T = TypeVar("T")
REMEDY = "put back a copy, or make the run again with force=true, which sets this folder aside"
NO_FIT = "it does not fit its digest: it was damaged or edited after it was written"
State = Literal["running", "interrupted", "failed", "finished"]
DIGESTED = ("config.yaml", "overrides.yaml", "environment.json", "metrics.jsonl")
"""Files that stay as they are once a run is finished: its summary holds their digests."""
_CONFIG = create_model(  # type: ignore[call-overload]
    "Config",
    __config__=ConfigDict(strict=True),
    **dict.fromkeys(("task", "pe", "positions", "model", "train"), (dict[str, Any], ...)),
)
_SUMMARY = create_model(  # type: ignore[call-overload]
    "Summary",
    __config__=ConfigDict(strict=True),
    **dict.fromkeys(("task", "pe", "run_id"), (str, ...)),
    **dict.fromkeys(("seed", "steps"), (int, ...)),
    names=(dict[str, str | None], ...),
    splits=(dict[str, str | None], ...),
    metrics=(dict[str, float | None], ...),
    config=(_CONFIG, ...),
    # Early versions wrote none of these.
    **{key: (dict[str, str], {}) for key in ("digests", "contents")},
    sources=(dict[str, dict[str, str]], {}),
    by=(dict[str, dict[str, dict[str, dict[str, float | None]]]], {}),
    **{key: (list[str], []) for key in ("null_keys", "overrides")},
    lineage=(list[dict[str, str]], []),
    too_long=(dict[str, Any], {}),
)
"""Keys of a result that commands read, and their types."""
_NAME = re.compile(r"seed\d+-[0-9a-f]{8}")


def find_edited(sources: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return the groups whose classes were edited after a run.

    Args:
        sources: group -> file -> digest, as a run records them of classes that are not pe_lab's.
    """
    return [
        group
        for group, files in sources.items()
        for name, digest in files.items()
        # One that is elsewhere says nothing.
        if (file := Path(name)).is_file() and digest_of(file.read_bytes()) != digest
    ]


def digest_of(content: bytes | memoryview) -> str:
    """Return the SHA-256 of some bytes, 64 hex digits."""
    return hashlib.sha256(content).hexdigest()


@contextmanager
def report_damage(path: Path, remedy: str = REMEDY) -> Iterator[None]:
    """Whatever fails while a file is read and parsed is a DamagedError that names it."""
    try:
        yield
    except PeLabError:
        raise
    except Exception as error:
        raise DamagedError(f"{path} cannot be read ({reason(error)}): {remedy}") from error


def seal_object(value: Mapping[str, Any]) -> str:
    """JSON, one key on each line, closed by the digest of everything before it."""
    body = json.dumps(value, indent=1, allow_nan=False).removesuffix("\n}")
    return f'{body},\n "digest": "{digest_of(body.encode())}"\n}}\n'


def seal_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    """JSON lines, and a last line with their digest."""
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    return f'{lines}{{"digest": "{digest_of(lines.encode())}"}}\n'


def unseal(content: bytes) -> bytes:
    """Return what ``seal_object`` or ``seal_lines`` closed, without the end; ValueError if the
    digest does not fit."""
    before, _, digest = content.rpartition(b'"digest": "')
    body = before.removesuffix(b",\n ").removesuffix(b"{")
    if digest.rstrip(b'"}\n') != digest_of(body).encode():
        raise ValueError(NO_FIT)
    return body


def parse_object(content: bytes) -> dict[str, Any]:
    """Return the value that ``seal_object`` wrote."""
    return dict(orjson.loads(unseal(content) + b"\n}"))


def parse_lines(content: bytes) -> list[dict[str, Any]]:
    """Return the rows of JSON lines, without a last one that was cut off."""
    return [dict(orjson.loads(line)) for line in content.split(b"\n")[:-1]]


class RunFolder:
    """One run's folder. Only the process that holds ``lock`` writes in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics, self.checkpoint = path / "metrics.jsonl", path / "checkpoint.pt"
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
        with writing(self._lock_file):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                lock = FileLock(self._lock_file).acquire(timeout=wait)
            except Timeout:
                status = self.status()
                raise HeldError(
                    f"{self.path} is being written by process {status.get('pid')} on "
                    f"{status.get('host')}: wait for it, or stop it, then give the command again"
                ) from None
        with lock:
            yield

    def set_aside(self) -> Path | None:
        """Rename an existing folder to make room for a new start; returns its new path."""
        if not self.path.exists():
            return None
        paths = (self.path.with_name(f"{self.path.name}.replaced-{n}") for n in count(1))
        aside = next(path for path in paths if not path.exists())
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
        status = {
            **{"run": self.identity, "state": state, "step": step, "steps": steps},
            **{"error": error, "by_machine": by_machine, "pid": os.getpid()},
            **{"host": socket.gethostname(), "time": time.time()},
        }
        self.write("status.json", seal_object(status))

    def status(self) -> dict[str, Any]:
        """Return the last recorded status; empty before the first."""
        return self._parse("status.json", parse_object) or {}

    def killed(self) -> bool:
        """Return whether the recorded state is running and no process holds the run."""
        if self.status().get("state") != "running":
            return False
        # Opened for reading: tables write nothing, and a folder may be read-only.
        with suppress(FileNotFoundError), open(self._lock_file) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def state(self, before: str) -> str:
        """Return the recorded state of a run without a summary, ``before`` the first one; killed
        where no process goes on with it."""
        state = str(self.status().get("state", before))
        # Finished without a summary: killed between writing the two.
        return "killed" if state == "finished" or self.killed() else state

    def summary(self) -> dict[str, Any] | None:
        """Return the result of a finished run, else None."""
        summary = self._parse("summary.json", parse_object)
        if summary is None:
            return None
        if self.identity != summary.get("identity"):
            raise DamagedError(
                f"{self.path}/summary.json belongs to the run {summary.get('identity')}: {REMEDY}"
            )
        try:
            _SUMMARY.model_validate(summary)
        except ValidationError as error:
            key = error.errors()[0]["loc"][0]
            raise DamagedError(f"{self.path}/summary.json has a wrong {key}: {REMEDY}") from None
        return summary

    def digests(self) -> dict[str, str]:
        """Return the digests of the files of ``DIGESTED``, for the summary."""
        return {name: digest_of((self.path / name).read_bytes()) for name in DIGESTED}

    def starts(self) -> list[dict[str, Any]]:
        """Return what environment.json says of each start of the run."""
        return list(self.parse_digested("environment.json", orjson.loads) or [])

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of metrics.jsonl; a last line that was cut off is left out."""
        return self.parse_digested("metrics.jsonl", parse_lines) or []

    def add_row(self, row: dict[str, Any]) -> None:
        """Append a row to metrics.jsonl; one that a full disk cuts off is ignored by readers.

        A float reads back as the same float. NaN and infinities, which JSON lacks, become null.
        """
        with writing(self.metrics), open(self.metrics, "ab") as file:
            file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))

    def mark_rows(self) -> tuple[int, str]:
        """Put all rows of metrics.jsonl on the disk, for a checkpoint, which must not count on
        lost ones; returns their length in bytes and their digest."""
        with writing(self.metrics), open(self.metrics, "rb") as file:
            os.fsync(file.fileno())
            content = file.read()
        return len(content), digest_of(content)

    def cut_rows(self, size: int = 0, digest: str | None = None) -> None:
        """Cut metrics.jsonl back to what ``mark_rows`` returned: later rows are written again."""
        with writing(self.metrics):
            self.metrics.touch()
            content = self.metrics.read_bytes()[:size]
            if len(content) != size or digest not in (None, digest_of(content)):
                raise DamagedError(
                    f"{self.metrics} does not begin with the {size} bytes that the checkpoint was "
                    f"written after: {REMEDY}"
                )
            os.truncate(self.metrics, size)

    def record(self, name: str, remedy: str) -> list[dict[str, Any]]:
        """Return the rows of evaluations.jsonl or why.jsonl.

        Raises:
            DamagedError: the file is not as it was written, or is that of another run.
        """
        rows = self._parse(name, lambda content: parse_lines(unseal(content)), remedy) or []
        with report_damage(self.path / name, remedy):
            if any(row.get("run", self.identity) != self.identity for row in rows):
                raise ValueError("it is that of another run")
        return rows

    def parse_digested(self, name: str, parse: Callable[[bytes], T]) -> T | None:
        """Return what a file says that fits its digest in summary.json, if there is one."""
        digests = (self.summary() or {}).get("digests", {})
        return self._parse(name, parse, digest=digests.get(name))

    def _parse(
        self,
        name: str,
        parse: Callable[[bytes], T],
        remedy: str = REMEDY,
        digest: str | None = None,
    ) -> T | None:
        """Return what a file of the folder says; None where there is none and no digest of one."""
        path = self.path / name
        if digest is None and not path.exists():
            return None
        with report_damage(path, remedy):
            content = path.read_bytes()
            if digest not in (None, digest_of(content)):
                raise ValueError(NO_FIT)
            return parse(content)


def run_folders(folder: Path) -> list[RunFolder]:
    """Return every run below a folder of a task, of an encoding or of all runs, without those that
    ``force`` set aside."""
    paths = sorted(path for depth in ("*", "*/*", "*/*/*") for path in folder.glob(depth))
    return [RunFolder(path) for path in paths if _NAME.fullmatch(path.name)]


def match_runs(name: str, runs_dir: Path) -> list[Path]:
    """Return the runs below ``runs_dir`` whose path or id contains ``name``, which may have the
    wildcards * and ?. A seed at its end is whole: ``seed1`` is not in ``seed10``."""
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
    """Return whether a folder has the name of a run."""
    return bool(_NAME.fullmatch(path.name))
