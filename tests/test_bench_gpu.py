"""``make bench-gpu`` without a GPU: that it runs, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu


@pytest.fixture
def dry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``dry(*words)``: what the command writes."""
    monkeypatch.setattr(gpu, "ROOT", tmp_path)

    def run(*words: str) -> dict[str, Any]:
        monkeypatch.setattr("sys.argv", ["gpu", "--dry", *words])
        gpu.main()
        (file,) = (tmp_path / "runs" / "bench").iterdir()
        result: dict[str, Any] = json.loads(file.read_text())
        assert result["dry"] is True
        return result["parts"]

    return run


def assert_attention(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert row["error"] < (1e-2 if row["precision"] == "bfloat16" else 1e-5)
        assert row["ms"].keys() >= {"ours", "formula", "plain"}


def test_kernels_and_steps(dry: Any) -> None:
    found = dry("--part", "cope", "step", "--encodings", "cope")
    assert_attention(found["cope"]["rows"])
    for row in found["step"]["rows"]:
        assert row["failed"] == {}
        assert row["ms"].keys() == {"eager", "fast"}
        assert row["peak_mb"].keys() == row["ms"].keys()


@pytest.mark.slow
def test_all_that_takes_longer(dry: Any) -> None:
    found = dry("--part", "paper_step", "paper", "--encodings", "none", "t5")
    assert all(row["failed"] == {} for row in found["paper_step"]["rows"])
    (row,) = found["paper"]["rows"]
    assert row["done"]
    assert len(row["runs"]) == 2
    assert "Golovneva" in row["compare"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["gpu"])
    with pytest.raises(SystemExit, match="torch sees none"):
        gpu.main()
