"""The process and the machine of a run: set at its start, recorded, and compared when resumed."""

import ctypes
import json
import os
import platform
import random
import re
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from pe_lab.config.schema import Config
from pe_lab.core.console import logger
from pe_lab.pe.positions import Sequential
from pe_lab.store.run_folder import digest_of
from pe_lab.train.plan import Plan
from pe_lab.train.trainer import Trainer

FLOP_PER_THREAD = 1.5e8
"""The work of a training step for which one more thread pays. Measured on two idle cores of a Xeon
(AVX-512, torch 2.13): a second thread saves a fifth of a step from 0.3 GFLOP on, nothing below
0.15."""
SUMS = ("threads", "device", "deterministic")
"""Facts of a start that set the order of sums, and are not part of a run's identity."""


def prepare_process(config: Config) -> torch.device:
    """Apply the process-wide settings of a run and return its device: of several GPUs, one with
    the most free memory."""
    keep_freed_memory()
    # set_threads sets the final number, which depends on the model's size.
    torch.set_num_threads(1 if config.threads == "auto" else config.threads)
    if config.deterministic:
        # cuBLAS reads it once, when it is first used.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # The same as use_deterministic_algorithms, which would import torch's compiler for a second.
    torch.set_deterministic_debug_mode("warn" if config.deterministic else "default")
    # Filling fresh memory is for finding bugs; it costs time and changes no result.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # Far attention weights underflow, and arithmetic on denormals is slow.
    torch.set_flush_denormal(True)
    if config.device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", freest_gpu())
    # Its generator and its name are later requested without an index.
    torch.cuda.set_device(device)
    return device


def freest_gpu() -> int:
    """Return the GPU with the most free memory. Processes that begin together would all find the
    same one, so those within a gibibyte of it are drawn from."""
    gpus = range(torch.cuda.device_count())
    free = [torch.cuda.mem_get_info(gpu)[0] if len(gpus) > 1 else 0 for gpu in gpus]
    return random.SystemRandom().choice([gpu for gpu in gpus if free[gpu] > max(free) - 2**30])


def keep_freed_memory() -> None:
    """Have glibc keep freed blocks instead of giving them back to the kernel.

    Attention frees and takes large blocks at every step; fresh pages cost up to half of an
    eager step. Without glibc this does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        trim_threshold, mmap_max = -1, -4
        mallopt(mmap_max, 0)
        mallopt(trim_threshold, 2**31 - 1)


@cache
def read_processor() -> str | None:
    """Return the processor, such as AMD EPYC (family 25, model 17, stepping 1), as several share a
    name. None where it is not known."""
    with suppress(OSError, KeyError):
        first = Path("/proc/cpuinfo").read_text(errors="replace").partition("\n\n")[0]
        facts = dict(re.findall(r"^(.*\S)\s*: (.*)$", first, re.MULTILINE))
        parts = (
            f"{key.removeprefix('cpu ')} {facts[key]}"
            for key in ("cpu family", "model", "stepping")
        )
        return f"{facts['model name']} ({', '.join(parts)})"
    return platform.processor() or None


def describe_environment(
    threads: int,
    device: str,
    gpu_index: int | None = None,
) -> dict[str, Any]:
    """Describe the program, its libraries and the machine."""
    versions = {}
    for name in ("pe-lab", "torch", "numpy", "hydra-core", "wandb"):
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "command": sys.argv,
        **read_git_revision(),
        "python": platform.python_version(),
        "versions": versions,
        "platform": platform.platform(),
        "processor": read_processor(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": threads,
        "device": device,
        "gpu": torch.cuda.get_device_name(gpu_index) if device == "cuda" else None,
        "gpu_index": gpu_index,
        "host": socket.gethostname(),
    }


# The runs of a worker share the code that it has imported.
@cache
def read_git_revision() -> dict[str, Any]:
    """Return the commit of pe-lab's code, and whether tracked files differ from it; None outside of
    git."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty",
               "--abbrev=40", "--exclude=*"]  # fmt: skip
    found = ""
    with suppress(OSError, subprocess.TimeoutExpired):
        found = subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip()
    commit = found.removesuffix("-dirty")
    return {"git_revision": commit or None, "git_dirty": found != commit if found else None}


