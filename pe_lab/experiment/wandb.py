"""Logging a run to Weights & Biases, offline or online."""

import errno
import json
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat

from pe_lab.core.console import logger
from pe_lab.core.errors import reason
from pe_lab.core.files import replace_file
from pe_lab.core.tracker import TrackedRun, Tracker
from pe_lab.core.validation import closed
from pe_lab.experiment.tracking import (
    ABORT_SECONDS,
    add_mean_ood,
    call_with_timeout,
    closing_row,
    closing_tables,
)
from pe_lab.store.run_id import is_operational

MIN_FREE_BYTES = 1 << 20
"""wandb silently loses rows on a full disk, and checkpoints need the space more."""
MAX_NAME, MAX_TAG = 128, 64
"""wandb's limits, in characters."""
NAMED = ("pe", "seed", "seed.data")
"""Keys that the beginning of a run's name has."""
UPLOAD_SECONDS = 20.0
"""Limit on uploading at the end of a run; the rest is left to `wandb sync`."""
GRACE_SECONDS = 30.0
"""How much longer than wandb's own limits a call may take."""


@closed
class WandbConfig:
    """The keys of ``tracker.wandb`` (conf/tracker/wandb.yaml)."""

    mode: Literal["online", "offline", "disabled"]
    project: str
    entity: str | None
    name: Annotated[str, Field(max_length=MAX_NAME)] | None
    group: Annotated[str, Field(max_length=MAX_NAME)] | None
    notes: str | None
    tags: list[str]
    system_metrics: bool
    init_timeout: PositiveFloat


def init_arguments(cfg: WandbConfig, run: TrackedRun) -> dict[str, Any]:
    """Return the arguments of wandb.init that identify a run.

    ``config`` has a key ``setting`` beside the configuration: the encoding and every override
    that can change a number except task and seed, for averages over seeds.
    """
    names, model, seed = run.config["names"], run.config["model"], run.config["seed"]
    size = f"{model['n_layers']}L-d{model['d_model']}" if "d_model" in model else names["model"]
    tags = [*cfg.tags, names["task"], names["pe"], size]
    tags += [names[group] for group in ("experiment", "positions") if group in names]
    relevant = [override.lstrip("+") for override in run.overrides if not is_operational(override)]
    relevant = [line for line in relevant if line.partition("=")[0] not in NAMED]
    setting = [names["pe"], *sorted(line for line in relevant if not line.startswith("task="))]
    data_seed = seed["data"] if isinstance(seed, Mapping) else seed
    return {
        "name": cfg.name or " ".join([f"{names['pe']}-seed{data_seed}", *relevant])[:MAX_NAME],
        "group": cfg.group or run.environment.get("sweep"),
        "job_type": names["pe"],
        "tags": list(dict.fromkeys(tag[:MAX_TAG] for tag in tags if tag != "sequential")),
        "config": run.config | {"setting": " ".join(setting)},
        "notes": cfg.notes or shlex.join(["pe-lab", *run.overrides]),
    }


