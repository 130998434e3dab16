"""``pe-lab new``: what it writes runs as it stands."""

import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from program import ROOT, Here, assert_refused, csv_rows, succeeded, summary, the_run, tiny
from suites import COMMON, MODEL, TASK, tiny_suite
from test_check import failed

from pe_lab.suite.rows import read_own
from pe_lab.suite.suite import load_suite


@pytest.fixture(autouse=True)
def path_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of --config-dir are importable for the rest of a process."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("fading", "lookback", "averages"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.invalidate_caches()


def test_an_encoding_is_checked_and_trained(here: Here, tmp_path: Path) -> None:
    made = here("new", "encoding", "fading")
    assert (made.status, made.err) == (0, "")
    files = ["fading/fading.py", "fading/pe/fading.yaml", "fading/test_fading.py"]
    for name in files:
        assert f"written  {name}" in made.out
        assert not {"NAME", "CLASS"} & set((tmp_path / name).read_text().split())
    assert "tried rate=" in succeeded(here("check", "--config-dir", "fading", "pe=fading")).out
    succeeded(here("--config-dir", "fading", *tiny("pe=fading", "train.steps=3", "pe.rate=0.2")))
    assert summary(the_run(tmp_path / "runs"))["metrics"]["params/encoding"] == 2
    assert here("--config-dir", "fading", *tiny("pe=fading", "pe.rate=-1")).status == 2


def test_runs_of_a_class_before_an_edit_are_marked(here: Here, tmp_path: Path) -> None:
    here("new", "encoding", "fading", "to=mine")
    tiny_suite(tmp_path)
    line = ["--config-dir", "mine", *COMMON, *TASK, *MODEL, "pe=fading", "tracker=none"]
    succeeded(here(*line))
    (tmp_path / "mine/fading.py").open("a").write("# edited\n")
    assert "by the code of pe before an edit" in here(*line).out
    assert "edited=true" in here("results").out, "also where all runs are"
    succeeded(here(*line, "seed=1"))
    rows = csv_rows(here("results", "format=csv", "splits=sparse").out)
    assert {row["seeds"]: row["differs"] for row in rows} == {"0": "edited=true", "1": ""}
    succeeded(here("report"))
    assert "edited=true" in (tmp_path / "runs/report/index.html").read_text()
    own = read_own(load_suite("tiny", tmp_path / "mine"), tmp_path / "runs", tmp_path / "mine")
    assert {*own.select("entry", "seed").iter_rows()} == {("fading edited=true", 0), ("fading", 1)}


@pytest.mark.parametrize(
    ("kind", "name", "also"),
    [("task", "lookback", []), ("model", "averages", ["model.n_layers=1", "model.d_model=8"])],
)
def test_a_task_and_a_model_are_checked_and_trained(
    here: Here, tmp_path: Path, kind: str, name: str, also: list[str]
) -> None:
    assert here("new", kind, name, "to=mine").status == 0
    succeeded(here("check", "--config-dir", "mine", f"{kind}={name}"))
    rest = [word for word in tiny("train.steps=3") if not word.startswith(f"{kind}")]
    succeeded(here("--config-dir", "mine", *rest, f"{kind}={name}", *also))
    assert summary(the_run(tmp_path / "runs"))["names"][kind] == name


def test_a_new_task_reads_the_files_that_show_writes(here: Here) -> None:
    """show ends with the key to read the file with, so the yaml must have that key."""
    here("new", "task", "lookback", "to=mine")
    few = ["train.steps=1", "eval.sequences=4", "eval.quick_sequences=4"]
    rest = [word for word in tiny(*few) if not word.startswith("task")]
    words = ["--config-dir", "mine", "task=lookback"]
    written = here("show", *words, "n=4", "to=few.jsonl")
    (key,) = re.findall(r"task\.files=\{.*\}", written.out)
    succeeded(here(*words, *rest, key))


@pytest.mark.extended
def test_the_tests_that_it_writes_pass(here: Here, tmp_path: Path) -> None:
    for kind, name in (("encoding", "fading"), ("task", "lookback"), ("model", "averages")):
        here("new", kind, name, "to=mine")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "mine"],
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout
    assert "6 passed" in ended.stdout