def digest_sources(config: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return group -> file -> digest of the classes of a configuration that are not pe_lab's."""
    found: dict[str, dict[str, str]] = {}
    for group in ("task", "pe", "positions", "model"):
        for section in (config[group], *config[group].get("parts", ())):
            module = str(section.get("_target_")).rpartition(".")[0]
            file = getattr(sys.modules.get(module), "__file__", None)
            if file and module.partition(".")[0] != "pe_lab":
                found.setdefault(group, {})[file] = digest_of(Path(file).read_bytes())
    return found


def set_threads(trainer: Trainer, *, swept: bool) -> None:
    """Set the number of PyTorch's threads.

    ``auto`` is one in a sweep, whose jobs share the cores, and on a GPU; else one for each
    ``FLOP_PER_THREAD``, at most one a core. A resumed run keeps the number of its last start:
    PyTorch's products differ with it in their last digits.
    """
    from joblib import cpu_count  # type: ignore[import-untyped]

    threads = trainer.plan.config.threads
    if threads == "auto" and (swept or trainer.device.type != "cpu"):
        threads = 1
    elif threads == "auto":
        weights = sum(p.numel() for p in trainer.model.parameters() if p.dim() >= 2)
        rows = trainer.config.batch_size // trainer.config.accumulate
        # Of a step's products with weights, forward and backward.
        flop = 6.0 * weights * rows * trainer.plan.dims.train_len
        previous = [start["threads"] for start in trainer.folder.starts()[-1:]]
        needed = previous[0] if previous else int(flop / FLOP_PER_THREAD)
        threads = min(max(1, needed), int(cpu_count(only_physical_cores=True)))
    torch.set_num_threads(int(threads))


def record_start(
    trainer: Trainer, overrides: list[str], lineage: list[dict[str, str]], sweep: str | None
) -> None:
    """Append this start to environment.json.

    Args:
        lineage: the runs whose weights this run began with, the oldest first.
        sweep: the name of the run's sweep; None: a run by itself.
    """
    folder, plan, device = trainer.folder, trainer.plan, trainer.device
    starts = folder.starts()
    facts = {
        "time": time.time(),
        "step": trainer.step,
        "sweep": sweep,
        "deterministic": plan.config.deterministic,
        **describe_environment(torch.get_num_threads(), device.type, device.index),
        "contents": plan.task.contents(),
        "null_keys": sorted(plan.null_values),
        "sources": (starts[0] if starts else {}).get("sources", digest_sources(plan.resolved)),
        "lineage": lineage or (starts[-1].get("lineage", []) if starts else []),
    }
    before = facts | (starts[-1] if starts and trainer.step else {})
    if others := [f"{k}={facts[k]} ({before[k]} before)" for k in SUMS if facts[k] != before[k]]:
        logger.warning(
            "resumed with %s: sums are rounded in another order, so the numbers are not those "
            "of a run with one choice throughout", ", ".join(others),
        )  # fmt: skip
    if not starts:
        folder.write("config.yaml", OmegaConf.to_yaml(OmegaConf.create(plan.resolved)))
        folder.write("overrides.yaml", OmegaConf.to_yaml(OmegaConf.create(overrides)))
    folder.write("environment.json", json.dumps([*starts, facts], indent=1) + "\n")


def warnings_about(plan: Plan) -> list[str]:
    """Return a sentence for each choice that would silently give the number of another
    experiment."""
    train, names, encodings = plan.config.train, plan.config.names, plan.encodings
    pe = names.get("pe", "")
    reads_positions = any(encoding.reads_positions for encoding in encodings)
    at_test_time = any(encoding.at_test_time for encoding in encodings)
    choices = (
        (
            train.warmup >= train.steps,
            f"train.warmup={train.warmup} does not end before the last step, train.steps="
            f"{train.steps}: the learning rate never reaches train.lr",
        ),
        (
            not reads_positions and not isinstance(plan.positions, Sequential),
            f"positions={names.get('positions')} has no effect on pe={pe}, which reads no "
            "positions",
        ),
        (
            at_test_time and plan.origin is None,
            f"pe={pe} is made for a trained rope at test time and trained from scratch here: to "
            f"measure it as intended, train pe=rope and run pe-lab eval run=.. pe={pe}",
        ),
    )
    return [sentence for chosen, sentence in choices if chosen]
