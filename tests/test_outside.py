"""``model=outside``: any module from tokens to logits, by a factory."""

import os
import sys
from pathlib import Path

import pytest
import torch
from program import ROOT, Here, assert_has, assert_refused, succeeded, summary, the_run

from pe_lab.check.base import Outcome
from pe_lab.check.suite import check_model
from pe_lab.core.config_dir import refuse_foreign
from pe_lab.core.errors import UsageError
from pe_lab.experiment.load_run import load
from pe_lab.models.config import Vocabulary
from pe_lab.models.outside import OutsideConfig
from pe_lab.pe.base import Dims
from pe_lab.pe.none import NoPE
from pe_lab.train.measure import Evaluator

MEANS = """
import torch
from torch import nn

class Means(nn.Module):
    def __init__(self, vocab_size, width, p, max_len=None):
        super().__init__()
        self.sizes = vocab_size, max_len
        self.tokens = nn.Embedding(vocab_size, width)
        self.head = nn.Sequential(nn.Linear(2 * width, width), nn.GELU(), nn.Dropout(p),
                                  nn.Linear(width, vocab_size))
    def forward(self, tokens):
        x = self.tokens(tokens)
        count = torch.arange(1, tokens.shape[1] + 1)[:, None]
        return self.head(torch.cat((x, x.cumsum(1) / count), -1))

class Ahead(Means):
    def forward(self, tokens):
        all_tokens = self.tokens(tokens).mean(1, keepdim=True)
        return super().forward(tokens) + all_tokens.sum(-1, keepdim=True)

class Batch(Means):
    def forward(self, tokens):
        x = self.tokens(tokens)[:, :1].mean(-1, keepdim=True)
        return super().forward(tokens) * (1 + (x - x.mean(0, keepdim=True)))

class Cached(Means):
    wrong = 0
    def empty_cache(self):
        return {"sum": 0, "n": 0}
    def forward(self, tokens, cache=None):
        if cache is None:
            return super().forward(tokens)
        x = self.tokens(tokens)
        sums = cache["sum"] + x.cumsum(1)
        count = cache["n"] + torch.arange(1, tokens.shape[1] + 1)[:, None]
        cache["sum"], cache["n"] = sums[:, -1:], cache["n"] + tokens.shape[1] + self.wrong
        return self.head(torch.cat((x, sums / count), -1))

class Stale(Cached):
    wrong = 1

class Idle(Means):
    def __init__(self, *args):
        super().__init__(*args)
        self.idle = nn.Parameter(torch.ones(2))

class Frozen(Means):
    def __init__(self, *args):
        super().__init__(*args)
        self.requires_grad_(False)

class Uncached(Means):
    def empty_cache(self):
        return {}

def seeded(vocab_size):
    torch.manual_seed(0)
    return Means(vocab_size, 8, 0.0)

def _made(kind):
    return lambda vocab_size, width=8, p=0.0: kind(vocab_size, width, p)

means, ahead, batch, cached, stale, idle = map(_made, (Means, Ahead, Batch, Cached, Stale, Idle))
frozen, uncached = map(_made, (Frozen, Uncached))
sized = lambda vocab_size, train_len, max_len: Means(vocab_size, 8, 0.0, (train_len, max_len))
embeds = lambda vocab_size: nn.Embedding(vocab_size, vocab_size + 1)
double = lambda vocab_size: Means(vocab_size, 8, 0.0).double()
empty = lambda vocab_size: nn.Identity()
number = lambda vocab_size: 3
fails = lambda vocab_size: 1 / 0
required = lambda vocab_size, depth: None

class Table(nn.Module):
    def __init__(self, vocab_size, train_len):
        super().__init__()
        self.t, self.x = nn.Embedding(train_len, vocab_size), nn.Embedding(vocab_size, vocab_size)
    def forward(self, tokens):
        return self.x(tokens) + self.t(torch.arange(tokens.shape[1]))
rope = Means
sized_table = lambda vocab_size, max_len: Table(vocab_size, max_len)
"""
TINY = {
    **dict.fromkeys(("task.length", "train.batch_size", "eval.quick_sequences"), "16"),
    **{"train.steps": "3", "train.warmup": "2"},
    **{"eval.sequences": "16", "tracker": "none", "pe": "none"},
    **{"model": "outside", "task": "flipflop"},
}


def line(factory: str, *words: str) -> list[str]:
    keys = {word.partition("=")[0] for word in words}
    kept = [f"{key}={value}" for key, value in TINY.items() if key not in keys]
    return ["--config-dir", "mine", *kept, f"model.factory=others_of_tests:{factory}", *words]


@pytest.fixture
def mine(tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.delitem(sys.modules, "others_of_tests", raising=False)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "others_of_tests.py").write_text(MEANS)
    return tmp_path


