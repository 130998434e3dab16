"""Trainers of small runs, built in this process."""

from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from program import tiny
from torch import nn

from pe_lab.cli.train import arguments
from pe_lab.config.check import check
from pe_lab.config.compose import compose
from pe_lab.config.schema import register_resolvers
from pe_lab.store.run_folder import RunFolder
from pe_lab.training.batches import evaluation_set
from pe_lab.training.plan import Plan, plan
from pe_lab.training.trainer import Trainer


def resolved(*words: str) -> dict[str, Any]:
    """The configuration that these words make, as the run's identity is taken of it."""
    register_resolvers()
    with pytest.MonkeyPatch.context() as patch:
        # Hydra reads the program's name.
        patch.setattr("sys.argv", ["pe-lab"])
        (cfg,) = compose(arguments(tiny(*words)))
    content = OmegaConf.to_container(cfg, resolve=False)
    del content["hydra"]
    return OmegaConf.to_container(OmegaConf.create(content), resolve=True)


def planned(*words: str) -> Plan:
    return plan(check(resolved(*words), {"task": "flipflop", "pe": "none"}))


def trainer(tmp_path: Path, *words: str) -> Trainer:
    made = planned(*words)
    sets = {split: evaluation_set(made.task, split, 32) for split in made.splits}
    folder = RunFolder(tmp_path / "runs" / "seed0-00000000")
    folder.path.mkdir(parents=True, exist_ok=True)
    return Trainer(made, torch.device("cpu"), folder, sets, lambda: None)


def grouped(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Weight decay on matrices only."""
    return [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": decay},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]


class Rows(list[dict[str, Any]]):
    """A log of metrics in memory."""

    mark = 0, ""

    def write(self, row: dict[str, Any]) -> None:
        self.append(row)

    def sync(self) -> None:
        pass


def fit(trained: Trainer) -> list[dict[str, Any]]:
    """Train to the end; the rows that were logged."""
    log = Rows()
    trained.fit(log, lambda step, loss: None)
    return log
