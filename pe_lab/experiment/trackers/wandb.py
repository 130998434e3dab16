"""Logging a run to Weights & Biases."""

import errno
import hashlib
import json
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, PositiveFloat

from pe_lab.core.console import logger
from pe_lab.core.errors import PeLabError, reason
from pe_lab.core.files import replace_file
from pe_lab.core.tracker import (
    LENGTH_COLUMNS,
    SPLIT_COLUMNS,
    UNCHARTED,
    TrackedRun,
    Tracker,
    call_with_timeout,
    closing_row,
    length_rows,
    split_rows,
    with_mean_ood,
)
from pe_lab.core.validation import closed
from pe_lab.store.run_id import operational
from pe_lab.store.schema import LOGGED, Logged, read_json

T = TypeVar("T")

MIN_FREE_BYTES = 1 << 20
"""wandb silently loses rows on a full disk, and checkpoints need the space more."""


class WandbFolder:
    """The folder ``wandb`` of a run.

    Its file ``rows`` holds the random part of the run's ``id`` in wandb, so that equal runs in two
    folders stay two runs, and how many rows were ``sent`` online. How many were ``logged`` in all
    is absent while a process is logging, and after it was killed.

    Attributes:
        id: the random part.
        rows: how many rows wandb has.
        replaced: the folders that are deleted once their rows are logged again.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.id, self.rows, self._sent = path, "", 0, 0
        self.replaced: list[Path] = []

    def read(self, mode: str) -> None:
        """Set the attributes for a process in this mode, by what earlier ones logged."""
        known: Logged | None = None
        try:
            known = read_json(LOGGED, self.path / "rows", "it is logged as another run")
        except PeLabError as error:
            logger.warning("%s", error)
        self.id, self._sent = (known["id"], known["sent"]) if known else (token_hex(3), 0)
        folders = [path for path in self.path.glob("*run-*") if path.is_dir()]
        unsent = [p for p in folders if p.match("offline-*") and not any(p.glob("*.synced"))]
        if mode == "online":
            self.rows, self.replaced = self._sent, unsent
        elif known and "logged" in known:
            self.rows, self.replaced = known["logged"], []
        else:
            self.rows, self.replaced = 0, unsent
            # If it is unknown how many rows reached the server, log them as another run.
            self.id = self.id if folders == unsent else token_hex(3)

    def begin(self) -> None:
        """Record that a process begins to log."""
        self._write({"id": self.id, "sent": self._sent})

    def end(self, rows: int, *, online: bool) -> None:
        """Record how many rows are logged now."""
        self._write({"id": self.id, "sent": rows if online else self._sent, "logged": rows})

    def check_disk(self, path: Path) -> None:
        """OSError unless ``path`` is there, on a disk with some space left."""
        if shutil.disk_usage(path).free < MIN_FREE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def _write(self, rows: Logged) -> None:
        replace_file(self.path / "rows", json.dumps(rows).encode())


def file_of(run: Any) -> Path:
    """The file to which wandb writes a run."""
    return Path(run.dir).parent / f"run-{run.id}.wandb"


def sync_command(run: Any) -> str:
    """The command that uploads a run's file; wandb skips online runs unless it says otherwise."""
    folder = file_of(run).parent
    online = "" if folder.name.startswith("offline-") else "--no-skip-online "
    return f"wandb sync {online}{shlex.quote(str(folder))}"


@closed
class WandbConfig:
    """The keys of ``tracker.wandb`` (conf/tracker/wandb.yaml)."""

    mode: Literal["online", "offline", "disabled"]
    project: str
    entity: str | None
    name: Annotated[str, Field(max_length=128)] | None
    group: Annotated[str, Field(max_length=128)] | None
    notes: str | None
    tags: list[str]
    system_metrics: bool
    init_timeout: PositiveFloat


