"""A log to wandb, its files read back by `wandb leet inspect`, and wandb's process."""

import json
import logging
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from program import ROOT
from wandb.util import get_core_path

from pe_lab.core.tracker import TrackedRun
from pe_lab.experiment.tracking import Tracking
from pe_lab.store.run_folder import RunFolder

RUN_ID = "flipflop-cope-seed0-01234567"
CONFIG: dict[str, Any] = {
    "names": {"task": "flipflop", "pe": "cope"},
    "model": {"n_layers": 1, "d_model": 128},
    "seed": 0,
    "train": {"lr": 1e-3, "betas": [0.9, 0.99]},
    "none": None,
}

SUMMARY: dict[str, Any] = {
    "steps": 30,
    "splits": {"in_domain": "in_domain", "long": "ood/long", "far": "ood/far", "too_long": None},
    "metrics": {
        **{"in_domain/error": 0.25, "in_domain/error_low": 0.2, "in_domain/n": 10},
        **{"in_domain/loss": 0.5, "in_domain/guess": 0.5},
        **{"ood/long/error": 0.75, "ood/long/loss": None, "ood/far/error": 0.25, "ood/far/n": 7},
        **{"params/total": 7, "time/train_s": 1.5},
    },
    "by": {"in_domain": {"length": {"2": {"error": 0.5, "n": 2}, "3-4": {"error": 0, "n": 8}}}},
}
SPLITS = tuple(SUMMARY["splits"])


def inspect(file: Path, *options: str) -> bytes:
    """What ``wandb leet inspect FILE --json`` prints, without the second that its start takes."""
    core = [get_core_path(), "leet", "inspect", "--no-observability", "--json", *options]
    command = [*core, "--run-file", str(file), str(file.parent.parent)]
    return subprocess.run(command, check=True, capture_output=True, timeout=30).stdout


def files(folder: Path) -> list[Path]:
    """What each process that worked on the run left, oldest first."""
    return sorted((folder / "wandb").glob("offline-run-*/*.wandb"))


def records(file: Path) -> list[dict[str, Any]]:
    """Every record of a file."""
    return [json.loads(line) for line in inspect(file).splitlines()]


def whole(file: Path) -> dict[str, Any]:
    """State, configuration and summary as wandb sums them up."""
    content: dict[str, Any] = json.loads(inspect(file, "--summary"))
    return content


def start(file: Path) -> dict[str, Any]:
    """What the run was called there."""
    (run,) = (record["run"] for record in records(file) if record["type"] == "run")
    content: dict[str, Any] = run
    return content


def history(folder: Path) -> list[dict[str, Any]]:
    """The rows in all files of the run, in order, without the keys that wandb adds."""
    items = [
        record["history"]["item"]
        for file in files(folder)
        for record in records(file)
        if record["type"] == "history"
    ]
    return [{k: v for k, v in item.items() if not k.startswith("_")} for item in items]


def keys(**changes: Any) -> dict[str, Any]:
    """The keys ``tracker.wandb``, the defaults but for these."""
    yaml = OmegaConf.load(ROOT / "conf" / "tracker" / "wandb.yaml")
    return {**OmegaConf.to_container(yaml.wandb, resolve=True), "project": "pe-lab-test", **changes}


def tracked(folder: Path, *overrides: str, sweep: str | None = None, **changes: Any) -> TrackedRun:
    """A run in this folder with the rows of its metrics.jsonl."""
    facts = {"git_revision": "0123abcd" * 5, "sweep": sweep}
    rows = RunFolder(folder).rows()
    run = TrackedRun(folder, RUN_ID, CONFIG, overrides, facts, rows, SPLITS)
    return replace(run, **changes)


def started(folder: Path, *, mode: str = "offline", wait: float = 20, **changes: Any) -> Tracking:
    """A run in ``folder`` tracked by wandb, with a short limit on wandb's start."""
    section = {
        "_target_": "pe_lab.experiment.wandb.WandbTracker",
        "wandb": keys(mode=mode, init_timeout=wait, **changes),
    }
    run = tracked(folder, "task=flipflop", "model.d_model=128", sweep="sweep-1")
    return Tracking(section, run)


def row(step: int) -> dict[str, Any]:
    """A row of metrics.jsonl."""
    return {"step": step, "train/loss": step / 10}


def write_metrics(folder: Path, rows: list[dict[str, Any]]) -> None:
    """A run folder with these rows in its metrics.jsonl."""
    folder.mkdir(exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(text)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The messages shown to the user; debug messages only go to the log file."""
    ours = [record for record in caplog.records if record.name == "pe_lab"]
    return [record.getMessage() for record in ours if record.levelno > logging.DEBUG]


def only_warning(caplog: pytest.LogCaptureFixture) -> str:
    """The one warning about wandb, which is then forgotten."""
    (message,) = warnings(caplog)
    assert "\n" not in message
    assert "the run folder has every number" in message
    caplog.clear()
    return message


def use(run: Tracking) -> None:
    """Three rows and a summary."""
    for step in range(3):
        run.log(row(step))
    run.finish(SUMMARY, 0)
