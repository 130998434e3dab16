"""wandb beside the run's own files: it may fail in any way without harm to the run."""

import errno
import logging
import os
import secrets
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from pe_lab.config.schema import WandbConfig
from pe_lab.experiment.wandb_files import rows_in, run_files
from pe_lab.experiment.wandb_labels import (
    COLUMNS,
    LENGTHS,
    UNCHARTED,
    charted,
    closing,
    length_rows,
    pictured,
    split_rows,
)
from pe_lab.experiment.wandb_timeout import bounded
from pe_lab.store.metrics_log import read_metrics
from pe_lab.store.run_folder import replace_file

log = logging.getLogger("pe_lab")

UPLOAD_SECONDS = 20.0
"""How long wandb may upload when a run ends; what is left then waits for `wandb sync`."""

GRACE_SECONDS = 30.0
"""Beyond its own limits, how long a wandb that does not answer is waited for."""

TEARDOWN_SECONDS = 5.0
"""How long one that was given up may take to go."""

SETTLE_SECONDS = 5.0
"""How long wandb may take to write down what it took: on a busy machine that is not at once."""

FREE_BYTES = 1 << 20
"""wandb stops when the disk has less: it would lose rows silently, and checkpoints need it."""

DISK_ERRORS = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM),
    *(errno.ENOTDIR, errno.EEXIST, errno.ENOENT, errno.EIO),
}


class _Process:
    """What wandb does in this process, for all runs that are trained in it."""

    def __init__(self) -> None:
        self.open: set[Wandb] = set()
        self.left_hanging = False

    def ended(self, run: "Wandb") -> None:
        """Nothing is sent for this run any more. Once that holds of all, end wandb itself where
        it hangs: its exit hook would wait for what was given up once more."""
        self.open.discard(run)
        teardown = getattr(sys.modules.get("wandb"), "teardown", None)
        if self.left_hanging and not self.open and teardown is not None:
            self.left_hanging = False
            bounded(partial(teardown, exit_code=1), TEARDOWN_SECONDS)


_here = _Process()


