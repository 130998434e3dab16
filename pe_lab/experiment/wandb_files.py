"""What wandb's own files of a run hold, read back by wandb itself (`wandb leet inspect`).

wandb writes them from another process that tells nobody when a disk is full or when it was
killed before its buffer was on the disk.
"""

import json
import subprocess
from pathlib import Path

READ_SECONDS = 30.0
"""How long reading one file back may take."""


def run_files(folder: Path, run_id: str) -> list[Path]:
    """The files of every process that recorded this run in ``folder``."""
    return list(folder.glob(f"*run-*-{run_id}/run-{run_id}.wandb"))


def rows_in(file: Path) -> tuple[int, bool]:
    """How many rows of metrics the file holds, and whether it was closed well.

    Raises:
        OSError, subprocess.TimeoutExpired, ValueError: it cannot be read.
    """
    rows, closed = 0, False
    for line in inspect(file).splitlines():
        kind = json.loads(line)["type"]
        rows += kind == "history"
        closed |= kind == "exit"
    return rows, closed


def inspect(file: Path, *options: str) -> bytes:
    """What ``wandb leet inspect FILE --json`` prints, without the second that its start takes.

    Raises:
        OSError, subprocess.TimeoutExpired, ValueError: it cannot be read.
    """
    from wandb.util import get_core_path

    core = [get_core_path(), "leet", "inspect", "--no-observability", "--json", *options]
    words = [*core, "--run-file", str(file), str(file.parent.parent)]
    told = subprocess.run(words, capture_output=True, timeout=READ_SECONDS)
    if told.returncode:
        raise ValueError(told.stderr.decode(errors="replace").strip())
    return told.stdout
