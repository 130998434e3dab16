"""The run folders of a day of mixed use, made without training, in some five seconds.

``make_day(folder)`` makes folder/runs; ``shared_day(factory)`` has them once a session, to be read
only. There are 64 runs of 35 settings on three tasks: 61 finished, one failed, one interrupted and
one killed. The configurations are those that ``pe-lab`` composes from the words in ``DAY``; errors,
curves and breakdowns are invented, the same at every call. Four of the settings on flipflop were
evaluated with ``pe-lab eval``: two with another encoding in place of their own, at five lengths.
"""

import shlex
import zlib
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from made import evaluate

from pe_lab.cli.train import checked_jobs
from pe_lab.config.schema import plain
from pe_lab.core.metrics import IN_DOMAIN, metric_names, metric_prefix, wilson
from pe_lab.store.metrics_log import MetricsLog
from pe_lab.store.run_folder import RunFolder
from pe_lab.store.run_id import identity
from pe_lab.store.schema import sealed
from pe_lab.training.plan import Plan, plan

ON_FLIPFLOP = {
    "pe=rope": 3,
    "pe=cope": 3,
    "pe=alibi": 3,
    "pe=t5": 3,
    "pe=none": 3,
    "pe=learned": 1,
    "pe=sinusoidal": 2,
    "pe=fire": 2,
    "pe=kerple": 1,
    "pe=rope train.steps=1000": 3,
    "pe=cope train.steps=1000": 3,
    "pe=cope pe.npos=16": 2,
    "pe=cope pe.npos=16 pe.gates=sep_keys": 1,
    "pe=rope model.d_model=128": 2,
    "pe=cope model.d_model=128": 2,
    "pe=alibi model.window=16": 1,
    "pe=rope positions=randomized": 2,
    "pe=alibi positions=offset": 1,
    "pe=rope pe.base=500": 1,
    "pe=rope train.lr=0.01": 1,
    "pe=combined": 1,
    "pe=combined 'pe.parts=[{pe: cope, every: 2}, relative]' train.steps=1000": 1,
    "pe=rope task.length=32": 1,
}
ON_COUNTING = {
    "pe=rope": 3,
    "pe=cope": 3,
    "pe=learned": 2,
    "pe=relative": 1,
    "pe=cope task.n_vars=3": 1,
    "pe=rope task.n_vars=3": 1,
    "pe=cope model.n_layers=4 train.steps=2000": 1,
}
ON_SELECTIVE_COPY = {
    "pe=rope": 3,
    "pe=cope": 2,
    "pe=alibi": 2,
    "pe=selective_rope": 1,
    "pe=rope train.steps=2000": 1,
}
DAY = {"flipflop": ON_FLIPFLOP, "counting": ON_COUNTING, "selective_copy": ON_SELECTIVE_COPY}
"""task -> words of ``pe-lab`` -> number of seeds."""
UNFINISHED = {
    "pe=kerple": "failed",
    "pe=learned": "interrupted",
    "pe=cope pe.npos=16 pe.gates=sep_keys": "running",
}
"""Settings on flipflop whose only run is in this state; nothing holds the running one."""
LENGTHS = (32, 64, 128, 256, 512)
EVALUATED = {
    "pe=rope": ("trained", "pi", "yarn"),
    "pe=cope": ("trained",),
    "pe=alibi": ("trained",),
    "pe=rope train.steps=1000": ("trained", "pi"),
}
"""Settings on flipflop -> the encodings at test time they were evaluated with."""


def shared_day(factory: pytest.TempPathFactory) -> Path:
    """``make_day`` once a session; nobody writes in it."""
    folder = factory.getbasetemp() / "day-of-use"
    if not folder.is_dir():
        folder.mkdir()
        make_day(folder)
    return folder / "runs"


def make_day(folder: Path) -> Path:
    """Make the runs in ``folder``/runs, which is returned."""
    for task, settings in DAY.items():
        for words, n in settings.items():
            (config,) = checked_jobs([f"task={task}", *shlex.split(words)])
            state = UNFINISHED.get(words) if task == "flipflop" else None
            for seed in range(n):
                # Composing takes most of the time: once a setting.
                planned = plan(replace(config, seed=seed))  # type: ignore[type-var]
                run = _made(folder / "runs", planned, words, state)
                if task == "flipflop":
                    _evaluate(run, words, seed)
    return folder / "runs"


