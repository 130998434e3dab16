"""wandb beside the run's own files: it may fail in any way without harm to the run."""

import errno
import logging
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pe_lab.config import WandbConfig

log = logging.getLogger("pe_lab")

UPLOAD_SECONDS = 20.0
"""How long wandb may upload when a run ends; what is left then waits for `wandb sync`."""

GRACE_SECONDS = 10.0
"""Beyond its own limits, how long a wandb that does not answer is waited for."""

FREE_BYTES = 1 << 20
"""wandb stops when the disk has less: it would lose rows silently, and checkpoints need it."""

DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ENOTDIR, errno.EEXIST}


class Wandb:
    """One run in wandb, or nothing at all: whatever fails there is one warning, then silence.

    It asks nothing, waits a bounded time, and keeps its files in ``folder/wandb``. The first
    ``skip`` rows are left out: the process that this one continues has sent them. (Offline,
    each process of a run leaves a folder of its own there; all bear the run's id.)
    """

    def __init__(
        self,
        cfg: WandbConfig,
        folder: Path,
        *,
        run_id: str,
        name: str,
        group: str | None,
        job_type: str,
        tags: Sequence[str],
        config: dict[str, Any],
        skip: int,
    ) -> None:
        self._cfg = cfg
        self._folder = folder.absolute() / "wandb"
        self._skip = skip
        self._defined: set[str] = set()
        self._run: Any = None

        def start() -> Any:
            # wandb itself would go to a temporary folder, and say so where nobody looks.
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._folder) as probe:
                probe.write(b"\0")
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
            import wandb

            # Silence must be global: it is what keeps wandb from asking for a key.
            wandb.setup(wandb.Settings(silent=True))
            run = wandb.init(
                project=cfg.project,
                entity=cfg.entity,
                id=run_id,
                name=name,
                group=group,
                job_type=job_type,
                tags=list(tags),
                config=config,
                dir=str(self._folder.parent),
                mode=cfg.mode,
                resume="allow",
                settings=wandb.Settings(
                    silent=True,
                    console="off",
                    disable_git=True,
                    save_code=False,
                    x_disable_stats=True,
                    x_save_requirements=False,
                    init_timeout=cfg.init_timeout,
                    finish_timeout=UPLOAD_SECONDS,
                    finish_timeout_raises=True,
                    # A run that an exception left open must not be handed to the next job.
                    reinit="create_new",
                ),
            )
            run.define_metric("step", hidden=True)
            run.define_metric("*", step_metric="step")
            return run

        if cfg.mode != "disabled":
            self._run, error = _bounded(start, cfg.init_timeout + GRACE_SECONDS)
            if error is not None:
                self._give_up("did not start", error)

    def log(self, row: dict[str, Any]) -> None:
        """Send a row; it has a key ``step``."""
        if self._skip or self._run is None:
            self._skip = max(0, self._skip - 1)
            return
        try:
            if shutil.disk_usage(self._folder).free < FREE_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._folder))
            for key in row.keys() - self._defined:
                # Not a glob: wandb ignores the summary of one.
                if _has_minimum(key):
                    self._run.define_metric(key, step_metric="step", summary="min,last")
            self._defined.update(row)
            self._run.log(row)
        except Exception as error:
            self._give_up("stopped", error)

    def finish(
        self,
        summary: dict[str, float],
        table: tuple[list[str], list[list[Any]]] | None,
        exit_code: int,
    ) -> None:
        """Close the run with its last values and ``table`` (columns, rows) of the splits."""
        if self._run is None:
            return
        run = self._run

        def end() -> None:
            try:
                for key, value in summary.items():
                    run.summary[key] = _last(run, key, value) if _has_minimum(key) else value
                if table is not None:
                    self._send_table(*table)
            finally:
                run.finish(exit_code=exit_code)

        _, error = _bounded(end, UPLOAD_SECONDS + GRACE_SECONDS)
        if error is not None:
            self._give_up("did not end well", error)
        self._run = None

    def _send_table(self, columns: Sequence[str | int], rows: list[list[Any]]) -> None:
        import wandb

        # wandb stages a table's file in the home folder, for ever, unless told otherwise.
        before = os.environ.get("WANDB_DATA_DIR")
        os.environ["WANDB_DATA_DIR"] = before or str(self._folder)
        try:
            # Mixed: a split that is not applicable has no numbers.
            table = wandb.Table(columns=list(columns), data=rows, allow_mixed_types=True)
            self._run.log({"splits": table})
        finally:
            if before is None:
                del os.environ["WANDB_DATA_DIR"]

    def _give_up(self, what: str, error: BaseException) -> None:
        remedy = "set tracker.wandb.mode=offline or disabled"
        if isinstance(error, ImportError):
            remedy = "install wandb, or set tracker.wandb.mode=disabled"
        elif isinstance(error, OSError) and error.errno in DISK_ERRORS:
            remedy = f"free space or give write access at {self._folder}"
        elif self._cfg.mode == "online" and self._run is not None:
            remedy = f"`wandb sync {Path(self._run.dir).parent}` sends what is missing"
        elif self._cfg.mode == "online":
            remedy = f"run `wandb login`, check the network, or {remedy}"
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        log.warning("wandb %s: %s; metrics.jsonl has every number; %s", what, reason[:300], remedy)
        self._run = None
        teardown = getattr(sys.modules.get("wandb"), "teardown", None)
        if teardown is not None:
            # Otherwise wandb's exit hook would wait for this run once more.
            _bounded(partial(teardown, exit_code=1), GRACE_SECONDS)


def _has_minimum(key: str) -> bool:
    return key == "train/loss" or key.endswith(("/error", "/error_seq"))


def _last(run: Any, key: str, value: float) -> dict[str, float]:
    """``value`` in the form that wandb gives the summary of a metric with a minimum."""
    seen = run.summary.get(key)
    lowest = value if seen is None else min(value, seen["min"])
    return {"min": lowest, "last": value}


def _bounded(work: Callable[[], Any], seconds: float) -> tuple[Any, BaseException | None]:
    """What ``work`` returned, or what it raised; after ``seconds`` it is left to itself."""
    outcome: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        try:
            outcome.append((work(), None))
        # wandb calls sys.exit where its own process ended badly. Signals reach the main
        # thread, which waits below, so an interrupt is never caught here.
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, name="wandb", daemon=True)
    thread.start()
    thread.join(seconds)
    return outcome[0] if outcome else (None, TimeoutError(f"no answer within {seconds:g} s"))
