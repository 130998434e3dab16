"""Trainers of small runs, built in this process."""

from pathlib import Path
from typing import Any

import torch
from program import checked_jobs, tiny

from pe_lab.store.run_folder import RunFolder
from pe_lab.train.batches import evaluation_set
from pe_lab.train.plan import Plan, make_plan
from pe_lab.train.trainer import Trainer


def planned(*words: str) -> Plan:
    (config,) = checked_jobs(tiny(*words))
    return make_plan(config)


def trainer(tmp_path: Path, *words: str) -> Trainer:
    made = planned(*words)
    sets = {split: evaluation_set(made.task, split, 32) for split in made.splits}
    folder = RunFolder(tmp_path / "runs" / "seed0-00000000")
    folder.make()
    folder.metrics.touch()
    return Trainer(made, torch.device("cpu"), folder, sets, lambda: None)


def fit(trained: Trainer) -> list[dict[str, Any]]:
    """Train to the end; the rows that were logged."""
    rows: list[dict[str, Any]] = []
    trained.fit(rows.append, lambda step, loss: None)
    return rows