def _made(runs: Path, planned: Plan, words: str, state: Any) -> RunFolder:
    resolved = plain(planned.resolved)
    names = resolved.pop("names")
    task, pe, seed, steps = names["task"], names["pe"], resolved["seed"], resolved["train"]["steps"]
    contents = planned.task.contents()
    run = RunFolder.of(str(runs), task, pe, seed, identity(resolved, contents))
    run.make()
    config = yaml.safe_dump({**resolved, "names": names}, sort_keys=False)
    run.write_text("config.yaml", config)
    rng = np.random.default_rng(zlib.crc32(f"{task} {words} {seed}".encode()))
    # An encoding's skill: the same for all of its settings, so that the tables have an order.
    skill = np.random.default_rng(zlib.crc32(f"{task} {pe}".encode())).uniform(0.02, 1.0)
    final = {split: _error(split, skill, rng) for split in planned.splits}
    measured_until = steps if state is None else steps // 2
    with closing(MetricsLog(run.metrics, keep=0)) as log:
        for step in range(100, measured_until + 1, 100):
            decay = float(np.exp(-4 * step / steps))
            log.write({"step": step, "train/loss": 0.1 + decay, "train/lr": 1e-3})
            row: dict[str, Any] = {"step": step}
            for split, error in final.items():
                row |= metric_names(split, _numbers(error + (0.5 - error) * decay, 64, rng))
            log.write(row)
    if state is not None:
        message = (
            "the loss is not finite at step 201: lower train.lr" if state == "failed" else None
        )
        run.set_status(state, measured_until, steps, message)
        return run
    run.set_status("finished", steps, steps)
    metrics: dict[str, float] = {}
    for split, error in final.items():
        numbers = _numbers(error, 1000, rng)
        metrics |= metric_names(split, {**numbers, "n_seq": 1000, "guess": 0.5})
    size = resolved["model"]["d_model"] ** 2 * 12 * resolved["model"]["n_layers"]
    run.write_text(
        "summary.json",
        sealed(
            {
                "task": task,
                "pe": pe,
                "seed": seed,
                "run_id": run.run_id,
                "identity": run.identity,
                "digests": {},
                "steps": steps,
                "names": names,
                "overrides": [f"task={task}", *shlex.split(words), f"seed={seed}"],
                "splits": {split: metric_prefix(split) for split in planned.splits},
                "too_long": {},
                "metrics": {**metrics, "params/total": size, "time/train_s": steps * 0.02},
                "by": {split: _breakdown(metrics, split) for split in planned.splits},
                "config": resolved,
                "null_keys": sorted(planned.null_values),
                "contents": contents,
            }
        ),
    )
    return run


def _error(split: str, skill: float, rng: np.random.Generator) -> float:
    """Small in domain; far out of domain it may be half of the answers."""
    hardness = 0.02 if split == IN_DOMAIN else np.random.default_rng(
        zlib.crc32(split.encode())
    ).uniform(0.1, 0.5)  # fmt: skip
    return float(np.clip(skill * hardness * rng.uniform(0.7, 1.3), 0.0, 1.0))


def _numbers(error: float, sequences: int, rng: np.random.Generator) -> dict[str, Any]:
    """The metrics of a split in which about this share of the answers is wrong."""
    n = 5 * sequences
    wrong = int(rng.binomial(n, min(1.0, error)))
    low, high = wilson(wrong, n)
    return {
        "error": wrong / n,
        "error_low": low,
        "error_high": high,
        "error_seq": min(1.0, 3 * wrong / n),
        "loss": 0.01 + 2 * wrong / n,
        "n": n,
    }


def _breakdown(metrics: dict[str, float], split: str) -> dict[str, Any]:
    """Errors by length, which rise with it."""
    error = metrics[f"{metric_prefix(split)}/error"]
    buckets = {"1-8": 0.5, "9-16": 1.0, "17-32": 1.5}
    cells = {b: {"error": min(1.0, error * f), "n": 1000} for b, f in buckets.items()}
    return {"length": {b: {**cell, "loss": 2 * cell["error"]} for b, cell in cells.items()}}


def _evaluate(run: RunFolder, words: str, seed: int) -> None:
    for encoding in EVALUATED.get(words, ()):
        rise = {"trained": 0.08, "pi": 0.03, "yarn": 0.02}[encoding]
        for length in LENGTHS:
            error = min(0.5, 0.01 * (1 + seed) + rise * max(0, length // 64 - 1))
            scale = None if encoding == "trained" else max(1.0, length / 64)
            evaluate(run, encoding, {length: error}, scale=scale)
