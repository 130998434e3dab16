"""Small suites under test."""

from pathlib import Path
from typing import Any

import yaml
from made import config

from pe_lab.cli.train import checked_jobs
from pe_lab.config.schema import plain
from pe_lab.results.suite import task_digest

MODEL = ["model=transformer", "model.n_layers=1", "model.n_heads=2", "model.d_model=16"]
COMMON = ["train.warmup=2", "eval.sequences=16", "eval.quick_sequences=8"]
TASK = ["task=flipflop", "task.length=16", "train.steps=3", "train.batch_size=8"]
SPLITS = {"sparse": 0.02, "long_x2": 0.02}


def tiny_suite(folder: Path, rates: list[float] | None = None, **task: Any) -> list[str]:
    """A suite of one task and three entries in a folder; the words that run it."""
    words = task.pop("words", TASK)
    common = [*COMMON, *task.pop("common", [])]
    (job,) = checked_jobs([*common, *words, *MODEL, "pe=none"])
    suite = {
        "protocol": {
            "rates": rates or [0.001, 0.003, 0.006, 0.012],
            "tuning_seeds": [1000],
            "seeds": 2,
            "more_seeds": 3,
            "more_seeds_for": task.pop("more_seeds_for", ["none"]),
            "longer": [2],
        },
        "encodings": ["none", "alibi", "learned"],
        "controls": {"lstm": ["model=lstm", "pe=none", "model.d_model=16", "model.n_layers=1"]},
        "model": MODEL,
        "common": common,
        "tasks": {
            "flipflop": {
                "family": "recall",
                "words": words,
                "fits": 0.01,
                "generalises": SPLITS,
                "digest": task_digest(plain(job)),
            }
            | task
        },
    }
    path = folder / "mine" / "suite" / "tiny.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(suite))
    return ["suite", "tiny", "--config-dir", str(folder / "mine"), "hydra/launcher=basic"]


def suite_of_made(folder: Path, name: str = "mine", **protocol: Any) -> Path:
    """A suite in a folder for ``--config-dir``, of the runs that ``made`` makes."""
    task = {
        "family": "recall",
        "words": ["task=flipflop", "train.steps=400"],
        "fits": 0.01,
        "generalises": {"sparse": 0.02},
        "digest": task_digest(config()),
    }
    suite = {
        "protocol": {
            "rates": [0.001, 0.003, 0.006, 0.012],
            "tuning_seeds": [1000, 1001],
            "seeds": 3,
            "more_seeds": 4,
            "more_seeds_for": [],
            "longer": [2],
            **protocol,
        },
        "encodings": ["none", "rope"],
        "controls": {},
        "model": ["model=transformer"],
        "common": [],
        "tasks": {"flipflop": task},
    }
    path = folder / "suite" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(suite))
    return folder
