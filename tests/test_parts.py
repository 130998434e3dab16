"""pe=combined from the command line: parts by name, with changed keys, from --config-dir."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from program import Here, assert_refused, succeeded, the_run, tiny

DECAY = """
import torch
from torch import nn

from pe_lab.pe.base import Dims, PositionalEncoding


class Decay(PositionalEncoding):
    def __init__(self, dims: Dims, start: float) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.full((dims.n_heads,), start))

    def bias(self, pos_q_BT, pos_k_BS):
        return -self.rate[:, None, None] * (pos_q_BT[:, None, :, None] - pos_k_BS[:, None, None])
"""


def parts_of(runs: Path) -> list[dict[str, Any]]:
    """As the run's folder has recorded them."""
    recorded: list[dict[str, Any]] = yaml.safe_load((the_run(runs) / "config.yaml").read_text())[
        "pe"
    ]["parts"]
    return recorded


def test_names_become_whole_sections(here: Here, tmp_path: Path) -> None:
    succeeded(here(*tiny("pe=combined", "pe.parts=[{pe: rope, layers: [0], base: 500}, alibi]")))
    rope, alibi = parts_of(tmp_path / "runs")
    assert rope == {
        "pe": "rope",
        "_target_": "pe_lab.pe.rope.RoPE",
        "base": 500.0,
        "pairing": "interleaved",
        "logn": "none",
        "logn_clip": None,
        "fraction": 1.0,
        "drop": None,
        "clip": None,
        "learned": False,
        "layers": [0],
    }
    assert alibi["learned"] is False


def test_an_encoding_from_config_dir_is_a_part(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine" / "pe").mkdir(parents=True)
    (tmp_path / "mine" / "decay_part.py").write_text(DECAY)
    (tmp_path / "mine" / "pe" / "decay.yaml").write_text("_target_: decay_part.Decay\nstart: 0.5\n")
    monkeypatch.syspath_prepend(str(tmp_path / "mine"))
    words = ["--config-dir", "mine", *tiny("pe=combined", "pe.parts=[decay,rope]")]
    succeeded(here(*words))
    assert parts_of(tmp_path / "runs")[0]["start"] == 0.5
    again = here(*words[:2], *tiny("pe=combined", "pe.parts=[decya]"))
    assert_refused(again, "did you mean decay")
