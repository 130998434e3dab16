"""Files of a run changed as if the program had written them so, digests included."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pe_lab.store import checkpoint
from pe_lab.store.run_folder import RunFolder
from pe_lab.store.schema import sealed

Change = Callable[[dict[str, Any]], Any]


def edit_summary(run: Path, change: Change) -> None:
    summary = json.loads((run / "summary.json").read_text())
    del summary["digest"]
    change(summary)
    RunFolder(run).write_text("summary.json", sealed(summary))


def edit_checkpoint(run: Path, change: Change) -> None:
    path = run / "checkpoint.pt"
    state = checkpoint.load(path, None)
    change(state)
    digest = checkpoint.save(path, state["run"], state)
    if (run / "summary.json").exists():
        edit_summary(run, lambda s: s["digests"].update({"checkpoint.pt": digest}))
