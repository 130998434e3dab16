"""The command line as Python functions, for scripts and notebooks: ``from pe_lab import run``.

>>> one = run("task=flipflop", "pe=cope", steps=200)
>>> one.errors                     # a polars table, a row for each split
>>> runs = sweep("task=flipflop", pe=["rope", "cope"], seed=range(3))
>>> runs.group_by("pe").agg(pl.mean("ood/error"))
>>> load("flipflop/cope/seed0").model

Words are those of the command line. Keywords are keys: ``seed=1``, ``steps=200`` (a key of
``train``), ``**{"pe.npos": 16}``. Folders, identities and checks are the same: a finished run is
loaded, an unfinished one resumed. Errors are raised as ``pe_lab.core.errors.PeLabError``.
Logging, Hydra, PyTorch's threads and signal handlers are restored afterwards.
"""

import json
import logging
import os
import re
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import torch

from pe_lab.cli.arguments import find_run, split_finished
from pe_lab.cli.train import planned
from pe_lab.cli.why import diagnose_runs
from pe_lab.config.compose import CommandLine, configure_log
from pe_lab.config.schema import TRAIN_KEYS
from pe_lab.core.config_dir import use_config_dir
from pe_lab.core.errors import Interrupted, UsageError
from pe_lab.experiment import load_run
from pe_lab.experiment import run as experiment
from pe_lab.explain.verdict import build_frame
from pe_lab.models.base import Model
from pe_lab.results.table import by_split, curves, runs_of
from pe_lab.store.run_folder import RunFolder
from pe_lab.sweeps.sweep import multirun

_at_work = threading.Lock()
_PLAIN = re.compile(r"[A-Za-z_./][\w./+-]*")
_NOT_WORDS = {"true", "false", "null", "nan", "inf", "yes", "no", "on", "off"}


@dataclass(frozen=True)
class Run:
    """A finished run.

    Args:
        path: its folder.
        summary: what its summary.json holds.
    """

    path: Path
    summary: dict[str, Any] = field(repr=False)

    @property
    def config(self) -> dict[str, Any]:
        """Every key, resolved."""
        return self.summary["config"]

    @property
    def errors(self) -> pl.DataFrame:
        """A row for each split: ``error``, its interval, ``loss``, ``guess``, .."""
        of_the_run = ("path", "task", "pe", "seed", "setting", "place")
        return by_split(runs_of([self.path])).drop(of_the_run)

    @property
    def metrics(self) -> pl.DataFrame:
        """A row for each logged step: ``step``, ``train/loss``, ``in_domain/error``, .."""
        return curves(runs_of([self.path])).drop("path", "pe", "seed", "setting")

    @property
    def model(self) -> Model:
        """The trained model on the CPU, in evaluation mode, loaded anew each time."""
        return self.loaded().model

    def loaded(self) -> load_run.LoadedRun:
        """The model with its plan, and the sequences that the run was measured on."""
        return load_run.load(self.path)


def run(*words: str, config_dir: str | Path | None = None, **keys: Any) -> Run:
    """Train a run, or what is left of it, and return it; ``pe-lab WORDS``.

    Args:
        words: as on the command line: ``"task=flipflop"``.
        config_dir: a folder with your yamls and classes (``--config-dir``).
        keys: keys and their values; keys of ``train`` need no prefix.

    Raises:
        UsageError: the request is wrong, or another thread is at one; nothing was done.
        PeLabError: the run failed; its folder says so.
        KeyboardInterrupt: it was interrupted; its checkpoint is written, the same call continues.
    """
    with _restored():
        line = CommandLine.parse(_words(words, config_dir, keys, sweep=False))
        if line.multirun or line.shows:
            raise UsageError("run takes keys and no flags: give sweep(..) for several runs")
        (cfg,), (plan,) = planned(line)
        configure_log(cfg)
        summary = experiment.run(plan, list(cfg.hydra.overrides.task))
        return Run(experiment.find_folder(plan).path.absolute(), summary)


def sweep(*words: str, config_dir: str | Path | None = None, **keys: Any) -> pl.DataFrame:
    """Train every combination, and return the table that ``results.table.read_runs`` has of them;
    ``pe-lab -m WORDS``. Finished runs are not run again.

    Args:
        words: as on the command line: ``"pe=rope,cope"``, ``"hydra/launcher=joblib"``.
        config_dir: as of ``run``.
        keys: keys and their values; a list, a tuple or a range is several values.

    Raises:
        UsageError: the request is wrong, or another thread is at one; nothing was done.
        PeLabError: not all of it is finished; the same call runs only what is missing.
        KeyboardInterrupt: it was interrupted; the same call continues.
    """
    with _restored():
        line = CommandLine.parse(["-m", *_words(words, config_dir, keys, sweep=True)])
        if line.shows:
            raise UsageError("sweep takes keys and no flags: pe-lab --help has those that show")
        jobs = multirun(line, tables=False)
        return runs_of(dict.fromkeys(job.folder.path for job in jobs))