def test_a_run_is_named_by_its_label_in_every_table(here: Here, mine: Path) -> None:
    succeeded(here(*line("means", "model.arguments.width=4")))
    succeeded(here(*line("means", "model.label=wide", "model.arguments.width=16")))
    found = {path.name for path in (mine / "runs" / "flipflop").iterdir()}
    assert found == {"means", "wide"}
    table = succeeded(here("results", "format=csv")).out
    assert_has(table, "means", "wide")
    shown = succeeded(here("results")).out
    assert_has(shown, "means", "wide")
    assert "factory" not in shown
    assert_has(succeeded(here("runs")).out, "means", "wide")
    (file,) = (mine / "runs").glob("flipflop/means/*/summary.json")
    recorded = summary(file.parent)
    assert recorded["pe"] == recorded["config"]["model"]["label"] == "means"


def test_factory_and_arguments_are_part_of_the_identity(here: Here, mine: Path) -> None:
    words = ("model.label=one", "train.steps=1")
    for factory, more in (("means", ()), ("cached", ()), ("means", ("model.arguments.p=0.1",))):
        succeeded(here(*line(factory, *words, *more)))
    assert len([*(mine / "runs").glob("flipflop/one/seed0-*")]) == 3
    again = here(*line("means", *words))
    assert "is finished already" in again.out
    with open(mine / "mine" / "others_of_tests.py", "a") as file:
        file.write("# changed\n")
    changed = here(*line("means", *words))
    assert "the file of others_of_tests.means changed" in changed.out


def test_one_key_drops_the_same_units(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = built("means", mine, monkeypatch, p=0.5)
    tokens, pos = torch.zeros(2, 8, dtype=torch.long), torch.arange(8)[None]
    before = torch.get_rng_state()
    outs = [model(tokens, pos, key=key) for key in (3, 3, 4)]
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])
    assert torch.equal(before, torch.get_rng_state())


def built(
    factory: str, mine: Path, monkeypatch: pytest.MonkeyPatch, **arguments: object
) -> torch.nn.Module:
    monkeypatch.syspath_prepend(str(mine / "mine"))
    cfg = OutsideConfig(factory=f"others_of_tests:{factory}", arguments=arguments)
    return cfg.build(Vocabulary(5, None, 16, 64), [NoPE(Dims(1, 1, 1, 5, 16, 64))])


