"""Logging a run to Weights & Biases; whatever fails there does not harm the run."""

import errno
import logging
import os
import secrets
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pe_lab.common.errors import reason
from pe_lab.common.files import replace_file
from pe_lab.common.timeout import call_with_timeout
from pe_lab.config.schema import WandbConfig
from pe_lab.experiment.wandb_labels import (
    LENGTH_COLUMNS,
    SPLIT_COLUMNS,
    UNCHARTED,
    closing_row,
    length_rows,
    picture_splits,
    split_rows,
    with_mean_ood,
)
from pe_lab.store.metrics_log import read_metrics

logger = logging.getLogger("pe_lab")

UPLOAD_SECONDS = 20.0
"""Limit on uploading at the end of a run; the rest is left to `wandb sync`."""

GRACE_SECONDS = 30.0
"""How much longer than wandb's own limits a call may take."""

TEARDOWN_SECONDS = 5.0
"""Limit on stopping wandb after a failure."""

MIN_FREE_BYTES = 1 << 20
"""wandb silently loses rows on a full disk, and checkpoints need the space more."""

DISK_ERRORS = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENOTDIR, errno.EEXIST, errno.ENOENT, errno.EIO),
}


class WandbLog:
    """One run in wandb. Any failure is reported in one warning and stops logging to wandb.

    Nothing is asked on the terminal, every call is bounded in time, and wandb's files are in
    ``folder/wandb``. Row n of metrics.jsonl is wandb's step n. A resumed run logs from
    metrics.jsonl what wandb lacks: online, the server says how many rows it has; offline, the
    number is in ``wandb/rows`` if the process before ended normally. Otherwise all rows are
    logged again and its files, which may be incomplete, are deleted.

    Args:
        folder: the run folder; its metrics.jsonl holds the rows so far.
        arguments: those of wandb.init. A random suffix is added to ``id``, so that equal runs
            in two folders stay two runs.
    """

    def __init__(self, cfg: WandbConfig, folder: Path, arguments: dict[str, Any]) -> None:
        self._cfg = cfg
        self._run_folder = folder.absolute()
        self._folder = self._run_folder / "wandb"
        self._step = self._known_rows = 0
        self._hidden: set[str] = set()
        self._run: Any = None
        if cfg.mode != "disabled":
            seconds = cfg.init_timeout + GRACE_SECONDS
            self._run = self._bounded("did not start", partial(self._start, arguments), seconds)

    def log(self, row: dict[str, Any]) -> None:
        """Log the next row of metrics.jsonl; it has a key ``step``."""
        if self._run is not None:
            self._bounded("stopped", partial(self._log_row, self._run, row), GRACE_SECONDS)

    def finish(self, summary: dict[str, Any] | None, exit_code: int) -> None:
        """Close the run; ``summary`` of a finished one adds its last row and its tables."""
        if self._run is None:
            return
        pictures = self._pictures(summary) if summary else {}
        end = partial(self._end, self._run, summary, pictures, exit_code)
        self._bounded("did not end well", end, UPLOAD_SECONDS + GRACE_SECONDS)
        self._run = None

    def _start(self, arguments: dict[str, Any]) -> Any:
        # In a folder that cannot be written, wandb would silently use a temporary one.
        self._folder.mkdir(parents=True, exist_ok=True)
        self._check_disk(self._folder)
        run_id, incomplete = self._continue(arguments["id"])
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        # Only the global setting keeps wandb from asking for a key.
        wandb.setup(wandb.Settings(silent=True))
        # Log files of earlier runs in this process; their folders may be gone.
        logging.getLogger("wandb").handlers.clear()
        run = wandb.init(
            **arguments | {"id": run_id},
            project=self._cfg.project,
            entity=self._cfg.entity,
            dir=str(self._run_folder),
            mode=self._cfg.mode,
            resume="allow",
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                save_code=False,
                x_disable_stats=True,
                x_save_requirements=False,
                init_timeout=self._cfg.init_timeout,
                finish_timeout=UPLOAD_SECONDS,
                finish_timeout_raises=True,
                # A run left open by an exception must not be used for the next job.
                reinit="create_new",
            ),
        )
        for handler in logging.getLogger("wandb").handlers:
            # wandb's log file is on the same disk: if that is full, print no tracebacks.
            handler.handleError = lambda record: None  # type: ignore[method-assign]
        if not _file_of(run).is_relative_to(self._folder):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self._folder))
        run.define_metric("step", hidden=True)
        run.define_metric("*", step_metric="step")
        if self._cfg.mode == "online":
            self._known_rows = run.starting_step
        metrics = self._run_folder / "metrics.jsonl"
        for row in read_metrics(metrics) if metrics.exists() else []:
            self._log_row(run, row)
        for path in incomplete:
            shutil.rmtree(path)
        return run

    def _continue(self, run_id: str) -> tuple[str, list[Path]]:
        """The id in wandb, and the folders of earlier processes that this one replaces."""
        id_file, rows_file = self._folder / "id", self._folder / "rows"
        earlier = [path for path in self._folder.glob("*run-*") if path.is_dir()]
        unsent = [p for p in earlier if p.match("offline-*") and not any(p.glob("*.synced"))]
        if rows_file.exists():
            self._known_rows = int(rows_file.read_text())
            rows_file.unlink()
            unsent = unsent if self._cfg.mode == "online" else []
        elif self._cfg.mode == "offline" and earlier != unsent:
            # How many rows reached the server is not known here: log them as another run.
            id_file.unlink(missing_ok=True)
        if not id_file.exists():
            replace_file(id_file, secrets.token_hex(3).encode())
        return f"{run_id}-{id_file.read_text()}", unsent

    def _log_row(self, run: Any, row: dict[str, Any]) -> None:
        if self._step >= self._known_rows:
            row = with_mean_ood(row)
            for key in row.keys() - self._hidden:
                if key.endswith(UNCHARTED):
                    run.define_metric(key, step_metric="step", hidden=True)
                    self._hidden.add(key)
            self._check_disk(_file_of(run))
            run.log(row, step=self._step, commit=True)
        self._step += 1

    def _end(
        self, run: Any, summary: dict[str, Any] | None, pictures: dict[str, str], exit_code: int
    ) -> None:
        rows = max(self._step, self._known_rows)
        try:
            if summary is not None:
                self._log_summary(run, summary, pictures)
        finally:
            run.finish(exit_code=exit_code)
        _file_of(run).stat()
        replace_file(self._folder / "rows", str(rows).encode())

    def _log_summary(self, run: Any, summary: dict[str, Any], pictures: dict[str, str]) -> None:
        import wandb

        row, numbers = closing_row(summary)
        self._log_row(run, row)
        run.summary.update(numbers)
        # Without it, wandb keeps a copy of every table in the home folder.
        before = os.environ.get("WANDB_DATA_DIR")
        os.environ["WANDB_DATA_DIR"] = before or str(self._folder)
        try:
            # Mixed types: a split that does not apply has no numbers.
            splits = wandb.Table(list(SPLIT_COLUMNS), split_rows(summary), allow_mixed_types=True)
            lengths = wandb.Table(list(LENGTH_COLUMNS), length_rows(summary))
            html = {
                f"pictures/{split}": wandb.Html(page, inject=False, data_is_not_path=True)
                for split, page in pictures.items()
            }
            self._log_row(run, {"step": row["step"], "splits": splits, "lengths": lengths, **html})
        finally:
            if before is None:
                del os.environ["WANDB_DATA_DIR"]

    def _pictures(self, summary: dict[str, Any]) -> dict[str, str]:
        """The inspection page of some splits; none where they cannot be made."""
        if not self._cfg.pictures:
            return {}
        try:
            from pe_lab.experiment.inspect_run import inspect_run
            from pe_lab.inspection.page import page

            return {
                s: page(inspect_run(self._run_folder, split=s)) for s in picture_splits(summary)
            }
        except Exception as error:
            logger.warning("tracker.wandb.pictures=true, but there are none: %s", reason(error))
            logger.debug("no pictures", exc_info=True)
            return {}

    def _check_disk(self, path: Path) -> None:
        """OSError unless ``path`` is there, on a disk with some space left."""
        if shutil.disk_usage(path).free < MIN_FREE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._folder))

    def _bounded(self, failure: str, call: Callable[[], Any], seconds: float) -> Any:
        """The result of ``call``; if it fails or takes longer, stop logging to wandb."""
        result, error = call_with_timeout(call, seconds)
        if error is None:
            return result
        remedy = "tracker.wandb.mode=disabled does without it"
        if isinstance(error, ImportError):
            remedy = "install wandb, or set tracker.wandb.mode=disabled"
        elif isinstance(error, OSError) and error.errno in DISK_ERRORS:
            remedy = f"free space or give write access at {self._folder}"
        elif self._cfg.mode == "online" and self._run is not None:
            remedy = f"`wandb sync {_file_of(self._run).parent}` sends what is missing"
        elif self._cfg.mode == "online":
            remedy = "run `wandb login`, check the network, or set tracker.wandb.mode=offline"
        logger.warning(
            "wandb %s: %s; metrics.jsonl has every number; %s", failure, reason(error), remedy
        )
        self._run = None
        # wandb's exit hook would wait for the failed call again.
        call_with_timeout(lambda: sys.modules["wandb"].teardown(exit_code=1), TEARDOWN_SECONDS)
        return None


def _file_of(run: Any) -> Path:
    """The file to which wandb writes the run."""
    return Path(run.dir).parent / f"run-{run.id}.wandb"
