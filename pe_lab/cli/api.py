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
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import polars as pl
import torch
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import configure_log

from pe_lab.cli.run_argument import find_run, split_finished
from pe_lab.cli.train import planned
from pe_lab.cli.why import diagnosed
from pe_lab.config.compose import CommandLine
from pe_lab.config.schema import TRAIN_KEYS
from pe_lab.core.errors import Interrupted, UsageError
from pe_lab.experiment import load_run
from pe_lab.experiment import run as experiment
from pe_lab.explain.cells import frame_of
from pe_lab.models.base import Model
from pe_lab.results.table import by_split, curves, runs_of
from pe_lab.store.run_folder import RunFolder
from pe_lab.sweeps.sweep import multirun

_at_work = threading.Lock()
_PLAIN = re.compile(r"[A-Za-z_./][\w./+-]*")
_WORDS = {"true", "false", "null", "nan", "inf", "yes", "no", "on", "off"}


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
        config: dict[str, Any] = self.summary["config"]
        return config

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
    chosen = [*words, *(f"{_key(key)}={_text(key, value)}" for key, value in keys.items())]
    with _alone():
        line = CommandLine.parse([*_folder(config_dir), *chosen])
        if line.multirun or line.shows:
            raise UsageError("run takes keys and no flags: give sweep(..) for several runs")
        (cfg,), (plan,) = planned(line)
        configure_log(cfg.hydra.job_logging, cfg.hydra.verbose)
        summary = experiment.run(plan, list(cfg.hydra.overrides.task))
        return Run(experiment.folder_of(plan).path.absolute(), summary)


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
    chosen = [*words, *(f"{_key(key)}={_several(key, value)}" for key, value in keys.items())]
    with _alone():
        line = CommandLine.parse(["-m", *_folder(config_dir), *chosen])
        if line.shows:
            raise UsageError("sweep takes keys and no flags: pe-lab --help has those that show")
        jobs, plans = planned(line)
        multirun(line, jobs, plans, tables=False)
        return runs_of(dict.fromkeys(experiment.folder_of(plan).path for plan in plans))


def load(name: str | Path, runs_dir: str | Path = "runs") -> Run:
    """A finished run.

    Args:
        name: its folder, or a part of its name or hash below ``runs_dir``.

    Raises:
        UsageError: no run or several match, or the run is not finished.
    """
    path = find_run(str(name), Path(runs_dir))
    return Run(path.absolute(), load_run.summary_of(RunFolder(path)))


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
        force: measure again what a run's folder holds.

    Returns:
        ``path``, ``task``, ``pe``, ``seed``, ``split``, ``name``, ``kind``, ``value``,
        ``in_domain``, ``restored``; see ``diagnosis.record.Row``.

    Raises:
        PeLabError: there is no such run, or it cannot be diagnosed.
    """
    paths, _ = split_finished(str(run), Path(runs_dir))
    folder = None if config_dir is None else str(config_dir)
    with _alone():
        return frame_of(diagnosed(paths, split, force=force, config_dir=folder))


@contextmanager
def _alone() -> Iterator[None]:
    """The state of the process as before, afterwards; one caller at a time.

    Raises:
        UsageError: another thread is inside.
        KeyboardInterrupt: Ctrl-C came; a notebook shows it as it shows others.
    """
    if not _at_work.acquire(blocking=False):
        raise UsageError(
            "another thread is training with run or sweep, and Hydra's and PyTorch's settings are "
            "the process's: wait for it, use processes, or give all runs to one sweep"
        )
    loggers = [logging.getLogger(), logging.getLogger("pe_lab")]
    before = [(one, one.level, list(one.handlers)) for one in loggers]
    threads, mode = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    hydra, config, place = GlobalHydra.instance().hydra, HydraConfig.instance().cfg, Path.cwd()
    variables = {key: os.environ.get(key) for key in ("PE_LAB_SWEEP", "HYDRA_FULL_ERROR")}
    try:
        GlobalHydra.instance().clear()
        with torch.random.fork_rng(devices=[]):
            yield
    except Interrupted as stop:
        if stop.signum == 2:
            raise KeyboardInterrupt("the same call continues") from None
        raise
    finally:
        GlobalHydra.instance().hydra, HydraConfig.instance().cfg = hydra, config
        os.chdir(place)
        for key, value in variables.items():
            os.environ.pop(key, None)
            if value is not None:
                os.environ[key] = value
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(mode)
        # It cannot be read, and this is the default.
        torch.set_flush_denormal(False)
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
        for one, level, handlers in before:
            one.setLevel(level)
            one.handlers[:] = handlers
        _at_work.release()


def _folder(config_dir: str | Path | None) -> list[str]:
    return [] if config_dir is None else ["--config-dir", str(config_dir)]


def _key(key: str) -> str:
    return f"train.{key}" if key in TRAIN_KEYS else key


def _several(key: str, value: Any) -> str:
    """Values of a sweep, as on the command line."""
    if isinstance(value, (list, tuple, range)):
        return ",".join(_text(key, one) for one in value)
    return _text(key, value)


def _text(key: str, value: Any) -> str:
    """A value as Hydra reads it."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, (Integral, Real)):
        return repr(int(value) if isinstance(value, Integral) else float(value))
    if isinstance(value, (str, Path)):
        text = str(value)
        if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
            return text
        return json.dumps(text, ensure_ascii=False)
    if isinstance(value, dict):
        pairs = (f"{_text(key, k)}: {_text(key, v)}" for k, v in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(_text(key, one) for one in value) + "]"
    raise UsageError(
        f"{key}: a {type(value).__name__} cannot be the value of a key: give a number, text, "
        "true or false, null, a list or a mapping"
    )
