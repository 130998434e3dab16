"""Every published setting can be begun: one step of each, with as few sequences as there can be."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from program import Outcome

from pe_lab.runs import run_folders

PAPER = Path(__file__).resolve().parent.parent / "conf" / "experiment" / "paper"
SMALL = ["train.steps=1", "train.batch_size=2", "tracker.wandb.mode=disabled"]


@pytest.mark.parametrize("recipe", sorted(path.stem for path in PAPER.glob("*.yaml")))
def test_every_recipe_takes_a_step(here: Callable[..., Outcome], recipe: str) -> None:
    n = 16 if recipe == "brackets" else 1  # of fewer texts none may have a wide gap
    measured = [f"eval.sequences={n}", f"eval.quick_sequences={n}"]
    done = here(f"experiment=paper/{recipe}", "pe=rope", *SMALL, *measured)
    assert done.status == 0, done.err
    (folder,) = run_folders(Path("runs"))
    summary = folder.summary()
    assert summary is not None
    wanted = yaml.safe_load((PAPER / f"{recipe}.yaml").read_text())
    for group in ("task", "model"):
        for key, value in wanted[group].items():
            if not isinstance(value, dict):
                assert summary["config"][group][key] == value
