"""wandb's offline files of a run, read back by `wandb leet inspect`, and wandb's process."""

import json
import subprocess
from pathlib import Path
from typing import Any

from wandb.util import get_core_path


def inspect(file: Path, *options: str) -> bytes:
    """What ``wandb leet inspect FILE --json`` prints, without the second that its start takes."""
    core = [get_core_path(), "leet", "inspect", "--no-observability", "--json", *options]
    command = [*core, "--run-file", str(file), str(file.parent.parent)]
    return subprocess.run(command, check=True, capture_output=True, timeout=30).stdout


def files(folder: Path) -> list[Path]:
    """What each process that worked on the run left, oldest first."""
    return sorted((folder / "wandb").glob("offline-run-*/*.wandb"))


def records(file: Path) -> list[dict[str, Any]]:
    """Every record of a file."""
    return [json.loads(line) for line in inspect(file).splitlines()]


def whole(file: Path) -> dict[str, Any]:
    """State, configuration and summary as wandb sums them up."""
    content: dict[str, Any] = json.loads(inspect(file, "--summary"))
    return content


def start(file: Path) -> dict[str, Any]:
    """What the run was called there."""
    (run,) = (record["run"] for record in records(file) if record["type"] == "run")
    content: dict[str, Any] = run
    return content


def history(folder: Path) -> list[dict[str, Any]]:
    """The rows in all files of the run, in order, without wandb's own keys."""
    items = [
        record["history"]["item"]
        for file in files(folder)
        for record in records(file)
        if record["type"] == "history"
    ]
    return [{k: v for k, v in item.items() if not k.startswith("_")} for item in items]


def core_of(pid: int) -> int:
    """wandb's own process beside this one."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"--pid" in words and words[words.index(b"--pid") + 1] == str(pid).encode():
            return int(folder.name)
    raise AssertionError("no wandb-core")
