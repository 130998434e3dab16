"""``pe-lab dashboard``: a saved wandb workspace over the runs of a folder, or its JSON.

    pe-lab dashboard                                   runs/dashboard/<task>.json, one a task
    pe-lab dashboard task=flipflop pe=cope,rope        filters: key=value or key=value,value
    pe-lab dashboard mode=online entity=me             saved in wandb too (offline: the file only)
    pe-lab dashboard project=pe-lab name=mine out=FILE

runs_dir=runs tells which tasks, splits and keys there are; what the view shows are the runs that
wandb has in the project: offline ones once ``wandb sync`` sent them.
docs/wandb.md tells what it shows.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import polars as pl

from pe_lab.common.errors import RunError, UsageError
from pe_lab.common.metrics import IN_DOMAIN
from pe_lab.common.options import parse
from pe_lab.common.timeout import call_with_timeout
from pe_lab.results.frame import GROUPS, labels
from pe_lab.results.selection import RunOptions, selected
from pe_lab.store.run_folder import replace_file

REQUEST_SECONDS, ONLINE_SECONDS = 10, 30.0
"""How long one answer of wandb's server is waited for, and all of them."""


class DashboardOptions(RunOptions):
    """The keys of ``pe-lab dashboard``."""

    command = "dashboard"

    mode: Literal["offline", "online"] = "offline"
    entity: str = ""
    project: str = "pe-lab"
    name: str | None = None
    out: Path | None = None


def show(words: Sequence[str]) -> None:
    """Write a workspace of each task's runs, and save it in wandb with ``mode=online``.

    Raises:
        UsageError: the words, or no runs of that kind.
        RunError: a file cannot be written, or wandb did not take the workspace.
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
    _require_library()
    for task in tasks:
        name = task
        if options.name is not None:
            name = options.name if len(tasks) == 1 else f"{options.name} {task}"
        folder = Path(options.runs_dir, "dashboard")
        path = options.out or folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}.json"
        made = _workspace(frame.filter(pl.col("task") == task), task, filters, options, name, path)
        _write(path, made)
        print(f"written to {path}")
        if options.mode == "online":
            print(f"saved as {_save(made, path)}")


def _filters(options: DashboardOptions) -> dict[str, list[Any]]:
    """The runs asked for, in terms of what wandb knows of them: keys of the configuration."""
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
        filters[name] = [_plain(word) for word in value.split(",")]
    return filters


def _plain(word: str) -> Any:
    """A value as wandb has it: a number, a boolean, or a word."""
    try:
        return float(word) if not re.fullmatch(r"[+-]?\d+", word) else int(word)
    except ValueError:
        return {"true": True, "false": False, "null": None}.get(word.lower(), word)


def _require_library() -> None:
    try:
        import wandb_workspaces  # noqa: F401
    except ImportError:
        raise UsageError(
            "dashboard needs the library wandb-workspaces: pip install 'pe-lab[dashboard]'"
        ) from None


def _workspace(
    runs: pl.DataFrame,
    task: str,
    filters: dict[str, list[Any]],
    options: DashboardOptions,
    name: str,
    path: Path,
) -> Any:
    from pe_lab.report.dashboards import Shown, workspace

    splits = dict.fromkeys(s for own in runs["splits"].drop_nulls().to_list() for s in own)
    told = labels(runs).values()
    keys = [re.findall(r"(?:^|\s)([\w./]+)=", line) for line in told]
    with_pictures = pl.col("tracker.wandb.pictures")
    pictures = "tracker.wandb.pictures" in runs.columns and runs.select(with_pictures.any()).item()
    shown = Shown(
        task=task,
        splits=[split for split in splits if split != IN_DOMAIN],
        differing=list(dict.fromkeys(key for line in keys for key in line)),
        filters=filters,
        pictured=list(splits) if pictures else [],
    )
    made = workspace(shown, entity=options.entity, project=options.project, name=name)
    saved = _saved(path)
    if saved.get("project") == made.project and options.entity in ("", saved["entity"]):
        made.entity = saved["entity"]
        # The view that an earlier call saved is replaced.
        made._internal_name, made._internal_id = saved["name"], saved["id"]
    return made


def _saved(path: Path) -> dict[str, Any]:
    """What an earlier call wrote there; empty where that cannot be told."""
    try:
        view = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    known = isinstance(view, dict) and {"entity", "project", "name", "id"} <= view.keys()
    return view if known else {}


def _write(path: Path, made: Any) -> None:
    """What the library would send, as JSON, whole or not at all."""
    view = made._to_model().model_dump_json(by_alias=True, exclude_none=True, indent=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, lambda file: file.write(view.encode() + b"\n"))
    except OSError as error:
        raise RunError(
            f"{path} cannot be written ({error.strerror}): give another place with out="
        ) from None


def _save(made: Any, path: Path) -> str:
    """Have wandb keep the workspace; returns where it is seen."""

    def save() -> str:
        import wandb

        wandb.setup(wandb.Settings(silent=True))
        api = wandb.Api(timeout=REQUEST_SECONDS)
        made.entity = made.entity or api.default_entity
        made.save()
        return str(made.url)

    url, error = call_with_timeout(save, ONLINE_SECONDS)
    if error is not None:
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise RunError(
            f"wandb did not take the workspace: {reason[:300]}; {path} has it; run `wandb login`, "
            "check the network, or leave mode=online out"
        ) from None
    _write(path, made)
    return str(url)
