"""The starts of a run: what was asked, with what it is made, what differs from the start before."""

import logging
from contextlib import suppress

import torch
from omegaconf import OmegaConf

from pe_lab.config.schema import plain
from pe_lab.experiment.machine import environment
from pe_lab.training.trainer import Trainer

logger = logging.getLogger("pe_lab")

EXACT = (
    "git_revision",
    "versions",
    "threads",
    "device",
    "gpu",
    "cpu_capability",
    "train.fast",
    "attention",
)
"""The facts on which the last digits depend."""


def record_start(trainer: Trainer, overrides: list[str]) -> None:
    """Append this start to environment.json, and warn of what differs from the last one."""
    folder, config, device = trainer.folder, trainer.plan.config, trainer.device
    kernels = None
    # What an encoding raises here it raises in the first step too, which tells it.
    with suppress(Exception):
        kernels = trainer.model.kernels()
    facts, diff = environment(torch.get_num_threads(), device.type, device.index, kernels)
    # config.yaml is the first start's, and this key does not make another run.
    facts["train.fast"] = config.train.fast
    starts = folder.read_json("environment.json") or []
    if not starts:
        resolved = plain(config)
        folder.write_text("config.yaml", OmegaConf.to_yaml(OmegaConf.create(resolved)))
        folder.write_text("overrides.yaml", OmegaConf.to_yaml(OmegaConf.create(overrides)))
    else:
        # A fact that the last start did not record is no difference.
        last = {name: starts[-1][name] for name in EXACT if name in starts[-1]}
        changed = [name for name, value in last.items() if value != facts.get(name)]
        if changed:
            logger.warning(
                "%s changed since this run was begun: its numbers may differ in the last digits",
                ", ".join(changed),
            )
    if diff:
        folder.write_text(f"git-{len(starts) + 1}.diff", diff)
    folder.write_json("environment.json", [*starts, facts])