class Wandb:
    """One run in wandb, or nothing at all: whatever fails there is one warning, then silence.

    It asks nothing, waits a bounded time, and keeps its files in ``folder/wandb``. Every row of
    the run's metrics.jsonl gets there once: a process that goes on with a run reads back what
    the processes before it left, sends what was lost with them, and leaves out what was not.
    (Offline, each leaves a folder of its own; all bear one id, and `wandb sync` joins them.)

    Args:
        folder: the run's.
        labels: arguments of wandb.init (tracking_labels.py); ``id`` gets a suffix of its own,
            so that equal runs of two folders stay two.
        cut: rows that were taken off metrics.jsonl and will be written again.
    """

    def __init__(self, cfg: WandbConfig, folder: Path, labels: dict[str, Any], cut: int) -> None:
        self._cfg = cfg
        self._run_folder = folder.absolute()
        self._folder = self._run_folder / "wandb"
        self._skip = self._sent = 0
        self._defined: set[str] = set()
        self._run: Any = None
        if cfg.mode == "disabled":
            return
        _here.open.add(self)
        start = partial(self._start, labels, cut)
        self._run, error = bounded(start, cfg.init_timeout + GRACE_SECONDS)
        if error is not None:
            self._give_up("did not start", error)

    def log(self, row: dict[str, Any]) -> None:
        """Send a row of metrics.jsonl; it has a key ``step``."""
        if self._skip or self._run is None:
            self._skip = max(0, self._skip - 1)
            return
        _, error = bounded(partial(self._send, self._run, charted(row)), GRACE_SECONDS)
        if error is not None:
            self._give_up("stopped", error)

    def finish(self, summary: dict[str, Any] | None, exit_code: int) -> None:
        """Close the run; where it is finished, with its closing measurement and its table."""
        if self._run is None:
            return
        run, pictures = self._run, self._pictures(summary) if summary else {}

        def end() -> None:
            try:
                if summary is not None:
                    self._close(run, summary, pictures)
            finally:
                run.finish(exit_code=exit_code)
            self._check_file(_file_of(run))

        _, error = bounded(end, UPLOAD_SECONDS + GRACE_SECONDS)
        if error is not None:
            self._give_up("did not end well", error)
        self._run = None
        _here.ended(self)

    def _start(self, labels: dict[str, Any], cut: int) -> Any:
        # wandb itself would go to a temporary folder, and say so where nobody looks.
        self._folder.mkdir(parents=True, exist_ok=True)
        run_id = f"{labels['id']}-{self._suffix()}"
        before = run_files(self._folder, run_id)
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        # Silence must be global: it is what keeps wandb from asking for a key.
        wandb.setup(wandb.Settings(silent=True))
        run = wandb.init(
            **labels | {"id": run_id},
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
                # A run that an exception left open must not be handed to the next job.
                reinit="create_new",
            ),
        )
        for handler in logging.getLogger("wandb").handlers:
            # wandb's own log is on the same disk: a full one must not print tracebacks.
            handler.handleError = lambda record: None  # type: ignore[method-assign]
        if not _file_of(run).is_relative_to(self._folder):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self._folder))
        run.define_metric("step", hidden=True)
        run.define_metric("*", step_metric="step")
        self._go_on(run, before, cut)
        return run

    def _suffix(self) -> str:
        """Six random digits, kept in the folder."""
        kept = self._folder / "id"
        if not kept.exists():
            replace_file(kept, lambda file: file.write(secrets.token_hex(3).encode()))
        # Written each time: an old one proves nothing about a disk that has filled up since.
        (self._folder / "probe").write_bytes(b"\0")
        (self._folder / "probe").unlink()
        return kept.read_text()

    def _go_on(self, run: Any, before: list[Path], cut: int) -> None:
        """Send the rows that wandb has not got, and skip those that it has: the first so many
        that the server counts, or that the files ``before`` hold."""
        metrics = self._run_folder / "metrics.jsonl"
        kept = read_metrics(metrics) if metrics.exists() else []
        try:
            online = self._cfg.mode == "online"
            known = run.starting_step if online else sum(rows_in(file)[0] for file in before)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            log.debug("cannot read wandb's files back", exc_info=True)
            known = len(kept) + cut
        for row in kept[known:]:
            self._send(run, charted(row))
        self._skip = max(0, known - len(kept))

    def _send(self, run: Any, row: dict[str, Any]) -> None:
        self._check_room()
        for key in row.keys() - self._defined:
            if key.endswith(UNCHARTED):
                run.define_metric(key, step_metric="step", hidden=True)
        self._defined.update(row)
        run.log(row)
        self._sent += 1

    def _close(self, run: Any, summary: dict[str, Any], pictures: dict[str, str]) -> None:
        row, numbers = closing(summary)
        self._send(run, row)
        run.summary.update(numbers)
        import wandb

        # wandb stages a table's file in the home folder, for ever, unless told otherwise.
        before = os.environ.get("WANDB_DATA_DIR")
        os.environ["WANDB_DATA_DIR"] = before or str(self._folder)
        try:
            # Mixed: a split that is not applicable has no numbers.
            splits = wandb.Table(list(COLUMNS), split_rows(summary), allow_mixed_types=True)
            lengths = wandb.Table(list(LENGTHS), length_rows(summary))
            html = {
                f"pictures/{split}": wandb.Html(page, inject=False, data_is_not_path=True)
                for split, page in pictures.items()
            }
            self._send(run, {"step": row["step"], "splits": splits, "lengths": lengths, **html})
        finally:
            if before is None:
                del os.environ["WANDB_DATA_DIR"]

    def _pictures(self, summary: dict[str, Any]) -> dict[str, str]:
        """A page a split on what the encoding did; none where they cannot be made."""
        if not self._cfg.pictures:
            return {}
        try:
            from pe_lab.experiment.inspect_run import inspect_run
            from pe_lab.inspection.page import page

            return {s: page(inspect_run(self._run_folder, split=s)) for s in pictured(summary)}
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            log.warning("tracker.wandb.pictures=true, but there are none: %s", reason[:300])
            log.debug("no pictures", exc_info=True)
            return {}

    def _check_room(self) -> None:
        if shutil.disk_usage(self._folder).free < FREE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._folder))

    def _check_file(self, file: Path) -> None:
        """OSError where what was sent is not in the file: wandb does not tell."""
        size, until = file.stat().st_size, time.monotonic() + SETTLE_SECONDS
        try:
            rows, closed = rows_in(file)
            while (rows < self._sent or not closed) and time.monotonic() < until:
                time.sleep(0.2)
                rows, closed = rows_in(file)
        except (ValueError, subprocess.TimeoutExpired):
            log.debug("cannot read %s back (%d bytes)", file, size, exc_info=True)
            return
        if rows < self._sent or not closed:
            lost = f"{file} holds {rows} of {self._sent} rows"
            raise OSError(errno.EIO, lost if rows < self._sent else f"{file} was not closed")

    def _give_up(self, what: str, error: BaseException) -> None:
        remedy = "tracker.wandb.mode=disabled does without it"
        if isinstance(error, ImportError):
            remedy = "install wandb, or set tracker.wandb.mode=disabled"
        elif isinstance(error, OSError) and error.errno in DISK_ERRORS:
            remedy = f"free space or give write access at {self._folder}"
        elif self._cfg.mode == "online" and self._run is not None:
            remedy = f"`wandb sync {_file_of(self._run).parent}` sends what is missing"
        elif self._cfg.mode == "online":
            remedy = "run `wandb login`, check the network, or set tracker.wandb.mode=offline"
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        log.warning("wandb %s: %s; metrics.jsonl has every number; %s", what, reason[:300], remedy)
        self._run = None
        _here.left_hanging = True
        _here.ended(self)


def _file_of(run: Any) -> Path:
    """Where wandb writes the run's records."""
    return Path(run.dir).parent / f"run-{run.id}.wandb"
