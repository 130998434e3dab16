"""Runs of suite v1 made up for the tests of the leaderboard: rows as they are shipped."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl

from pe_lab.core.metrics import IN_DOMAIN
from pe_lab.results.leaderboard.rows import SCHEMA
from pe_lab.results.suite import load_suite

SUITE = load_suite("v1")
NAME = f"{SUITE.name}-{SUITE.digest}"
COMMAND = ("leaderboard", "suite=v1")


def run(
    entry: str, task: str, seed: int, errors: Sequence[float | None], **values: Any
) -> list[Any]:
    """The rows of one run: errors in domain and on the scored splits, in their order."""
    facts = {
        "suite": NAME,
        "task": task,
        "entry": entry,
        "pe": entry.partition(" ")[0],
        "model": "transformer",
        "phase": "tuning" if seed in SUITE.protocol.tuning_seeds else "score",
        "lr": 0.003,
        "seed": seed,
        "seed_init": seed,
        "steps": 400,
        "n": 1000,
        "n_seq": 500,
        "guess": 0.5,
        "parameters": 100_000,
        "train_s": 10.0,
        "measure_s": 1.0,
        "state": "finished",
        "message": None,
        "run_id": f"{task}-{entry}-seed{seed}-{values.get('lr', 0.003)}",
        "revision": "0123456789ab",
        "torch": "2.13.0",
        "machine": "Linux x86_64",
        "processor": "AMD EPYC 9654",
        "python": "3.11.7",
        "planned": None,
        "started": 1_000_000.0,
        **values,
    }
    if "run_id" not in values and facts["phase"] not in ("tuning", "score"):
        facts["run_id"] += f"-{facts['phase']}"
    splits = [IN_DOMAIN, *SUITE.tasks[task].generalises]
    facts["loss"] = facts.get("loss", errors[0])
    return [
        {**facts, "split": split, "error": error}
        for split, error in zip(splits, errors, strict=True)
    ]


def rows(*runs: Iterable[dict[str, Any]]) -> pl.DataFrame:
    """The runs as a table."""
    return pl.DataFrame([row for one in runs for row in one], SCHEMA, orient="row")


def everything(*tasks: str) -> pl.DataFrame:
    """All entries on these tasks with all their seeds, tuning included; errors are drawn."""
    rng = np.random.default_rng(0)
    found = []
    for entry in (*SUITE.encodings, *SUITE.controls):
        n = 20 if entry in SUITE.protocol.more_seeds_for else 8
        for task in tasks:
            one, p = SUITE.tasks[task], rng.random()
            inside_of = {rate: rng.integers(0, 100) / 1000 for rate in SUITE.protocol.rates}
            chosen = min(inside_of, key=lambda rate: (inside_of[rate], rate))
            for rate, inside in inside_of.items():
                errors = [inside, *rng.random(len(one.generalises)).round(3).tolist()]
                for number in SUITE.protocol.tuning_seeds:
                    found.append(run(entry, task, number, errors, lr=rate))
            for number in range(n):
                fine = rng.random(len(one.generalises)) < p
                errors = [0.0, *np.where(fine, 0.0, rng.random(len(fine)).round(3)).tolist()]
                seconds = float(rng.normal(20, 2))
                found.append(
                    run(entry, task, number, errors, lr=chosen, train_s=seconds, loss=rng.random())
                )
    return rows(*found)
