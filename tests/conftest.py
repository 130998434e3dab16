"""Fixtures."""

import gc
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from program import Here, Outcome, in_this_process

from pe_lab.cli.main import main
from pe_lab.config.compose import Composer
from pe_lab.kernels.build import cache_folder

# Test workers share the cores, and waiting threads spin.
torch.set_num_threads(1)

# Without a GPU torch would keep the stack of each call for one that may come: milliseconds each.
if not torch.cuda.is_available():
    torch.manual_seed = torch.default_generator.manual_seed

# Few of the many objects that configurations are made of hold each other.
gc.set_threshold(20_000)

# On busy cores drawing examples is slow, which says nothing of the code.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

# Tests started by `nohup` or in the background ignore these signals; programs would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Undo what the previous test has set; hypothesis draws subnormal numbers."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(False)


@pytest.fixture(autouse=True, scope="session")
def quick() -> Iterator[None]:
    """Without the two that short runs spend most of their time on: waiting for the disk, and
    composing the same words again, unless of a folder that a test may change (``--config-dir``).
    """
    compose, known = Composer.compose, dict[tuple[str, ...], Any]()

    def composed(composer: Composer, words: Iterable[str]) -> Any:
        words = tuple(words)
        if words not in known or composer.config_dir:
            known[words] = compose(composer, words)
        cfg = deepcopy(known[words])
        cfg.hydra.runtime.cwd = str(Path.cwd())
        return cfg

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Composer, "compose", composed)
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture
def here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Here]:
    """``here(*words)``: the command line in this process, from an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["pe-lab"])
    loggers = [logging.getLogger(), logging.getLogger("pe_lab")]
    before = [(logger.level, list(logger.handlers)) for logger in loggers]

    def run(*words: str) -> Outcome:
        capsys.readouterr()
        status = main(in_this_process(words))
        out, err = capsys.readouterr()
        return Outcome(status, out, err)

    yield run
    # Hydra configures logging for the whole process.
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = handlers


@pytest.fixture
def float64() -> Iterator[None]:
    """Double precision, so that a difference is one of formulas, not of rounding."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """``disk(size)``: a folder on a disk of that size, which only root can make."""
    mounted = tmp_path / "disk"

    def mount(size: str) -> Path:
        mounted.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(mounted)]
        try:
            subprocess.run(words, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("only root can mount a small disk")
        return mounted

    yield mount
    if mounted.is_mount():
        subprocess.run(["umount", "--lazy", str(mounted)], check=True)


@pytest.fixture
def no_wandb_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home and working folder (returned), and no wandb variables in the environment."""
    for key in [key for key in os.environ if key.startswith("WANDB_")]:
        # The service of this process: without the variable wandb would start another each time.
        if key != "WANDB_SERVICE":
            monkeypatch.delenv(key)
    for folder in ("home", "cwd"):
        (tmp_path / folder).mkdir()
    # Not another compilation of the kernels in every process.
    monkeypatch.setenv("PE_LAB_CACHE", str(cache_folder()))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "cwd")
    return tmp_path / "cwd"