class WandbTracker(Tracker):
    """Weights & Biases, without any question on the terminal; its files are in ``folder/wandb``.

    Row n of metrics.jsonl is wandb's step n. The file ``wandb/rows`` holds the random part of the
    run's ``id`` in wandb, so that equal runs in two folders stay two runs. A resumed run logs the
    rows that the server lacks. Offline, all rows are logged again and the files of the earlier
    processes are deleted.

    Args:
        wandb: the keys ``tracker.wandb``. If ``mode`` is online and the server or the key is
            missing, the run is logged offline.
    """

    def __init__(self, wandb: WandbConfig) -> None:
        self._cfg, self._mode = wandb, wandb.mode
        self.active = wandb.mode != "disabled"
        self.start_seconds = wandb.init_timeout + 2 * GRACE_SECONDS
        self.log_seconds, self.finish_seconds = GRACE_SECONDS, UPLOAD_SECONDS + GRACE_SECONDS
        self._step = 0
        self._run: Any = None

    def start(self, run: TrackedRun) -> None:
        self._splits, self._folder = run.splits, run.folder / "wandb"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._check_disk()
        earlier = [path for path in self._folder.glob("*run-*") if path.is_dir()]
        unsent = [p for p in earlier if p.match("offline-*") and not any(p.glob("*.synced"))]
        self._uploaded = earlier != unsent
        try:
            self._init(run)
        except Exception as error:
            if self._mode != "online":
                raise
            call_with_timeout(self.abort, ABORT_SECONDS)
            self._mode = "offline"
            self._init(run)
            logger.warning(
                "wandb did not start online: %s; the run is logged offline: run `wandb login` or "
                "check the network, then `%s`", reason(error), self._sync_command(),
            )  # fmt: skip
        if self._mode == "online":
            logger.info("wandb: %s", self._run.url)
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")
        for row in run.rows:
            self.log(row)
        for path in unsent:
            shutil.rmtree(path)

    def log(self, row: dict[str, Any]) -> None:
        # What an earlier process sent is there already.
        if self._step >= self._run.starting_step:
            row = add_mean_ood(row, self._splits)
            self._check_disk()
            self._run.log(row, step=self._step, commit=True)
        self._step += 1

    def finish(self, summary: dict[str, Any] | None, exit_code: int) -> None:
        import wandb

        try:
            if summary is not None:
                row, numbers = closing_row(summary)
                self.log(row)
                self._run.summary.update(numbers)
                # Mixed types: a split that does not apply has no numbers.
                tables = {
                    name: wandb.Table(list(columns), rows, allow_mixed_types=True)
                    for name, (columns, rows) in closing_tables(summary).items()
                }
                self.log({"step": row["step"], **tables})
        finally:
            self._run.finish(exit_code=exit_code)
        self._check_disk()

    def remedy(self) -> str:
        if self._run is not None and self._mode == "online":
            return f"`{self._sync_command()}` sends what is missing, without the tables"
        return "tracker=none does without it"

    def abort(self) -> None:
        # wandb's exit hook would wait for the failed call again.
        if "wandb" in sys.modules:
            sys.modules["wandb"].teardown(exit_code=1)

    def _check_disk(self) -> None:
        """OSError unless wandb's files are there, on a disk with some space left."""
        place = self._folder if self._run is None else self._run.dir
        if shutil.disk_usage(place).free < MIN_FREE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._folder))

    def _sync_command(self) -> str:
        """Return the command that uploads the files; wandb skips online runs unless told
        otherwise."""
        online = "--no-skip-online " if self._mode == "online" else ""
        return f"wandb sync {online}{shlex.quote(str(Path(self._run.dir).parent))}"

    def _choose_id(self) -> str:
        """Return the random part of the run's id: as recorded, but offline another one if files
        were uploaded, as it is unknown how many of their rows reached the server."""
        file, chosen = self._folder / "rows", token_hex(3)
        with suppress(OSError, ValueError, KeyError):
            if self._mode == "online" or not self._uploaded:
                chosen = json.loads(file.read_text())["id"]
        # It fails in a folder that cannot be written, where wandb would silently use another one.
        replace_file(file, json.dumps({"id": chosen}).encode())
        return chosen

    def _init(self, run: TrackedRun) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        # Without it, wandb keeps a copy of every table in the home folder.
        os.environ["WANDB_DATA_DIR"] = str(self._folder)
        import wandb

        # Only the global setting keeps wandb from asking for a key.
        wandb.setup(wandb.Settings(silent=True))
        # Log files of earlier runs in this process; their folders may be gone.
        logging.getLogger("wandb").handlers.clear()
        self._run = wandb.init(
            **init_arguments(self._cfg, run),
            id=f"{run.run_id}-{self._choose_id()}",
            project=self._cfg.project,
            entity=self._cfg.entity,
            dir=str(run.folder),
            mode=self._mode,
            resume="allow",
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,  # That of the current folder, which is not pe-lab's.
                git_commit=run.environment.get("git_revision"),
                save_code=False,
                x_disable_stats=not self._cfg.system_metrics,
                init_timeout=self._cfg.init_timeout,
                finish_timeout=UPLOAD_SECONDS,
                finish_timeout_raises=True,
                # A run left open by an exception must not be used for the next job.
                reinit="create_new",
            ),
        )
