"""Small suites and sweeps under test: their words, processes, folders and numbers."""

import json
from pathlib import Path
from typing import Any

import yaml
from program import checked_jobs, rows, state, summary

from pe_lab.config.schema import to_dict
from pe_lab.results.table import task_digest

MODEL = ["model=transformer", "model.n_layers=1", "model.n_heads=2", "model.d_model=16"]
COMMON = ["train.warmup=2", "eval.sequences=16", "eval.quick_sequences=8"]
TASK = ["task=flipflop", "task.length=16", "train.steps=3", "train.batch_size=8"]
SPLITS = {"sparse": 0.02, "long_x2": 0.02}


def tiny_suite(
    folder: Path, rates: list[float] | None = None, more: dict[str, Any] | None = None, **task: Any
) -> list[str]:
    """A suite of one task and three entries in a folder; the words that run it.

    Args:
        more: keys of the suite beside those that all have.
    """
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
                "digest": task_digest(to_dict(job)),
            }
            | task
        },
        **(more or {}),
    }
    path = folder / "mine" / "suite" / "tiny.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(suite))
    return ["suite", "tiny", "--config-dir", str(folder / "mine"), "hydra/launcher=basic"]


JOBLIB = ("-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")


def workers(launcher: int) -> list[int]:
    """The processes of the launcher's pool."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent == launcher and b"popen_loky" in stat.with_name("cmdline").read_bytes():
                found.append(int(stat.parent.name))
        except OSError:
            continue
    return found


def folders(cwd: Path) -> dict[str, Path]:
    """The run folders by name."""
    return {path.name: path for path in cwd.glob("runs/*/*/seed*") if path.is_dir()}


def starts(folder: Path) -> int:
    """How often a run was started."""
    return len(json.loads((folder / "environment.json").read_text()))


def written(cwd: Path) -> int:
    """How much has been measured, in bytes."""
    return sum(path.stat().st_size for path in cwd.glob("runs/*/*/seed*/metrics.jsonl"))


def equal(cwd: Path, whole: Path) -> None:
    """Every run of the one sweep is finished and has the other's numbers."""
    ours, theirs = folders(cwd), folders(whole)
    assert ours.keys() == theirs.keys()
    for name, folder in ours.items():
        assert state(folder)["state"] == "finished"
        assert rows(folder) == rows(theirs[name])
        assert summary(folder) == summary(theirs[name])
