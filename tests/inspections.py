"""Inspections for tests: one made by hand, and run folders to inspect."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made import edit_checkpoint, edit_summary
from program import ran, the_run, tiny

from pe_lab.config.schema import check
from pe_lab.explain.inspect import Answer, Head, Inspection
from pe_lab.train.plan import make_plan

Fake = Callable[..., Path]


def made(text: str, gates: list[float], attended: int, **changes: Any) -> Inspection:
    """One head whose last query sees these gates and attends to one key."""
    n = len(text)
    seen = np.tri(n, dtype=np.float32)
    gate = seen * np.array(gates, dtype=np.float32)
    position = gate[:, ::-1].cumsum(1)[:, ::-1] * seen
    attention = np.zeros((n, n), dtype=np.float32)
    attention[:, attended] = seen[:, attended]
    maps = {
        "attention": attention,
        "position score": -2.5 * seen,
        "gate": gate,
        "position": position.astype(np.float32),
    }
    answer = Answer(n - 1, "b", 0.25, "a", False, tuple(p for p in (1, 3) if p < n))
    made = {
        "task": "selective_copy",
        "pe": "cope",
        "seed": 0,
        "split": "dense",
        "sample": 3,
        "tokens": list(text),
        "answers": [answer],
        "queries": list(range(n)),
        "heads": [Head(1, 0, maps, 0.5)],
        "ranked_by": "gate",
    }
    return Inspection(**{**made, **changes})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a second: flipflop, cope, two layers."""
    words = tiny("pe=cope", "model.n_layers=2", "positions=randomized", "positions.max=2048")
    return the_run(ran(tmp_path_factory, words) / "runs")


@pytest.fixture
def fake(run: Path, tmp_path: Path) -> Fake:
    """``fake(**groups)``: the run's folder as if it had had these groups, and no training."""

    def make(**groups: Any) -> Path:
        folder = tmp_path / f"fake-{run.name[-8:]}"
        shutil.copytree(run, folder)
        states: list[dict[str, torch.Tensor]] = []

        def change(summary: dict[str, Any]) -> None:
            summary["config"] |= groups
            summary["null_keys"] = []
            planned = make_plan(check(summary["config"], summary["names"]))
            summary["contents"] = planned.task.contents()
            states.append(planned.model().state_dict())

        edit_summary(folder, change)
        edit_checkpoint(folder, lambda state: state.update(model=states[0]))
        return folder

    return make
