"""How a run was made: recorded at every start, compared when it is resumed or found finished."""

import ctypes
import hashlib
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from pe_lab.config.schema import Config, plain
from pe_lab.core.config_dir import classes
from pe_lab.core.console import logger
from pe_lab.core.errors import PeLabError
from pe_lab.core.validation import as_yaml, at
from pe_lab.pe.positions import Sequential
from pe_lab.store.run_folder import RunFolder
from pe_lab.store.run_id import ONLY_EARLY_STOPPING, ROUNDING
from pe_lab.train.kernels import backends
from pe_lab.train.plan import Plan
from pe_lab.train.trainer import Trainer

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
    if not _on_gpu(config):
        return torch.device("cpu")
    device = torch.device("cuda", number % torch.cuda.device_count())
    # Its generator and its name are later requested without an index.
    torch.cuda.set_device(device)
    return device


def _on_gpu(config: Config) -> bool:
    return config.device == "cuda" or (config.device == "auto" and torch.cuda.is_available())


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

    def git(*words: str) -> bytes:
        try:
            command = ["git", "-C", str(source), *words]
            return subprocess.run(command, capture_output=True, timeout=10).stdout
        except (OSError, subprocess.TimeoutExpired):
            return b""

    ours = git("ls-files", "pe_lab/store/run_folder.py").strip() != b""
    untracked = git("ls-files", "--others", "--exclude-standard").decode(errors="replace").split()
    versions: dict[str, str | None] = {}
    for name in ("pe-lab", "torch", "numpy", "hydra-core", "wandb"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    gpu = torch.cuda.get_device_name(gpu_index) if device == "cuda" else None
    facts = {
        "command": sys.argv,
        "git_revision": git("rev-parse", "HEAD").decode().strip() or None if ours else None,
        "git_untracked": untracked if ours else [],
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
    return facts, git("diff", "HEAD") if ours else b""


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


FACTS = ("git_revision", "versions", "gpu", "cpu_capability", "attention", *ROUNDING)
"""The recorded facts on which the last digits depend."""


def record_start(trainer: Trainer, overrides: list[str], lineage: list[dict[str, str]]) -> None:
    """Append this start to environment.json, and warn of what differs from the last one.

    Args:
        lineage: of a run that begins with the weights of another one (``experiment.begin``); empty
            when it is resumed.
    """
    folder, config, device = trainer.folder, trainer.plan.config, trainer.device
    attention = backends(trainer.model)
    facts, diff = environment(torch.get_num_threads(), device.type, device.index, attention)
    facts = {"time": time.time()} | _settings(config) | facts
    if code := _code(trainer.plan.resolved):
        facts["code"] = code
    if contents := trainer.plan.task.contents():
        facts["contents"] = contents
    facts["null_keys"] = sorted(trainer.plan.null_values)
    starts = folder.starts()
    if lineage := lineage or (starts[-1].get("lineage", []) if starts else []):
        facts["lineage"] = lineage
    if not starts:
        resolved = plain(trainer.plan.resolved)
        folder.write_text("config.yaml", OmegaConf.to_yaml(OmegaConf.create(resolved)))
        folder.write_text("overrides.yaml", OmegaConf.to_yaml(OmegaConf.create(overrides)))
    elif changed := _differing(FACTS, starts[-1], facts):
        logger.warning(
            "%s changed since this run began: its numbers may differ in the last digits",
            ", ".join(changed),
        )
    if changed_classes := changed_code(folder, trainer.plan.resolved):
        logger.warning(
            "the file of %s changed since this run began: its numbers are those of neither; "
            "force=true begins it again",
            changed_classes,
        )
    if diff:
        # Bytes: the changed files may be in any encoding.
        folder.write(f"git-{len(starts) + 1}.diff", diff)
    folder.write_json("environment.json", [*starts, facts])


def made_otherwise(folder: RunFolder, config: Config) -> str:
    """The settings in which a finished run differs from a configuration of the same identity, like
    ``threads=2 (requested: threads=1)``; empty if there are none."""
    starts: list[Any] = []
    # ``pe-lab verify`` says what is wrong with it.
    with suppress(PeLabError):
        starts += folder.starts()
    made, requested = starts[-1] if starts else {}, _settings(config)
    return ", ".join(
        f"{key}={as_yaml(made[key])} (requested: {key}={as_yaml(requested[key])})"
        for key in _differing(ROUNDING, made, requested)
    )


def changed_code(folder: RunFolder, resolved: Config) -> str:
    """The classes outside of pe_lab whose files have changed since a start of a run, like
    ``mine.Mine``; empty if there are none. The code is not part of a run's identity."""
    if not (now := _code(resolved)):
        return ""
    starts: list[Any] = []
    with suppress(PeLabError):
        starts += folder.starts()
    recorded = [item for start in starts for item in start.get("code", {}).items()]
    changed = {name for name, digest in recorded if now.get(name, digest) != digest}
    return ", ".join(sorted(changed))


def _code(resolved: Config) -> dict[str, str]:
    """Class of a configuration that is not of pe_lab -> the start of the SHA-256 of its file."""
    found = {}
    for name in (one.replace(":", ".") for one in classes(plain(resolved))):
        file = getattr(sys.modules.get(name.rpartition(".")[0]), "__file__", None)
        if file and not name.startswith("pe_lab."):
            with suppress(OSError):
                found[name] = hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]
    return found


def _settings(config: Config) -> dict[str, Any]:
    """The values of ``ROUNDING`` that a run would have here; none of ``threads=auto``."""
    settings = {
        "device": "cuda" if _on_gpu(config) else "cpu",
        "deterministic": config.deterministic,
        "eval.batch_tokens": config.eval.batch_tokens,
    }
    return settings if config.threads == "auto" else {**settings, "threads": config.threads}


def _differing(
    names: tuple[str, ...], before: Mapping[str, Any], now: Mapping[str, Any]
) -> list[str]:
    return [name for name in names if name in before and name in now and before[name] != now[name]]


OF_THE_LOG = ("train.log_every", "train.checkpoint_every")
"""Keys that change what a run writes, but none of its final numbers."""


def without_effect(plan: Plan, typed: Sequence[str]) -> list[str]:
    """One sentence for each setting that has no effect in this run.

    Args:
        typed: the overrides as the user wrote them.
    """
    config, train, found = plan.config, plan.config.train, []
    pe = config.names.get("pe", "")
    if train.warmup >= train.steps:
        found.append(
            f"train.warmup={train.warmup} does not end before the last step, train.steps="
            f"{train.steps}: the learning rate never reaches train.lr"
        )
    if train.stop_below is None:
        found += [
            f"{word} has no effect with train.stop_below=null: give train.stop_below=ERROR to stop "
            "early, or leave it out"
            for word in typed
            if word.lstrip("+").startswith("train.patience=")
        ]
    elif config.eval.every >= train.steps:
        found.append(
            f"train.stop_below={train.stop_below:g} has no effect with eval.every="
            f"{config.eval.every}: nothing is measured before the last step, train.steps="
            f"{train.steps}; lower eval.every"
        )
    if not plan.reads_positions and not isinstance(plan.positions, Sequential):
        found.append(
            f"positions={config.names.get('positions')} has no effect on pe={pe}, which reads no "
            "positions"
        )
    if plan.at_test_time and plan.null_values.get("pe.k") == 1:
        found.append(
            f"pe.k=null of pe={pe} is 1 here, which stretches nothing: no position is beyond those "
            "of training; set pe.k above 1"
        )
    elif plan.at_test_time and plan.origin is None:
        found.append(
            f"pe={pe} is made for a trained rope at test time and trained from scratch here: to "
            f"measure it as intended, train pe=rope and run pe-lab eval run=.. pe={pe}"
        )
    return found


def unchanged(recorded: Mapping[str, Any], requested: Config) -> str:
    """The requested settings that a finished run ignores, as part of a sentence.

    Args:
        recorded: the configuration of the finished run.

    Returns:
        ``made with train.log_every=50, so train.log_every=10 has no effect``; empty if there is
        none.
    """
    keys = [*OF_THE_LOG]
    if requested.train.stop_below is None:
        keys += sorted(ONLY_EARLY_STOPPING)
    now = plain(requested)
    pairs = [(key, at(recorded, key.split(".")), at(now, key.split("."))) for key in keys]
    pairs = [(key, old, new) for key, old, new in pairs if old is not None and old != new]
    if not pairs:
        return ""
    made, asked = (
        ", ".join(f"{pair[0]}={as_yaml(pair[which])}" for pair in pairs) for which in (1, 2)
    )
    return f"made with {made}, so {asked} {'has' if len(pairs) == 1 else 'have'} no effect"
