"""What only a GPU can show. `make test-gpu`; each check has its like on the CPU elsewhere."""

import json
from pathlib import Path

import pytest
import torch
from program import ENCODINGS

from pe_lab.cli.main import main
from pe_lab.store.run_folder import RunFolder, run_folders

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"),
]


def trained(runs_dir: Path, *words: str) -> RunFolder:
    small = ["task=flipflop", "train.steps=20", "train.log_every=1", "eval.sequences=64"]
    small += ["eval.quick_sequences=64", "tracker.wandb.mode=disabled", f"runs_dir={runs_dir}"]
    assert main([*small, *words]) == 0
    (folder,) = run_folders(runs_dir)
    return folder


def losses(folder: RunFolder) -> list[float]:
    rows = map(json.loads, folder.metrics.read_text().splitlines())
    return [row["train/loss"] for row in rows if "train/loss" in row]


@pytest.mark.parametrize("pe", ENCODINGS)
def test_a_gpu_trains_like_the_cpu_and_twice_the_same(tmp_path: Path, pe: str) -> None:
    cpu = losses(trained(tmp_path / "cpu", f"pe={pe}", "device=cpu"))
    gpu = losses(trained(tmp_path / "gpu", f"pe={pe}", "device=cuda"))
    again = losses(trained(tmp_path / "again", f"pe={pe}", "device=cuda"))
    print(torch.cuda.get_device_name(), pe, cpu[-1], gpu[-1])
    assert gpu == again
    # Rounding differs, and training magnifies it: close at first, alike at the end.
    assert gpu[0] == pytest.approx(cpu[0], rel=1e-4)
    assert gpu[-1] == pytest.approx(cpu[-1], rel=0.05)
