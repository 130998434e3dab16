"""The folder ``wandb`` of a run: wandb's files, and how many rows earlier processes logged."""

import errno
import json
import logging
import os
import secrets
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pe_lab.common.errors import PeLabError, RunError
from pe_lab.common.files import read_file, replace_file
from pe_lab.store.schema import LOGGED, WANDB_ID, Logged, checked, read_json

logger = logging.getLogger("pe_lab")
T = TypeVar("T")

MIN_FREE_BYTES = 1 << 20
"""wandb silently loses rows on a full disk, and checkpoints need the space more."""


@dataclass(frozen=True)
class Earlier:
    """What earlier processes logged of a run.

    Args:
        suffix: the random part of its id in wandb.
        rows: how many rows wandb has.
        replaced: the folders that are deleted once their rows are logged again.
    """

    suffix: str
    rows: int
    replaced: list[Path]


class WandbFolder:
    """``id`` holds the random part of the run's id in wandb, so that equal runs in two folders
    stay two runs. ``rows`` holds how many rows were ``logged``, absent while a process is logging
    and after it was killed, and how many of them were ``sent`` online."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sent = 0

    def earlier(self, mode: str) -> Earlier:
        """What earlier processes logged, and a process in this mode need not log again."""
        known = self._read(self._id, "it is logged as another run")
        rows = self._read(self._rows, "every row is logged again") if known else None
        suffix, rows = known or secrets.token_hex(3), rows or {}
        self._sent = rows.get("sent", 0)
        folders = [path for path in self.path.glob("*run-*") if path.is_dir()]
        unsent = [p for p in folders if p.match("offline-*") and not any(p.glob("*.synced"))]
        if mode == "online":
            return Earlier(suffix, self._sent, unsent)
        if "logged" in rows:
            return Earlier(suffix, rows["logged"], [])
        # If it is unknown how many rows reached the server, log them as another run.
        return Earlier(suffix if folders == unsent else secrets.token_hex(3), 0, unsent)

    def begin(self, suffix: str) -> None:
        """Record that a process begins to log."""
        self._write("id", suffix)
        self._write("rows", json.dumps({"sent": self._sent}))

    def end(self, rows: int, *, online: bool) -> None:
        """Record how many rows are logged now."""
        sent = rows if online else self._sent
        self._write("rows", json.dumps({"logged": rows, "sent": sent}))

    def check_disk(self, path: Path) -> None:
        """OSError unless ``path`` is there, on a disk with some space left."""
        if shutil.disk_usage(path).free < MIN_FREE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def _read(self, read: Callable[[str], T | None], remedy: str) -> T | None:
        """What a file holds; None, after a warning, where that cannot be read."""
        try:
            return read(remedy)
        except PeLabError as error:
            logger.warning("%s", error)
            return None

    def _id(self, remedy: str) -> str | None:
        path = self.path / "id"
        try:
            return checked(WANDB_ID, read_file(path).decode(), path, remedy)
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise RunError(f"{path} cannot be read ({error}): {remedy}") from None

    def _rows(self, remedy: str) -> Logged | None:
        return read_json(LOGGED, self.path / "rows", remedy)

    def _write(self, name: str, text: str) -> None:
        replace_file(self.path / name, text.encode())


def file_of(run: Any) -> Path:
    """The file to which wandb writes a run."""
    return Path(run.dir).parent / f"run-{run.id}.wandb"


def sync_command(run: Any) -> str:
    """The command that uploads a run's file; wandb skips online runs unless it says otherwise."""
    folder = file_of(run).parent
    online = "" if folder.name.startswith("offline-") else "--no-skip-online "
    return f"wandb sync {online}{shlex.quote(str(folder))}"
