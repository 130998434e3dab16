"""Logging a run to Weights & Biases, offline or online."""

import errno
import json
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
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
    LENGTH_COLUMNS,
    SPLIT_COLUMNS,
    add_mean_ood,
    call_with_timeout,
    closing_row,
    length_rows,
    split_rows,
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
    that can change a number except the seed, for averages over seeds.
    """
    names, model = run.config["names"], run.config["model"]
    size = f"{model['n_layers']}L-d{model['d_model']}" if "d_model" in model else names["model"]
    tags = [*cfg.tags, names["task"], names["pe"], size]
    tags += [names[group] for group in ("experiment", "positions") if group in names]
    relevant = [override.lstrip("+") for override in run.overrides if not is_operational(override)]
    relevant = [line for line in relevant if line.partition("=")[0] not in NAMED]
    setting = [names["pe"], *sorted(line for line in relevant if not line.startswith("task="))]
    return {
        "name": cfg.name or run_name(run, relevant),
        "group": cfg.group or run.environment.get("sweep"),
        "job_type": names["pe"],
        "tags": list(dict.fromkeys(tag[:MAX_TAG] for tag in tags if tag != "sequential")),
        "config": run.config | {"setting": " ".join(setting)},
        "notes": cfg.notes or shlex.join(["pe-lab", *run.overrides]),
    }


def run_name(run: TrackedRun, overrides: Sequence[str]) -> str:
    """Encoding, seed and overrides."""
    seed = run.config["seed"]
    data = seed["data"] if isinstance(seed, Mapping) else seed
    name = " ".join([f"{run.config['names']['pe']}-seed{data}", *overrides])
    return name[:MAX_NAME]


class WandbTracker(Tracker):
    """Weights & Biases, without any question on the terminal; its files are in ``folder/wandb``.

    Row n of metrics.jsonl is wandb's step n. The file ``wandb/rows`` holds the random part of the
    run's ``id`` in wandb, so that equal runs in two folders stay two runs, and how many rows were
    ``sent`` online. A resumed run logs the rows that wandb lacks. Offline, all rows are logged
    again and the files of the earlier processes are deleted.

    Args:
        wandb: the keys ``tracker.wandb``. If ``mode`` is online and the server or the key is
            missing, the run is logged offline.
    """

    def __init__(self, wandb: WandbConfig) -> None:
        self._cfg, self._mode = wandb, wandb.mode
        self.active = wandb.mode != "disabled"
        self.start_seconds = wandb.init_timeout + 2 * GRACE_SECONDS
        self.log_seconds, self.finish_seconds = GRACE_SECONDS, UPLOAD_SECONDS + GRACE_SECONDS
        self._step = self._rows = self._sent = 0
        self._run: Any = None

    def start(self, run: TrackedRun) -> None:
        self._splits, self._folder = run.splits, run.folder / "wandb"
        # In a folder that cannot be written, wandb would silently use a temporary one.
        self._folder.mkdir(parents=True, exist_ok=True)
        self._check_disk()
        try:
            replaced = self._start_in_mode(run)
        except Exception as error:
            if self._mode != "online" or isinstance(error, ImportError):
                raise
            call_with_timeout(self.abort, ABORT_SECONDS)
            self._mode = "offline"
            replaced = self._start_in_mode(run)
            logger.warning(
                "wandb did not start online: %s; the run is logged offline: run `wandb login` or "
                "check the network, then `%s`", reason(error), self._sync_command(),
            )  # fmt: skip
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")
        for row in run.rows:
            self.log(row)
        for path in replaced:
            shutil.rmtree(path)

    def log(self, row: dict[str, Any]) -> None:
        if self._step >= self._rows:
            row = add_mean_ood(row, self._splits)
            self._check_disk()
            self._run.log(row, step=self._step, commit=True)
        self._step += 1

    def finish(self, summary: dict[str, Any] | None, exit_code: int) -> None:
        try:
            if summary is not None:
                self._log_summary(summary)
        finally:
            self._run.finish(exit_code=exit_code)
        self._check_disk()
        self._rows = max(self._step, self._rows)
        self._sent = self._rows if self._mode == "online" else self._sent
        self._record_rows()

    def remedy(self) -> str:
        if self._run is not None and self._mode == "online":
            return f"`{self._sync_command()}` sends what is missing, without the tables"
        return "tracker=none does without it"

    def abort(self) -> None:
        # wandb's exit hook would wait for the failed call again.
        if "wandb" in sys.modules:
            sys.modules["wandb"].teardown(exit_code=1)

    def _start_in_mode(self, run: TrackedRun) -> list[Path]:
        """Start wandb; return the folders that are deleted once their rows are logged again."""
        replaced = self._read_rows()
        self._run = self._init(run)
        if not Path(self._run.dir).is_relative_to(self._folder):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self._folder))
        if self._mode == "online":
            self._rows = max(self._run.starting_step, self._rows)
            logger.info("wandb: %s", self._run.url)
        self._record_rows()
        return replaced

    def _read_rows(self) -> list[Path]:
        """Set the id and the number of rows that wandb has; return the folders to be replaced."""
        recorded_state: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            recorded_state = dict(json.loads((self._folder / "rows").read_text()))
        self._id, self._sent = recorded_state.get("id", token_hex(3)), recorded_state.get("sent", 0)
        folders = [path for path in self._folder.glob("*run-*") if path.is_dir()]
        unsent = [p for p in folders if p.match("offline-*") and not any(p.glob("*.synced"))]
        if self._mode == "online":
            self._rows = self._sent
            return unsent
        # Of uploaded files it is unknown how many rows reached the server: it is another run.
        self._rows, self._id = 0, self._id if folders == unsent else token_hex(3)
        return unsent

    def _record_rows(self) -> None:
        content = json.dumps({"id": self._id, "sent": self._sent})
        replace_file(self._folder / "rows", content.encode())

    def _check_disk(self) -> None:
        """OSError unless wandb's files are there, on a disk with some space left."""
        place = self._folder if self._run is None else self._wandb_file()
        if shutil.disk_usage(place).free < MIN_FREE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._folder))

    def _wandb_file(self) -> Path:
        return Path(self._run.dir).parent / f"run-{self._run.id}.wandb"

    def _sync_command(self) -> str:
        """Return the command that uploads the file; wandb skips online runs unless told
        otherwise."""
        folder = self._wandb_file().parent
        online = "" if folder.name.startswith("offline-") else "--no-skip-online "
        return f"wandb sync {online}{shlex.quote(str(folder))}"

    def _init(self, run: TrackedRun) -> Any:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        # Without it, wandb keeps a copy of every table in the home folder.
        os.environ["WANDB_DATA_DIR"] = str(self._folder)
        import wandb

        # Only the global setting keeps wandb from asking for a key.
        wandb.setup(wandb.Settings(silent=True))
        # Log files of earlier runs in this process; their folders may be gone.
        logging.getLogger("wandb").handlers.clear()
        return wandb.init(
            **init_arguments(self._cfg, run),
            id=f"{run.run_id}-{self._id}",
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

    def _log_summary(self, summary: dict[str, Any]) -> None:
        import wandb

        row, numbers = closing_row(summary)
        self.log(row)
        self._run.summary.update(numbers)
        if self._step < self._rows:  # Another process has logged the row of the tables.
            return
        # Mixed types: a split that does not apply has no numbers.
        splits = wandb.Table(list(SPLIT_COLUMNS), split_rows(summary), allow_mixed_types=True)
        lengths = wandb.Table(list(LENGTH_COLUMNS), length_rows(summary))
        self.log({"step": row["step"], "splits": splits, "lengths": lengths})