def test_the_factory_gets_the_sizes_that_it_names(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert built("sized", mine, monkeypatch).module.sizes == (5, (16, 64))
    assert built("means", mine, monkeypatch).module.sizes == (5, None)


@pytest.mark.extended
def test_a_run_loads_by_the_yaml_that_names_its_factory(here: Here, mine: Path) -> None:
    succeeded(here(*line("means")))
    folder = str(the_run(mine / "runs"))
    # Refused, though the module is imported still.
    assert_refused(here("eval", f"run={folder}", "lengths=32"), "factory is others_of_tests:means")
    (mine / "mine" / "model").mkdir()
    (mine / "mine" / "model" / "averages.yaml").write_text(
        "_target_: pe_lab.models.outside.OutsideConfig\nfactory: others_of_tests:means\n"
        "label: averages\narguments: {}\n"
    )
    succeeded(here("eval", "--config-dir", "mine", f"run={folder}", "lengths=32"))
    swapped = here("eval", "--config-dir", "mine", f"run={folder}", "pe=rope", "lengths=32")
    assert_refused(swapped, "pe=rope has no effect on a model from outside", "set pe=none")
    run = load(folder)
    split = Evaluator(run.plan, run.model, {"in_domain": run.sequences("in_domain")[0]})
    measured = split.answers("in_domain").measured()
    assert measured["error"] == run.summary["metrics"]["in_domain/error"]


def test_a_recorded_factory_is_called_only_where_a_yaml_names_it() -> None:
    for factory in ("torch.hub:load", "pe_lab.core.files:replace_file"):
        section = {"_target_": "pe_lab.models.outside.OutsideConfig", "factory": factory}
        with pytest.raises(UsageError, match=f"names the class {factory}, which"):
            refuse_foreign({"model": section}, Path("run"))


@pytest.mark.parametrize("name", ["torch.hub.load", "subprocess.Popen", "pathlib.Path"])
def test_of_imported_names_only_classes_made_for_pe_lab_are_used(name: str) -> None:
    for config in ({"train": {"optimizer": name}}, {"pe": {"parts": [{"_target_": name}]}}):
        with pytest.raises(UsageError, match=f"names the class {name}, which"):
            refuse_foreign(config, Path("run"))
    refuse_foreign({"pe": {"_target_": f"{__name__}.Mine"}}, Path("run"))


class Mine(NoPE):
    """Imported already, as in a notebook."""


def test_more_tokens_than_a_module_takes_are_one_sentence(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = built("sized_table", mine, monkeypatch).eval()
    assert model(torch.zeros(1, 64, dtype=torch.long), torch.arange(64)[None]).shape[1] == 64
    with pytest.raises(UsageError, match="made for 64 tokens and fails on 65"):
        model(torch.zeros(1, 65, dtype=torch.long), torch.arange(65)[None])

    def full(tokens: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(model.module, "forward", full)
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        model(torch.zeros(1, 65, dtype=torch.long), torch.arange(65)[None])


def test_decoding_without_a_cache_computes_all_again(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = built("means", mine, monkeypatch).eval()
    tokens, pos = torch.randint(0, 5, (2, 8)), torch.arange(8)[None]
    cache = model.empty_cache()
    parts = [model(tokens[:, a:b], pos[:, :b], cache) for a, b in ((0, 5), (5, 6), (6, 8))]
    assert torch.equal(torch.cat(parts, 1), model(tokens, pos))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("gone",), "others_of_tests has no gone"),
        (("means", "model.factory=nowhere:x"), "model.factory=nowhere:x cannot be imported"),
        (("means", "model.factory=others_of_tests"), "names no function: give"),
        (("means", "model.arguments.depth=3"), "unexpected keyword argument 'depth'"),
        (("required",), "missing a required argument: 'depth'"),
        (("means", "model.label=a/b"), "model.label=a/b is not allowed"),
        (("rope", "model.arguments={width: 3, p: 0}"), "model.label=rope is the name of an encod"),
        (("means", "pe=alibi"), "pe=alibi has no effect on a model from outside"),
        (("means", "pe=rope"), "pe=rope has no effect on a model from outside"),
        (("means", "model.factory=builtins:dict"), "model.factory=builtins:dict does not fit"),
        (("embeds",), "torch.float32 for tokens (2, 15)"),
        (("double",), "with torch.float64: give all its parameters the type torch.float32"),
        (("empty",), "with no parameters"),
        (("number",), "returns a int: return a torch.nn.Module"),
        (("means", "model.arguments.vocab_size=3"), "model.arguments.vocab_size=3 is not allowed"),
        (("frozen",), "no parameter of its module has a gradient"),
        (("uncached",), "has empty_cache() and cannot be called as module(tokens, cache=..)"),
        (("fails",), "ZeroDivisionError: division by zero; correct it there"),
        (("Table",), "IndexError: index out of range in self, with tokens of shape (1, 63)"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_input_is_one_sentence(
    here: Here, mine: Path, words: tuple[str, ...], said: str
) -> None:
    factory, *others = words
    words_of_run = line(factory, *others)
    if any(word.startswith("model.factory=") for word in others):
        words_of_run.remove(f"model.factory=others_of_tests:{factory}")
    assert_refused(here(*words_of_run), said)
    assert not (mine / "runs").exists()


def checked(factory: str, mine: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Outcome]:
    monkeypatch.syspath_prepend(str(mine / "mine"))
    target = "pe_lab.models.outside.OutsideConfig"
    section = {"_target_": target, "factory": f"others_of_tests:{factory}"}
    return {one.name: one for one in check_model({**section, "label": None, "arguments": {}})}


@pytest.mark.parametrize(
    ("factory", "failing", "not_claimed"),
    [
        ("means", "", "cached equals uncached"),
        ("cached", "", ""),
        ("ahead", "no look at the future", "cached equals uncached"),
        ("batch", "each sequence by itself", "cached equals uncached"),
        ("stale", "cached equals uncached", ""),
        ("idle", "gradient to every parameter", "cached equals uncached"),
        ("seeded", "state_dict round trip", "cached equals uncached"),
    ],
)
def test_check_finds_each_fault(
    factory: str, failing: str, not_claimed: str, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = checked(factory, mine, monkeypatch)
    states = {"fail": {failing} - {""}, "not claimed": {not_claimed} - {""}}
    for state, names in states.items():
        assert {name for name, one in found.items() if one.state == state} == names
    assert len(found) == 6


@pytest.mark.extended
@pytest.mark.parametrize("name", ["x_transformers_pope", "hf_mamba2", "hf_gated_deltanet"])
def test_the_examples_keep_the_contract(name: str, here: Here) -> None:
    package = "x_transformers" if name.startswith("x_") else "transformers"
    if os.environ.get("PEERS") != "required":
        pytest.importorskip(package)
    found = here("check", "--config-dir", str(ROOT / "examples" / "outside"), f"model={name}")
    assert "fail" not in succeeded(found).out