@pytest.mark.parametrize("file", ["fading.py", "pe/fading.yaml", "test_fading.py"])
def test_nothing_is_written_over(here: Here, tmp_path: Path, file: str) -> None:
    (tmp_path / "mine" / "pe").mkdir(parents=True)
    (tmp_path / "mine" / file).write_text("mine")
    assert_refused(
        here("new", "encoding", "fading", "to=mine"), f"mine/{file} exists and is not overwritten"
    )
    assert [p.name for p in (tmp_path / "mine").rglob("*") if p.is_file()] == [Path(file).name]
    assert (tmp_path / "mine" / file).read_text() == "mine"


@pytest.mark.extended
def test_the_page_on_extending_works(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "extending.md").read_text()
    shells, pythons = (
        re.findall(rf"^```{kind}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
        for kind in ("sh", "python")
    )
    (python,) = (block for block in pythons if "from pe_lab" in block and "steps=100" in block)
    sizes = {"eval.sequences": 20, "eval.quick_sequences": 20}
    small = ["train.steps=2", *(f"{key}={value}" for key, value in sizes.items()), "tracker=none"]
    # Other steps than the shell's: other runs.
    code = python.replace("steps=100", f"steps=3, **{sizes}")
    assert code.count("steps=3") == 2
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    lines = [line.partition("  #")[0] for line in shells[0].splitlines()]
    assert len(lines) == 4
    commands = [[*shlex.split(line)[1:], *(small if "task=" in line else [])] for line in lines]
    for words in [["-m", "pe_lab", *words] for words in commands] + [["-c", code]]:
        ended = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=env, capture_output=True, text=True
        )
        assert ended.returncode == 0, f"{words}\n{ended.stdout}\n{ended.stderr}"
    assert len(list((tmp_path / "runs").glob("*/*/seed*/summary.json"))) == 10 + 4


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

class Written(Sums):
    """Claims that its answers are at the end."""
    generates = True
    def sample(self, rng, n):
        bits = self.bits(rng, n)
        scored = np.ones(bits.shape, bool)
        scored[:, -1] = False
        return Batch(bits, self.answers(bits), scored)
'''
SPLITS = "splits: {long: {length: 24}}\n"
PLANTED = {
    "Shifted": "answers follow from what is read",
    "Given": "answers are not given away",
    "Global": "same rng, same batch",
    "Beyond": "shapes and vocabulary",
    "Long": "shapes and vocabulary",
    "Idle": "every key changes something",
    "Written": "one run of answers at the end",
}

MODELS = """
from dataclasses import dataclass
import torch
from torch import nn
from pe_lab.models.base import Model
from pe_lab.models.config import ModelConfig
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
    def forward(self, tokens, pos, cache=None, *, scored=None):
        x = self.embed(tokens, pos, cache)
        n = torch.arange(1, 1 + x.shape[1])[:, None]
        x = x.cumsum(1) / n + x + self.drawn
        if self.fault == "ahead":
            x = x + x.mean(1, keepdim=True)
        if self.p:
            x = nn.functional.dropout(x, self.p)
        return x if scored is None else x.flatten(0, 1)[scored - 1]
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
    assert_refused(ended, PLANTED[name], status=1)


def test_a_task_without_faults_passes(here: Here, mine: Path) -> None:
    ended = succeeded(here("check", "--config-dir", "mine", "task=sums"))
    assert "all the same as then" in ended.out


def test_faults_of_a_model_are_found(here: Here, mine: Path) -> None:
    found = failed(here("check", "--config-dir", "mine", "model=mean").out)
    assert found.keys() >= {
        "gradient to every parameter", "dropout by torch's generator", "cached equals uncached",
        "scored positions", "state_dict round trip", "every key changes something",
    }  # fmt: skip
    found = failed(here("check", "--config-dir", "mine", "model=mean", "model.fault=ahead").out)
    assert "no look at the future" in found


def test_the_example_of_a_model_from_outside_is_checked_and_trained(here: Here) -> None:
    folder = str(ROOT / "examples" / "outside")
    succeeded(here("check", "--config-dir", folder, "model=outside"))
    succeeded(here("--config-dir", folder, *tiny("train.steps=3", "pe=none", "model=outside")))
