"""``pe-lab dashboard``: a wandb workspace for the runs of a folder, as JSON or saved in wandb.

    pe-lab dashboard                                   one per task: runs/dashboard/<task>.json
    pe-lab dashboard task=flipflop pe=cope,rope        filters: key=value or key=value,value
    pe-lab dashboard mode=online entity=me             also save it in wandb (default: offline)
    pe-lab dashboard project=pe-lab name=mine to=FILE

Tasks, splits and keys are those of the runs in runs_dir=runs. The workspace shows the project's
runs in wandb, offline ones after ``wandb sync``. See docs/wandb.md.
"""

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import polars as pl
from pydantic import Field

from pe_lab.core.errors import RunError, UsageError, reason
from pe_lab.core.files import write_output
from pe_lab.core.options import Line
from pe_lab.experiment.tracking import call_with_timeout
from pe_lab.results.groups import named
from pe_lab.results.query import split_values
from pe_lab.results.table import GROUPS, selected, splits_of

REQUEST_SECONDS, ONLINE_SECONDS = 10, 30.0
"""Time limits of one request to wandb's server, and of all requests."""


def show(
    line: Line,
    *,
    runs_dir: Path = Path("runs"),
    where: str | None = None,
    mode: Literal["offline", "online"] = "offline",
    entity: str = Field(default_factory=lambda: os.environ.get("WANDB_ENTITY", "")),
    project: str = Field(default_factory=lambda: os.environ.get("WANDB_PROJECT", "pe-lab")),
    name: str | None = None,
    to: Path | None = None,
    **filters: str,
) -> None:
    """Write a workspace for each task, and save it in wandb with ``mode=online``.

    Raises:
        UsageError: wrong options, or no such runs.
        RunError: a file cannot be written, or wandb did not accept the workspace.
    """
    frame, selection = selected(line, runs_dir, where, filters), _filters(where, filters)
    tasks = frame.filter(pl.col("state") != "broken")["task"].drop_nulls().unique().sort().to_list()
    if not tasks or (len(tasks) > 1 and to is not None):
        words = " ".join(["dashboard", *line.filters])
        raise UsageError(f"{words}: runs of {len(tasks)} tasks; give those of one with to=FILE")
    try:
        from pe_lab.report.dashboards import workspace
    except ImportError:
        raise UsageError(
            "dashboard needs the library wandb-workspaces: pip install 'pe-lab[dashboard]'"
        ) from None
    for task in tasks:
        title = " ".join([name, task] if name and len(tasks) > 1 else [name or task])
        runs = frame.filter(pl.col("task") == task)
        view = workspace(
            task, splits_of(runs), keys=named(runs).keys, filters=selection,
            entity=entity, project=project, name=title,
        )  # fmt: skip
        file = f"{re.sub(r'[^A-Za-z0-9._-]+', '-', title)}.json"
        path = to or runs_dir / "dashboard" / file
        _use_saved(view, entity, path)
        _write(view, path)
        print(f"written to {path}")
        if mode == "online":
            print(f"saved as {_save(view, path)}")


def _filters(where: str | None, words: Mapping[str, str]) -> dict[str, list[Any]]:
    """The filters as keys of the configuration, by which wandb selects."""
    filters = {}
    for key, values in [*words.items(), *([("where", "")] if where else [])]:
        if not (key in ("pe", "task", "seed", *GROUPS) or "." in key):
            raise UsageError(f"dashboard {key}: a saved workspace selects by key=value alone")
        name = f"names.{key}" if key in ("pe", *GROUPS) else key
        filters[name] = [_value(entry) for entry in split_values(values)]
    filters.pop("task", None)
    return filters


def _value(text: str) -> Any:
    with suppress(ValueError):
        return json.loads(text.lower())
    return text


def _use_saved(view: Any, entity: str, path: Path) -> None:
    """Replace the view in wandb that an earlier call saved, if the file there has one."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        saved = json.loads(path.read_text())
        if saved["project"] == view.project and entity in ("", saved["entity"]):
            view._internal_name, view._internal_id = saved["name"], saved["id"]
            view.entity = saved["entity"]


def _write(view: Any, path: Path) -> None:
    """Write what the library sends to wandb, as JSON."""
    text = view._to_model().model_dump_json(by_alias=True, exclude_none=True, indent=1)
    write_output(path, text.encode() + b"\n")


def _save(view: Any, path: Path) -> str:
    """Save the view in wandb and return its address."""

    def save() -> str:
        import wandb

        wandb.setup(wandb.Settings(silent=True))
        view.entity = view.entity or wandb.Api(timeout=REQUEST_SECONDS).default_entity
        view.save()
        return str(view.url)

    url, error = call_with_timeout(save, ONLINE_SECONDS)
    if error is not None:
        raise RunError(
            f"wandb did not take the workspace: {reason(error)}; {path} has it; run `wandb login`, "
            "check the network, or leave mode=online out"
        ) from None
    _write(view, path)
    return str(url)
