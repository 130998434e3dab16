"""Classes from outside, each one file and one yaml; encodings, tasks and models: test_new.py."""

import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from program import Here, assert_refused, rows, succeeded, the_run, tiny

Add = Callable[[str, str, str, str], None]
"""Of a module and its code, and of a yaml below the configuration's folder and its text."""


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Add:
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))

    def write(module: str, code: str, name: str, text: str) -> None:
        for path, content in ((f"lib/{module}.py", code), (f"mine/{name}.yaml", text)):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(content)

    return write


WAVES = '''
import torch
from pydantic import PositiveInt
from pe_lab.pe.base import Dims, PositionalEncoding

class Waves(PositionalEncoding):
    """A table that repeats."""
    def __init__(self, dims: Dims, period: PositiveInt):
        super().__init__()
        self.period = period
        self.table = torch.nn.Parameter(torch.randn(period, dims.d_model))
    def embed(self, x, tokens, pos):
        return x + self.table[pos % self.period]
'''


def test_an_encoding_without_a_constructor(add: Add, here: Here) -> None:
    text = "from pe_lab.pe.base import PositionalEncoding\n\nclass Bare(PositionalEncoding):\n"
    text += "    def embed(self, x, tokens, pos):\n        return x + pos[..., None] % 2\n"
    add("bare", text, "pe/bare", "_target_: bare.Bare\n")
    succeeded(here("--config-dir", "mine", *tiny("pe=bare", "train.steps=2")))


LINES = '''
import json
from pydantic import PositiveInt
from pe_lab.core.tracker import Tracker

class Lines(Tracker):
    """Every n-th row as a line of a file."""
    def __init__(self, every: PositiveInt):
        self.every, self.rows = every, []
    def start(self, run):
        self.file = run.folder / "lines.txt"
        self.rows += run.rows
        self.name_of_run = f"{run.config['names']['pe']} {run.environment['python']}"
    def log(self, row):
        if row["step"] == 3 and self.every == 7:
            raise OSError("no answer from the server")
        self.rows.append(row)
    def finish(self, summary, exit_code):
        kept = [self.name_of_run, *self.rows[:: self.every], summary["steps"], exit_code]
        self.file.write_text("".join(json.dumps(one) + "\\n" for one in kept))
'''


def test_a_tracker(add: Add, here: Here, tmp_path: Path) -> None:
    add("lines", LINES, "tracker/lines", "_target_: lines.Lines\nevery: 1\n")
    words = ["--config-dir", "mine", *tiny("tracker=lines", "train.steps=4")]
    assert here(*words).status == 0
    folder = the_run(tmp_path / "runs")
    first, *logged, steps, code = map(json.loads, (folder / "lines.txt").open())
    assert first == f"none {platform.python_version()}"
    assert (steps, code) == (4, 0)
    assert [{k: v for k, v in row.items() if k != "time/train_s"} for row in logged] == rows(folder)
    wrong = here(*words, "tracker.every=0")
    assert_refused(wrong, "tracker.every=0")
    wrong = here(*words, "tracker._target_=lines.json")
    assert "is no Tracker" in wrong.err
    # A recorded run needs no tracker.
    (tmp_path / "lib" / "lines.py").write_text("raise SystemExit")
    sys.modules.pop("lines")
    assert here("eval", f"run={folder}", "lengths=16").status == 0


def test_a_tracker_that_fails_is_one_warning(add: Add, here: Here, tmp_path: Path) -> None:
    add("lines", LINES, "tracker/lines", "_target_: lines.Lines\nevery: 7\n")
    ended = succeeded(here("--config-dir", "mine", *tiny("tracker=lines", "train.steps=4")))
    assert ended.out.count("Lines failed to log: ") == 1
    assert "no answer from the server" in ended.out
    assert (the_run(tmp_path / "runs") / "summary.json").exists()
    assert not list(tmp_path.rglob("lines.txt"))


FILE = '''
"""The mean of the tokens so far, through a linear map."""

from dataclasses import dataclass

import torch
from torch import nn

from pe_lab.models.base import Model, pick
from pe_lab.models.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class MeanConfig(ModelConfig):
    sharp: bool

    def build(self, vocabulary, encodings):
        return Mean(self, vocabulary.size, encodings)


class Mean(Model):
    def __init__(self, cfg, vocab_size, encodings):
        super().__init__()
        self.sharp, self.found = cfg.sharp, list(encodings)
        self.pe = nn.ModuleList(encodings)
        self.tokens = nn.Embedding(vocab_size, cfg.d_model)
        self.head = nn.Linear(cfg.d_model, vocab_size)

    @property
    def encodings(self):
        return self.found

    def forward(self, tokens_BT, pos_BS, cache=None, *, scored=None):
        x = self.found[0].embed(self.tokens(tokens_BT), tokens_BT, pos_BS)
        x = x.cumsum(1) / torch.arange(1, 1 + x.shape[1])[:, None]
        return pick(x, scored)

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
    ended = here("--config-dir", "conf", "model=mean", *words)
    assert ended.status == 0, ended.err
    (folder,) = (path.parent for path in (tmp_path / "runs").rglob("metrics.jsonl"))
    assert [row["step"] for row in rows(folder) if "train/loss" in row][-1] == 3
    refused = here("--config-dir", "conf", "model=mean", "model.sharp=2", *words)
    assert_refused(refused, "model.sharp=2 is not allowed")