def load(name: str | Path, runs_dir: str | Path = "runs") -> Run:
    """A finished run.

    Args:
        name: its folder, or a part of its name or hash below ``runs_dir``.

    Raises:
        UsageError: no run or several match, or the run is not finished.
    """
    path = find_run(str(name), Path(runs_dir))
    return Run(path.absolute(), load_run.read_summary(RunFolder(path)))


def why(
    run: str | Path,
    split: str | None = None,
    *,
    runs_dir: str | Path = "runs",
    config_dir: str | Path | None = None,
    force: bool = False,
) -> pl.DataFrame:
    """The diagnosis of finished runs, a row for each number; ``pe-lab why run=..``.

    Args:
        run: a folder, or a part of its path below ``runs_dir``, with * and ?.
        split: None: the one with the highest error.
        force: measure again what a run's folder holds, and what has not learned or generalises.

    Returns:
        ``path``, ``task``, ``pe``, ``seed``, ``split``, ``name``, ``kind``, ``value``,
        ``in_domain``, ``restored``; see ``explain.record.Row``.

    Raises:
        PeLabError: there is no such run, or it cannot be diagnosed.
    """
    paths, _ = split_finished(str(run), Path(runs_dir))
    if config_dir is not None:
        use_config_dir(str(config_dir))
    with _restored():
        diagnoses, errors = diagnose_runs(paths, split, force=force)
        if errors:
            raise errors[0]
        return build_frame(diagnoses)


@contextmanager
def _restored() -> Iterator[None]:
    """Restore the process's state afterwards; one caller at a time.

    Raises:
        UsageError: another thread is inside.
        KeyboardInterrupt: Ctrl-C came; a notebook shows it as it shows others.
    """
    if not _at_work.acquire(blocking=False):
        raise UsageError(
            "another thread is training with run or sweep, and Hydra's and PyTorch's settings are "
            "the process's: wait for it, use processes, or give all runs to one sweep"
        )
    with ExitStack() as stack:
        stack.callback(_at_work.release)
        stack.callback(os.environ.update, {**os.environ})
        stack.callback(os.environ.clear)
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        stack.callback(torch.set_deterministic_debug_mode, torch.get_deterministic_debug_mode())
        # It cannot be read, and this is the default.
        stack.callback(torch.set_flush_denormal, False)
        for logger in (logging.getLogger(), logging.getLogger("pe_lab")):
            stack.callback(logger.setLevel, logger.level)
            stack.callback(setattr, logger, "handlers", list(logger.handlers))
        deterministic, name = torch.utils.deterministic, "fill_uninitialized_memory"
        stack.callback(setattr, deterministic, name, getattr(deterministic, name))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        try:
            yield
        except Interrupted as stop:
            if stop.signum == signal.SIGINT:
                raise KeyboardInterrupt("the same call continues") from None
            raise


def _words(
    words: Sequence[str], config_dir: str | Path | None, keys: Mapping[str, Any], sweep: bool
) -> list[str]:
    """The words of the command line; a list, a tuple or a range of a sweep is several values."""
    chosen = [] if config_dir is None else ["--config-dir", str(config_dir)]
    for key, value in keys.items():
        several = value if sweep and isinstance(value, (list, tuple, range)) else [value]
        name = f"train.{key}" if key in TRAIN_KEYS else key
        chosen.append(f"{name}={','.join(_write(one) for one in several)}")
    return [*chosen, *words]


def _write(value: Any) -> str:
    """A value as Hydra reads it.

    Raises:
        UsageError: it is no value of a key.
    """
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_write(k)}: {_write(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple, range)):
        return "[" + ", ".join(map(_write, value)) + "]"
    if isinstance(value, (str, Path)):
        text = str(value)
        is_word = _PLAIN.fullmatch(text) and text.lower() not in _NOT_WORDS
        return text if is_word else json.dumps(text, ensure_ascii=False)
    try:
        # Numbers of numpy and torch have item().
        return json.dumps(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError):
        raise UsageError(f"a {type(value).__name__} cannot be the value of a key") from None