MAX_NAME, MAX_TAG = 128, 64
"""wandb's limits, in characters."""
NAMED = ("pe", "seed", "seed.data")
"""Keys that the beginning of a run's name has."""


def init_arguments(cfg: WandbConfig, run: TrackedRun) -> dict[str, Any]:
    """The arguments of wandb.init that identify a run.

    ``config`` has a key ``setting`` beside the configuration: the encoding and every override
    that can change a number except the seed, for averages over seeds.
    """
    names, model = run.config["names"], run.config["model"]
    size = f"{model['n_layers']}L-d{model['d_model']}" if "d_model" in model else names["model"]
    tags = [*cfg.tags, names["task"], names["pe"], size]
    if "experiment" in names:
        tags.append(names["experiment"])
    if names.get("positions", "sequential") != "sequential":
        tags.append(names["positions"])
    relevant = [override.lstrip("+") for override in run.overrides if not operational(override)]
    relevant = [line for line in relevant if line.partition("=")[0] not in NAMED]
    setting = [names["pe"], *sorted(line for line in relevant if not line.startswith("task="))]
    return {
        "id": run.run_id,
        "name": cfg.name or _name(run, relevant),
        "group": cfg.group or run.sweep,
        "job_type": names["pe"],
        "tags": list(dict.fromkeys(tag[:MAX_TAG] for tag in tags)),
        "config": run.config | {"setting": " ".join(setting)},
        "notes": cfg.notes or shlex.join(["pe-lab", *run.overrides]),
    }


def _name(run: TrackedRun, overrides: Sequence[str]) -> str:
    """Encoding, seed and overrides; a long one ends in a digest of them."""
    again = f" again {run.run_id.rpartition('-again-')[2]}" if "-again-" in run.run_id else ""
    seed = run.config["seed"]
    data = seed["data"] if isinstance(seed, Mapping) else seed
    name = " ".join([f"{run.config['names']['pe']}-seed{data}{again}", *overrides])
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 9]} {digest}"


UPLOAD_SECONDS = 20.0
"""Limit on uploading at the end of a run; the rest is left to `wandb sync`."""

GRACE_SECONDS = 30.0
"""How much longer than wandb's own limits a call may take."""


TEARDOWN_SECONDS = 5.0
"""Limit on stopping wandb's process after a failure."""

DISK_ERRORS = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENOTDIR, errno.EEXIST, errno.ENOENT, errno.EIO),
}


