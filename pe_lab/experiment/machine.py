"""The machine of a run: process-wide settings, and what is recorded of the environment."""

import ctypes
import os
import platform
import socket
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from pe_lab.config.schema import Config
from pe_lab.training.trainer import Trainer

FLOP_PER_THREAD = 1.5e8
"""Of a training step. Measured with one and two threads on two idle cores of a Xeon (AVX-512,
torch 2.13), time of a step with one over that with two: 0.93 to 1.06 at 0.04 to 0.15 GFLOP, 1.09 to
1.20 at 0.3, 1.28 to 1.64 at 1 to 2, 1.6 to 1.9 above. More than two were not measured."""


def prepare(config: Config, number: int = 0) -> torch.device:
    """Apply the process-wide settings of a run and return its device.

    Args:
        number: the job's number in its sweep; jobs are assigned to the GPUs in turn.
    """
    keep_freed_memory()
    # set_threads sets the final number, which depends on the model's size.
    torch.set_num_threads(1 if config.threads == "auto" else config.threads)
    if config.deterministic:
        # cuBLAS reads it once, when it is first used.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # The same as use_deterministic_algorithms, which would import torch's compiler and take a
    # second.
    torch.set_deterministic_debug_mode("warn" if config.deterministic else "default")
    # Filling fresh memory is for finding bugs; it costs time and changes no result.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # Far attention weights underflow, and arithmetic on denormals is slow.
    torch.set_flush_denormal(True)
    gpu = config.device == "cuda" or (config.device == "auto" and torch.cuda.is_available())
    if not gpu:
        return torch.device("cpu")
    device = torch.device("cuda", number % torch.cuda.device_count())
    # Its generator and its name are later requested without an index.
    torch.cuda.set_device(device)
    return device


def keep_freed_memory() -> None:
    """Have glibc keep freed blocks instead of giving them back to the kernel.

    Attention frees and takes large blocks at every step; fresh pages cost up to half of an
    eager step (`make bench` measures both). Without glibc this does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        trim_threshold, mmap_max = -1, -4
        mallopt(mmap_max, 0)
        mallopt(trim_threshold, 2**31 - 1)


def processor() -> str | None:
    """The model name of the processor, such as AMD EPYC 9654; None where the system has none."""
    with suppress(OSError, subprocess.SubprocessError):
        if sys.platform == "darwin":
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            done = subprocess.run(command, capture_output=True, timeout=10)
            return done.stdout.decode(errors="replace").strip() or None
        with Path("/proc/cpuinfo").open(errors="replace") as lines:
            names = (line.partition(":")[2] for line in lines if line.startswith("model name"))
            return next(names, "").strip() or None
    return None


def environment(
    threads: int,
    device: str,
    gpu_index: int | None = None,
    attention: dict[str, str] | None = None,
) -> tuple[dict[str, Any], bytes]:
    """The environment of a run, and the git diff of uncommitted changes, empty if there are none.

    Args:
        attention: the backend of each kind of attention (``kernels.apply.backends``).
    """
    source = Path(__file__).resolve().parents[2]

    def git_bytes(*words: str) -> bytes:
        try:
            command = ["git", "-C", str(source), *words]
            return subprocess.run(command, capture_output=True, timeout=10).stdout
        except (OSError, subprocess.TimeoutExpired):
            return b""

    def git(*words: str) -> str:
        return git_bytes(*words).decode(errors="replace")

    ours = git("ls-files", "pe_lab/store/run_folder.py").strip() != ""
    versions: dict[str, str | None] = {}
    for name in ("pe-lab", "torch", "numpy", "hydra-core", "wandb"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    gpu = torch.cuda.get_device_name(gpu_index) if device == "cuda" else None
    facts = {
        "command": sys.argv,
        "git_revision": git("rev-parse", "HEAD").strip() or None if ours else None,
        "git_untracked": git("ls-files", "--others", "--exclude-standard").split() if ours else [],
        "python": platform.python_version(),
        "versions": versions,
        "platform": platform.platform(),
        "processor": processor(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": threads,
        "device": device,
        "gpu": gpu,
        "gpu_index": gpu_index,
        "attention": attention,
        "host": socket.gethostname(),
    }
    return facts, git_bytes("diff", "HEAD") if ours else b""


def set_threads(trainer: Trainer, *, swept: bool) -> None:
    """Set the number of PyTorch's threads.

    ``auto`` is one in a sweep, whose jobs share the cores, and on a GPU; else one for each
    ``FLOP_PER_THREAD``, at most one a core that this process may use. A resumed run keeps the
    number of its last start: PyTorch's products differ with it in their last digits.

    Args:
        swept: whether the run is a job of a sweep.
    """
    threads = trainer.plan.config.threads
    if threads == "auto":
        threads = 1 if swept or trainer.device.type != "cpu" else _alone(trainer)
    torch.set_num_threads(threads)


def _alone(trainer: Trainer) -> int:
    from joblib import cpu_count  # type: ignore[import-untyped]

    cores = int(cpu_count(only_physical_cores=True))
    starts = trainer.folder.starts()
    previous = starts[-1].get("threads") if starts else None
    needed = previous or int(flop(trainer) / FLOP_PER_THREAD)
    return min(max(1, needed), cores)


def flop(trainer: Trainer) -> float:
    """Roughly the floating-point operations of a training step's products with weights."""
    weights = sum(p.numel() for p in trainer.model.parameters() if p.dim() >= 2)
    cfg = trainer.plan.config.train
    tokens = cfg.batch_size // cfg.accumulate * trainer.plan.dims.train_len
    return 6.0 * weights * tokens
