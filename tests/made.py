"""Run folders written without training, and files of a run changed as the program writes them."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from pe_lab.store import checkpoint
from pe_lab.store.run_folder import RunFolder, seal_object
from pe_lab.store.run_id import identity

CONFIG: dict[str, Any] = {
    "task": {
        "_target_": "pe_lab.tasks.flipflop.FlipFlop",
        "length": 64,
        "p_ignore": 0.8,
        "files": {},
        "splits": {"sparse": {"p_ignore": 0.98}, "dense": {"p_ignore": 0.1}},
    },
    "pe": {"_target_": "pe_lab.pe.none.NoPE"},
    "positions": {"_target_": "pe_lab.pe.positions.Sequential"},
    "model": {"n_layers": 2, "n_heads": 4, "d_model": 64, "d_ff": None, "tied_embeddings": False},
    "train": {
        "steps": 400,
        "batch_size": 32,
        "optimizer": "adamw",
        "lr": 0.003,
        "betas": [0.9, 0.999],
        "schedule": "cosine",
        "stop_below": None,
        "patience": 3,
        "checkpoint_every": 100,
        "log_every": 20,
    },
    "eval": {"every": 100, "sequences": 1000, "batch_tokens": 2048},
    "tracker": {"wandb": {"mode": "disabled", "tags": []}},
    "seed": 0,
    "runs_dir": "runs",
    "device": "auto",
    "threads": 1,
    "deterministic": True,
    "force": False,
    "debug": False,
}


def config(pe: str = "none", seed: int = 0, **changes: Any) -> dict[str, Any]:
    """The configuration with some keys changed: ``**{"train.lr": 0.1}``."""
    changed = copy.deepcopy(CONFIG) | {"seed": seed}
    changed["pe"]["_target_"] = f"pe_lab.pe.{pe}.X"
    for key, value in changes.items():
        *parents, last = key.split(".")
        section = changed
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    return changed


def made(
    pe: str = "none",
    seed: int = 0,
    task: str = "flipflop",
    contents: dict[str, str] | None = None,
    runs_dir: str = "runs",
    errors: dict[str, float | None] | None = None,
    loss: float | None = 0.5,
    resolved: dict[str, Any] | None = None,
    names: dict[str, str] | None = None,
    **changes: Any,
) -> RunFolder:
    """A finished run with these errors by split (None: too long for it).

    Args:
        resolved, names: the composed configuration, in place of the one in this file.
    """
    errors = {"in_domain": 0.25, "sparse": 0.5} if errors is None else errors
    resolved = resolved or config(pe, seed, **changes)
    folder = RunFolder.of(runs_dir, task, pe, seed, identity(resolved, contents))
    places = {s: s if s == "in_domain" else f"ood/{s}" for s in errors}
    metrics: dict[str, Any] = {}
    for split, error in errors.items():
        if error is not None:
            numbers = {
                "error": error,
                "error_low": max(0.0, error - 0.01),
                "error_high": min(1.0, error + 0.01),
                "error_seq": min(1.0, 2 * error),
                "loss": loss,
                "n": 100,
                "n_seq": 10,
                "guess": 0.5,
            }
            metrics |= {f"{places[split]}/{kind}": value for kind, value in numbers.items()}
    folder.make()
    folder.set_status("finished", 400, 400)
    folder.write(
        "summary.json",
        seal_object(
            {
                "task": task,
                "pe": pe,
                "seed": seed,
                "run_id": folder.run_id,
                "identity": folder.identity,
                "digests": {},
                "steps": resolved["train"]["steps"],
                "names": names
                or {
                    "task": task,
                    "pe": pe,
                    "positions": "sequential",
                    "model": "transformer",
                    "preset": task,
                },
                "overrides": [],
                "splits": {s: None if errors[s] is None else places[s] for s in errors},
                "too_long": {s: 99 for s in errors if errors[s] is None},
                "metrics": {
                    **metrics,
                    "params/total": 1000,
                    "time/train_s": 1.5,
                    "time/measure_s": 0.5,
                },
                "by": {"in_domain": {"length": {"1": {"error": 0.25, "n": 4}}}},
                "config": resolved,
                "contents": contents or {},
            }
        ),
    )
    return folder


def unfinished(state: Any, pe: str = "none", seed: int = 0, **changes: Any) -> RunFolder:
    """A run with this status and no summary."""
    resolved = config(pe, seed, **changes)
    folder = RunFolder.of("runs", "flipflop", pe, seed, identity(resolved))
    folder.make()
    folder.write("config.yaml", yaml.safe_dump({**resolved, "names": {"preset": "flipflop"}}))
    folder.set_status(state, 3, 9, "what went wrong" if state == "failed" else None)
    return folder


def errors_of(pe: str, values: list[float], split: str = "sparse", **changes: Any) -> list[Path]:
    """A run for each value, with the seeds 0, 1, .."""
    return [
        made(pe, seed, errors={"in_domain": 0.0, split: value}, **changes).path
        for seed, value in enumerate(values)
    ]


Change = Callable[[dict[str, Any]], Any]


def edit_summary(run: Path, change: Change) -> None:
    summary = json.loads((run / "summary.json").read_text())
    del summary["digest"]
    change(summary)
    RunFolder(run).write("summary.json", seal_object(summary))


def edit_checkpoint(run: Path, change: Change) -> None:
    path = run / "checkpoint.pt"
    state = checkpoint.load(path)
    change(state)
    digest = checkpoint.save(path, state)
    if (run / "summary.json").exists():
        edit_summary(run, lambda s: s["digests"].update({"checkpoint.pt": digest}))