class WandbTracker(Tracker):
    """Weights & Biases, without any question on the terminal; its files are in ``folder/wandb``.

    Row n of metrics.jsonl is wandb's step n. A resumed run logs the rows that wandb lacks:
    online, the server and ``wandb/rows`` say how many it has; offline, the number is in
    ``wandb/rows`` if the process before ended normally. Otherwise all rows are logged again and
    its files, which may be incomplete, are deleted.

    Args:
        wandb: the keys ``tracker.wandb``. If ``mode`` is online and the server or the key is
            missing, the run is logged offline.
    """

    name = "wandb"

    def __init__(self, wandb: WandbConfig) -> None:
        self._cfg = wandb
        self.active = wandb.mode != "disabled"
        self.start_seconds = wandb.init_timeout + 2 * GRACE_SECONDS
        self.log_seconds = GRACE_SECONDS
        self.finish_seconds = UPLOAD_SECONDS + GRACE_SECONDS
        self._mode = wandb.mode
        self._step = 0
        self._hidden: set[str] = set()
        self._run: Any = None

    def start(self, run: TrackedRun) -> None:
        self._run_folder, self._splits = run.folder, run.splits
        self._folder = WandbFolder(run.folder / "wandb")
        # In a folder that cannot be written, wandb would silently use a temporary one.
        self._folder.path.mkdir(parents=True, exist_ok=True)
        self._folder.check_disk(self._folder.path)
        self._begin(run)
        for handler in logging.getLogger("wandb").handlers:
            # wandb's log file is on the same disk: if that is full, print no tracebacks.
            handler.handleError = lambda record: None  # type: ignore[method-assign]
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")
        for row in run.rows:
            self.log(row)
        for path in self._folder.replaced:
            shutil.rmtree(path)

    def log(self, row: dict[str, Any]) -> None:
        if self._step >= self._folder.rows:
            row = with_mean_ood(row, self._splits)
            for key in row.keys() - self._hidden:
                if key.endswith(UNCHARTED):
                    self._run.define_metric(key, step_metric="step", hidden=True)
                    self._hidden.add(key)
            self._folder.check_disk(file_of(self._run))
            self._run.log(row, step=self._step, commit=True)
        self._step += 1

    def finish(self, summary: dict[str, Any] | None, exit_code: int) -> None:
        try:
            if summary is not None:
                self._log_summary(summary)
        finally:
            self._run.finish(exit_code=exit_code)
        file_of(self._run).stat()
        self._folder.end(max(self._step, self._folder.rows), online=self._mode == "online")

    def remedy(self, error: BaseException) -> str:
        if isinstance(error, ImportError):
            return "install wandb, or set tracker=none"
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            return f"free space or give write access at {self._folder.path}"
        if self._run is not None and self._mode == "online":
            # wandb logs no table without its server.
            command = sync_command(self._run)
            return f"the same command sends what is missing, `{command}` all but the tables"
        return "tracker=none does without it"

    def abort(self) -> None:
        # wandb's exit hook would wait for the failed call again.
        if "wandb" in sys.modules:
            sys.modules["wandb"].teardown(exit_code=1)

    def _begin(self, run: TrackedRun) -> None:
        """Start wandb, offline if it fails online."""
        try:
            self._begin_in_mode(run)
            return
        except ImportError:
            raise
        except Exception as error:
            if self._mode != "online":
                raise
            failure = reason(error)
            logger.debug("wandb did not start online", exc_info=True)
        call_with_timeout(self.abort, TEARDOWN_SECONDS)
        self._mode = "offline"
        self._begin_in_mode(run)
        logger.warning(
            "wandb did not start online: %s; the run is logged offline: run `wandb login` or "
            "check the network, then `%s`",
            failure, sync_command(self._run),
        )  # fmt: skip

    def _begin_in_mode(self, run: TrackedRun) -> None:
        self._folder.read(self._mode)
        begun = self._init(run)
        if not file_of(begun).is_relative_to(self._folder.path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self._folder.path))
        if self._mode == "online":
            self._folder.rows = max(begun.starting_step, self._folder.rows)
            logger.info("wandb: %s", begun.url)
        self._run = begun
        self._folder.begin()

    def _init(self, run: TrackedRun) -> Any:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        # Only the global setting keeps wandb from asking for a key.
        wandb.setup(wandb.Settings(silent=True))
        # Log files of earlier runs in this process; their folders may be gone.
        logging.getLogger("wandb").handlers.clear()
        arguments = init_arguments(self._cfg, run)
        return wandb.init(
            **arguments | {"id": f"{run.run_id}-{self._folder.id}"},
            project=self._cfg.project,
            entity=self._cfg.entity,
            dir=str(self._run_folder),
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
        if self._step < self._folder.rows:  # Another process has logged the row of the tables.
            return
        # Without it, wandb keeps a copy of every table in the home folder.
        before = os.environ.get("WANDB_DATA_DIR")
        os.environ["WANDB_DATA_DIR"] = before or str(self._folder.path)
        try:
            # Mixed types: a split that does not apply has no numbers.
            splits = wandb.Table(list(SPLIT_COLUMNS), split_rows(summary), allow_mixed_types=True)
            lengths = wandb.Table(list(LENGTH_COLUMNS), length_rows(summary))
            self.log({"step": row["step"], "splits": splits, "lengths": lengths})
        finally:
            if before is None:
                del os.environ["WANDB_DATA_DIR"]
