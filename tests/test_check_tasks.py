"""``pe-lab check`` of a task and of a model: planted faults, each found."""

from pathlib import Path

import pytest
from program import Here
from test_check import failed

TASKS = '''
from dataclasses import dataclass, replace
import numpy as np
from pe_lab.core.task import Batch, Task

@dataclass(frozen=True, kw_only=True)
class Sums(Task):
    """The sum of the bits so far, modulo 2."""
    length: int
    @property
    def vocab(self): return "0", "1"
    @property
    def n_tokens(self): return self.length
    def bits(self, rng, n): return rng.integers(0, 2, (n, self.length))
    def answers(self, bits): return bits.cumsum(1) % 2
    def sample(self, rng, n):
        bits = self.bits(rng, n)
        return Batch(bits, self.answers(bits), np.ones(bits.shape, bool))
    def at_length(self, length):
        return replace(self, length=length, splits={})

class Shifted(Sums):
    """The answer one token too early: what decides it is not read yet."""
    def answers(self, bits): return np.roll(bits.cumsum(1) % 2, -1, axis=1)

class Given(Sums):
    """The answer is what is read."""
    def answers(self, bits): return bits

class Global(Sums):
    """Does not use rng."""
    def bits(self, rng, n): return np.random.randint(0, 2, (n, self.length))

class Beyond(Sums):
    """A token that the vocabulary lacks."""
    def answers(self, bits): return bits.cumsum(1) % 3

class Long(Sums):
    """Longer than it says."""
    @property
    def n_tokens(self): return self.length - 1

@dataclass(frozen=True, kw_only=True)
class Idle(Sums):
    """A key that nothing reads."""
    noise: float

class Slow(Sums):
    """Draws one sequence after the other."""
    def bits(self, rng, n):
        return np.array([[rng.integers(0, 2) for _ in range(self.length)] for _ in range(n)])

class Written(Sums):
    """Claims that its answers are at the end."""
    generates = True
    def sample(self, rng, n):
        bits = self.bits(rng, n)
        scored = np.ones(bits.shape, bool)
        scored[:, -1] = False
        return Batch(bits, self.answers(bits), scored)

class Other(Sums):
    """Another rule at its own length."""
    def at_length(self, length):
        return Given(length=length, splits={})
'''
SPLITS = "splits: {long: {length: 24}}\n"
PLANTED = {
    "Shifted": "answers follow from what is read",
    "Given": "answers are not given away",
    "Global": "same rng, same batch",
    "Beyond": "shapes and vocabulary",
    "Long": "shapes and vocabulary",
    "Idle": "every key changes something",
    "Slow": "drawing beside training",
    "Written": "one run of answers at the end",
    "Other": "other lengths",
}

MODELS = """
from dataclasses import dataclass
import torch
from torch import nn
from pe_lab.models.base import Model, ModelConfig
from pe_lab.models.kv_cache import TokenCache

@dataclass(frozen=True, kw_only=True)
class Config(ModelConfig):
    fault: str
    idle: int
    dropout: float = 0.1
    def build(self, vocabulary, encodings):
        return Mean(self, vocabulary.size, encodings[0])

class Mean(Model):
    def __init__(self, cfg, vocab_size, encoding):
        super().__init__()
        self.p, self.fault, self.encoding = cfg.dropout, cfg.fault, encoding
        self.tokens = nn.Embedding(vocab_size, cfg.d_model)
        self.head = nn.Linear(cfg.d_model, vocab_size)
        self.unused = nn.Linear(2, 2)
        self.drawn = torch.randn(cfg.d_model)
    @property
    def encodings(self):
        return [self.encoding]
    def forward(self, tokens, pos, cache=None, *, scored=None, key=None):
        x = self.embed(tokens, pos, cache)
        n = torch.arange(1, 1 + x.shape[1])[:, None]
        x = x.cumsum(1) / n + x + self.drawn
        if self.fault == "ahead":
            x = x + x.mean(1, keepdim=True)
        if self.training and self.p:
            x = nn.functional.dropout(x, self.p)
        return x if scored is None else scored.pick(x)
    def empty_cache(self):
        return TokenCache()
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for group in ("task", "model"):
        (tmp_path / "mine" / group).mkdir(parents=True)
    (tmp_path / "mine" / "faulty_tasks.py").write_text(TASKS)
    (tmp_path / "mine" / "faulty_models.py").write_text(MODELS)
    for name in ("Sums", *PLANTED):
        keys = "noise: 0.5\n" if name == "Idle" else ""
        text = f"_target_: faulty_tasks.{name}\nlength: 12\n{keys}{SPLITS}"
        (tmp_path / "mine" / "task" / f"{name.lower()}.yaml").write_text(text)
    text = "_target_: faulty_models.Config\nn_layers: 1\nd_model: 16\nfault: none\nidle: 3\n"
    (tmp_path / "mine" / "model" / "mean.yaml").write_text(f"{text}dropout: 0.0\n")
    monkeypatch.syspath_prepend(str(tmp_path / "mine"))
    return tmp_path / "mine"


@pytest.mark.parametrize("name", PLANTED)
def test_a_faulty_task_is_found(here: Here, mine: Path, name: str) -> None:
    ended = here("check", "--config-dir", "mine", f"task={name.lower()}")
    assert PLANTED[name] in failed(ended.out), ended.out
    assert ended.status == 1
    assert PLANTED[name] in ended.err


def test_a_task_without_faults_passes(here: Here, mine: Path) -> None:
    ended = here("check", "--config-dir", "mine", "task=sums").ok()
    assert "all the same as then" in ended.out


def test_faults_of_a_model_are_found(here: Here, mine: Path) -> None:
    found = failed(here("check", "--config-dir", "mine", "model=mean").out)
    assert found.keys() >= {
        "gradient to every parameter", "dropout by its key", "cached equals uncached",
        "scored positions", "state_dict round trip", "every key changes something",
    }  # fmt: skip
    assert "unused.weight has no gradient" in found["gradient to every parameter"]
    assert "one key drops different units" in found["dropout by its key"]
    found = failed(here("check", "--config-dir", "mine", "model=mean", "model.fault=ahead").out)
    assert "where later tokens are changed" in found["no look at the future"]


@pytest.mark.extended
def test_all_of_a_folder(here: Here, mine: Path) -> None:
    ended = here("check", "--config-dir", "mine")
    assert ended.status == 1
    heads = [line.split()[0] for line in ended.out.splitlines() if not line.startswith(" ")]
    assert {f"task={name.lower()}" for name in PLANTED} | {"task=sums", "model=mean"} <= set(heads)
    assert "task=sums (" not in ended.err
