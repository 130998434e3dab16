"""A model from outside: one file and one yaml."""

from pathlib import Path

import pytest
from program import Here, assert_refused, rows, tiny

FILE = '''
"""The mean of the tokens so far, through a linear map."""

from dataclasses import dataclass

import torch
from torch import nn

from pe_lab.models.base import Model, ModelConfig


@dataclass(frozen=True, kw_only=True)
class MeanConfig(ModelConfig):
    sharp: bool

    def build(self, vocabulary, encodings):
        return Mean(self, vocabulary.size, encodings)


class Mean(Model):
    def __init__(self, cfg, vocab_size, encodings):
        super().__init__()
        self.p, self.sharp, self.found = 0.1, cfg.sharp, list(encodings)
        self.pe = nn.ModuleList(encodings)
        self.tokens = nn.Embedding(vocab_size, cfg.d_model)
        self.head = nn.Linear(cfg.d_model, vocab_size)

    @property
    def encodings(self):
        return self.found

    def forward(self, tokens_BT, pos_BS, cache=None, *, scored=None, key=None):
        drop = self.drop(key)
        x = self.found[0].embed(self.tokens(tokens_BT), tokens_BT, pos_BS)
        x = x.cumsum(1) / torch.arange(1, 1 + x.shape[1])[:, None]
        x = x if scored is None else scored.pick(x)
        return x if drop is None else drop(x)

    def unembed(self, hidden):
        return self.head(hidden)

    def empty_cache(self):
        raise ValueError("it has none")
'''


def test_a_model_is_added_by_a_file_and_a_yaml(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mean.py").write_text(FILE)
    (tmp_path / "conf" / "model").mkdir(parents=True)
    yaml = "_target_: mean.MeanConfig\nn_layers: 1\nd_model: 16\nsharp: true\n"
    (tmp_path / "conf" / "model" / "mean.yaml").write_text(yaml)
    monkeypatch.syspath_prepend(tmp_path)
    words = [w for w in tiny("pe=sinusoidal", "train.steps=3") if not w.startswith("model.")]
    here("--config-dir", "conf", "model=mean", *words).ok()
    (folder,) = (path.parent for path in (tmp_path / "runs").rglob("metrics.jsonl"))
    assert [row["step"] for row in rows(folder) if "train/loss" in row][-1] == 3
    refused = here("--config-dir", "conf", "model=mean", "model.sharp=2", *words)
    assert_refused(refused, "model.sharp=2 is not allowed: set it to true or false")
