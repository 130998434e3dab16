"""How a run was made: recorded at every start, compared when it is resumed or found finished."""

import hashlib
import logging
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from pe_lab.common.errors import PeLabError, cannot_write
from pe_lab.common.files import replace_file
from pe_lab.common.trust import classes
from pe_lab.config.schema import Config, plain
from pe_lab.experiment.machine import environment
from pe_lab.store.run_folder import RunFolder
from pe_lab.store.run_id import ROUNDING
from pe_lab.training.kernels import backends
from pe_lab.training.trainer import Trainer

logger = logging.getLogger("pe_lab")

FACTS = ("git_revision", "versions", "gpu", "cpu_capability", "attention", *ROUNDING)
"""The recorded facts on which the last digits depend."""


def record_start(trainer: Trainer, overrides: list[str]) -> None:
    """Append this start to environment.json, and warn of what differs from the last one."""
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
        path = folder.path / f"git-{len(starts) + 1}.diff"
        try:
            replace_file(path, diff)
        except OSError as error:
            raise cannot_write(path, error) from None
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
        f"{key}={_word(made[key])} (requested: {key}={_word(requested[key])})"
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
    for name in classes(plain(resolved)):
        file = getattr(sys.modules.get(name.rpartition(".")[0]), "__file__", None)
        if file and not name.startswith("pe_lab."):
            with suppress(OSError):
                found[name] = hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]
    return found


def _settings(config: Config) -> dict[str, Any]:
    """The values of ``ROUNDING`` that a run would have here; none of ``threads=auto``."""
    gpu = config.device == "cuda" or (config.device == "auto" and torch.cuda.is_available())
    settings = {
        "device": "cuda" if gpu else "cpu",
        "deterministic": config.deterministic,
        "eval.batch_tokens": config.eval.batch_tokens,
    }
    return settings if config.threads == "auto" else {**settings, "threads": config.threads}


def _differing(
    names: tuple[str, ...], before: Mapping[str, Any], now: Mapping[str, Any]
) -> list[str]:
    return [name for name in names if name in before and name in now and before[name] != now[name]]


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
