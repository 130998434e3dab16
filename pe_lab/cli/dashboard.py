"""``pe-lab dashboard``: a wandb workspace for the runs of a folder, as JSON or saved in wandb.

    pe-lab dashboard                                   one per task: runs/dashboard/<task>.json
    pe-lab dashboard task=flipflop pe=cope,rope        filters: key=value or key=value,value
    pe-lab dashboard mode=online entity=me             also save it in wandb (default: offline)
    pe-lab dashboard project=pe-lab name=mine out=FILE

Tasks, splits and keys are those of the runs in runs_dir=runs. The workspace shows the project's
runs in wandb, offline ones after ``wandb sync``. See docs/wandb.md.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import polars as pl

from pe_lab.core.errors import RunError, UsageError, reason, writing
from pe_lab.core.files import replace_file
from pe_lab.core.options import parse
from pe_lab.experiment.tracking import call_with_timeout
from pe_lab.results.groups import named
from pe_lab.results.selection import RunOptions, selected
from pe_lab.results.table import GROUPS

REQUEST_SECONDS, ONLINE_SECONDS = 10, 30.0
"""Time limits of one request to wandb's server, and of all requests."""


class DashboardOptions(RunOptions):
    command = "dashboard"

    mode: Literal["offline", "online"] = "offline"
    entity: str = ""
    project: str = "pe-lab"
    name: str | None = None
    out: Path | None = None


def show(words: Sequence[str]) -> None:
    """Write a workspace for each task, and save it in wandb with ``mode=online``.

    Raises:
        UsageError: wrong options, or no such runs.
        RunError: a file cannot be written, or wandb did not accept the workspace.
    """
    options = parse(DashboardOptions, words)
    frame, filters = selected(options), _filters(options)
    tasks = frame["task"].drop_nulls().unique().sort().to_list() if frame.width else []
    if not tasks:
        line = " ".join(["dashboard", *options.filters])
        raise UsageError(f"{line}: no such runs in {options.runs_dir}; pe-lab results shows all")
    if len(tasks) > 1 and options.out is not None:
        raise UsageError(
            f"dashboard out={options.out}: a workspace is of one task, these runs are of "
            f"{', '.join(tasks)}: add task=.., or leave out= away"
        )
    for task in tasks:
        name = options.name or task
        if options.name and len(tasks) > 1:
            name = f"{name} {task}"
        folder = Path(options.runs_dir, "dashboard")
        path = options.out or folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}.json"
        workspace = _workspace(frame.filter(pl.col("task") == task), name, filters, options)
        _replace_saved(workspace, options.entity, path)
        _write(workspace, path)
        print(f"written to {path}")
        if options.mode == "online":
            print(f"saved as {_save(workspace, path)}")


def _filters(options: DashboardOptions) -> dict[str, list[Any]]:
    """The filters as keys of the configuration, by which wandb selects."""
    filters = {}
    for word in options.filters:
        key, _, value = word.partition("=")
        if key == "task":
            continue
        if key == "where" or not (key in ("pe", "seed", *GROUPS) or "." in key) or "[" in value:
            raise UsageError(
                f"dashboard {word}: a saved workspace selects by keys of the configuration "
                "and their values: give key=value or key=value,value"
            )
        name = f"names.{key}" if key in ("pe", *GROUPS) else key
        filters[name] = [_value(entry) for entry in value.split(",")]
    return filters


def _value(text: str) -> Any:
    try:
        return json.loads(text.lower())
    except ValueError:
        return text


def _workspace(
    runs: pl.DataFrame, name: str, filters: dict[str, list[Any]], options: DashboardOptions
) -> Any:
    try:
        from pe_lab.report.dashboards import workspace
    except ImportError:
        raise UsageError(
            "dashboard needs the library wandb-workspaces: pip install 'pe-lab[dashboard]'"
        ) from None
    return workspace(
        runs["task"][0],
        list(dict.fromkeys(s for splits in runs["splits"].drop_nulls() for s in splits)),
        keys=named(runs).keys,
        filters=filters,
        entity=options.entity,
        project=options.project,
        name=name,
    )


def _replace_saved(workspace: Any, entity: str, path: Path) -> None:
    """Replace the view in wandb that an earlier call saved, if the file there has one."""
    try:
        view = json.loads(path.read_text())
        if view["project"] == workspace.project and entity in ("", view["entity"]):
            workspace._internal_name, workspace._internal_id = view["name"], view["id"]
            workspace.entity = view["entity"]
    except (OSError, ValueError, KeyError, TypeError):
        return


def _write(workspace: Any, path: Path) -> None:
    """Write what the library sends to wandb, as JSON."""
    view = workspace._to_model().model_dump_json(by_alias=True, exclude_none=True, indent=1)
    with writing(path, "another out="):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, view.encode() + b"\n")


def _save(workspace: Any, path: Path) -> str:

    def save() -> str:
        import wandb

        wandb.setup(wandb.Settings(silent=True))
        api = wandb.Api(timeout=REQUEST_SECONDS)
        workspace.entity = workspace.entity or api.default_entity
        workspace.save()
        return str(workspace.url)

    url, error = call_with_timeout(save, ONLINE_SECONDS)
    if error is not None:
        raise RunError(
            f"wandb did not take the workspace: {reason(error)}; {path} has it; run `wandb login`, "
            "check the network, or leave mode=online out"
        ) from None
    _write(workspace, path)
    return str(url)
