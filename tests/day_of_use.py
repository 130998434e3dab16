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
from made import edit_summary, evaluate, made

from pe_lab.cli.train import checked_jobs
from pe_lab.config.schema import plain
from pe_lab.core.metrics import IN_DOMAIN, metric_names
from pe_lab.store.metrics_log import MetricsLog
from pe_lab.store.run_folder import RunFolder
from pe_lab.train.plan import Plan, plan

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
    rng = np.random.default_rng(zlib.crc32(f"{task} {words} {seed}".encode()))
    # An encoding's skill: the same for all of its settings, so that the tables have an order.
    skill = np.random.default_rng(zlib.crc32(f"{task} {pe}".encode())).uniform(0.02, 1.0)
    final = {split: _error(split, skill, rng) for split in planned.splits}
    run = made(
        pe, seed, task, planned.task.contents(), str(runs), final, resolved=resolved, names=names
    )
    edit_summary(run.path, lambda s: s.update(null_keys=sorted(planned.null_values)))
    run.write_text("config.yaml", yaml.safe_dump({**resolved, "names": names}))
    measured_until = steps if state is None else steps // 2
    with closing(MetricsLog(run.metrics, keep=0)) as log:
        for step in range(100, measured_until + 1, 100):
            decay = float(np.exp(-4 * step / steps))
            log.write({"step": step, "train/loss": 0.1 + decay, "train/lr": 1e-3})
            row: dict[str, Any] = {"step": step}
            for split, error in final.items():
                row |= metric_names(split, {"error": error + (0.5 - error) * decay})
            log.write(row)
    if state is not None:
        run.set_status(
            state, measured_until, steps, "the loss is not finite" if state == "failed" else None
        )
        (run.path / "summary.json").unlink()
    return run


def _error(split: str, skill: float, rng: np.random.Generator) -> float:
    """Small in domain; far out of domain it may be half of the answers."""
    hardness = 0.02 if split == IN_DOMAIN else np.random.default_rng(
        zlib.crc32(split.encode())
    ).uniform(0.1, 0.5)  # fmt: skip
    return float(np.clip(skill * hardness * rng.uniform(0.7, 1.3), 0.0, 1.0))


def _evaluate(run: RunFolder, words: str, seed: int) -> None:
    for encoding in EVALUATED.get(words, ()):
        rise = {"trained": 0.08, "pi": 0.03, "yarn": 0.02}[encoding]
        for length in LENGTHS:
            error = min(0.5, 0.01 * (1 + seed) + rise * max(0, length // 64 - 1))
            scale = None if encoding == "trained" else max(1.0, length / 64)
            evaluate(run, encoding, {length: error}, scale=scale)
