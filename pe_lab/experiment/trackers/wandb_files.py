"""The folder ``wandb`` of a run: wandb's files, and how many rows earlier processes logged."""

import errno
import json
import os
import secrets
import shlex
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pe_lab.common.files import replace_file

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

    def earlier(self, mode: str) -> Earlier:
        """What earlier processes logged, and a process in this mode need not log again."""
        file, rows = self.path / "id", self._rows()
        suffix = file.read_text() if file.exists() else secrets.token_hex(3)
        folders = [path for path in self.path.glob("*run-*") if path.is_dir()]
        unsent = [p for p in folders if p.match("offline-*") and not any(p.glob("*.synced"))]
        if mode == "online":
            return Earlier(suffix, rows.get("sent", 0), unsent)
        if "logged" in rows:
            return Earlier(suffix, rows["logged"], [])
        # If it is unknown how many rows reached the server, log them as another run.
        return Earlier(suffix if folders == unsent else secrets.token_hex(3), 0, unsent)

    def begin(self, suffix: str) -> None:
        """Record that a process begins to log."""
        self._write("id", suffix)
        self._write("rows", json.dumps({"sent": self._rows().get("sent", 0)}))

    def end(self, rows: int, *, online: bool) -> None:
        """Record how many rows are logged now."""
        sent = rows if online else self._rows().get("sent", 0)
        self._write("rows", json.dumps({"logged": rows, "sent": sent}))

    def check_disk(self, path: Path) -> None:
        """OSError unless ``path`` is there, on a disk with some space left."""
        if shutil.disk_usage(path).free < MIN_FREE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def _rows(self) -> dict[str, int]:
        # What cannot be read is as if the last process had been killed.
        with suppress(OSError, ValueError, TypeError):
            rows = json.loads((self.path / "rows").read_text())
            return {name: int(rows[name]) for name in ("logged", "sent") if name in rows}
        return {}

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
