"""train.compile: the step that torch.compile makes is the plain one, and is made once.

How equal: in float64 losses and weights differ by less than 1e-10. In float32 the losses of the
first steps differ by less than 1e-5 of them.

Most of it is held by the compiler's front alone ("aot_eager"): what it traces is run by PyTorch,
operation by operation. What Inductor makes of that is slow to build, so slow tests hold it.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from program import ROOT
from test_step import planned

from pe_lab.common.errors import RunError, UsageError
from pe_lab.kernels import build, roads
from pe_lab.store.metrics_log import MetricsLog
from pe_lab.store.run_folder import RunFolder
from pe_lab.training.compiled_loss import CompiledLoss
from pe_lab.training.trainer import Trainer

ENCODINGS = sorted(path.stem for path in (ROOT / "conf" / "pe").glob("*.yaml"))
ONE_BY_ONE = {"floater", "recurrent"}
PARTS = {"combined": ("pe.parts=[cope,rope]",)}

Train = Callable[..., Trainer]


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Train]:
    """``train(steps, *words)``: a trainer after so many steps."""

    def trained(steps: int, *words: str) -> Trainer:
        made = planned(monkeypatch, *words)
        trainer = Trainer(made, torch.device("cpu"), RunFolder(tmp_path), {}, lambda: None)
        for _ in range(steps):
            trainer.train_step()
        return trainer

    yield trained
    torch.set_default_dtype(torch.float32)
    torch.compiler.reset()


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is traced is not compiled further."""
    monkeypatch.setattr(CompiledLoss, "backend", "aot_eager")


def graphs() -> int:
    """How often something was compiled."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def assert_same(one: Trainer, other: Trainer) -> None:
    """In float64."""
    assert float((one.loss_sum - other.loss_sum).abs()) < 1e-10
    mine, its = one.model.state_dict(), other.model.state_dict()
    assert list(mine) == list(its)
    for name, weights in mine.items():
        torch.testing.assert_close(weights, its[name], rtol=0, atol=1e-10, msg=name)


def case(*words: str, graphs: int = 1, slow: bool = False) -> Any:
    return pytest.param(words, graphs, marks=pytest.mark.slow if slow else ())


CASES = {
    "cope": case("pe=cope", "model.dropout=0.1"),
    "rope": case("pe=rope", "model.norm=rmsnorm", "train.clip=null", "model.n_layers=2", slow=True),
    "t5, in unequal parts": case(
        "pe=t5", "train.accumulate=3", "model.norm_position=post", "train.optimizer=adam",
        "model.dropout=0.1", graphs=2, slow=True,
    ),
    "all places": case(
        "pe=alibi", "task.loss_on=all", "model.tied_embeddings=true", "model.dropout=0.1"
    ),
    "gau": case("model=gau", "pe=rope", "model.d_model=16", "model.head_width=8", slow=True),
    "linear_attention": case("model=linear_attention", "pe=rope", "model.d_model=16", slow=True),
}  # fmt: skip


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(("words", "most"), CASES.values(), ids=CASES)
def test_a_compiled_step_is_the_plain_one_and_is_compiled_once(
    train: Train, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], most: int
) -> None:
    """However many places count; with the kernels that serve the plain one, where they are ours
    and compiled."""
    from pe_lab.kernels import traced

    taken = set()
    attended = traced.attended

    def noted(road: str, kind: str, *given: Any) -> Any:
        taken.add((road, kind))
        return attended(road, kind, *given)

    monkeypatch.setattr(traced, "attended", noted)
    torch.set_default_dtype(torch.float64)
    words = (*words, "task.p_ignore=0.5")
    plain, before = train(5, *words), graphs()
    compiled = train(5, *words, "train.compile=true")
    assert graphs() - before == most
    assert_same(compiled, plain)
    serves = roads.named(torch.device("cpu")).items()
    assert taken <= {(road, kind) for kind, road in serves if road == "compiled"}
    if "pe=cope" in words and build.library("cope") is not None:
        assert taken


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
def test_a_run_goes_on_with_the_numbers_of_one_that_never_stopped(train: Train) -> None:
    words = ("pe=cope", "model.dropout=0.1", "train.compile=true")
    whole = train(5, *words)
    half = train(2, *words)
    half.folder.make()
    half.log = MetricsLog(half.folder.metrics, 0)
    half.save()
    again = train(0, *words)
    assert again.resume()
    for _ in range(3):
        again.train_step()
    assert float(again.loss_sum) == float(whole.loss_sum)
    for name, weights in whole.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], weights), name


@pytest.mark.usefixtures("traced")
def test_what_cannot_be_traced_is_one_sentence(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pe_lab.pe.none import NoPE

    def asking(self: NoPE, x: Any, *_: Any) -> Any:
        return x * (1 + float(x.detach().mean()))

    monkeypatch.setattr(NoPE, "embed", asking)
    with pytest.raises(RunError, match=r"true is not possible here, .*: set train.compile"):
        train(1, "pe=none", "train.compile=true")


COPYING = ("task=selective_copy", "task.n_copy=3", "task.n_blank=2", "task.n_symbols=3")
REFUSED = {
    "train.fast=false": ("train.fast=false",),
    "positions=randomized": ("positions=randomized", "positions.max=64"),
    "pe=recurrent": ("pe=recurrent",),
    "pe=floater": ("pe=floater",),
    "pe=combined": ("pe=combined", "pe.parts=[recurrent,rope]"),
    "model=lstm": ("model=lstm", "model.d_model=16"),
    "model=gru": ("model=gru", "model.d_model=16"),
    "model=seq2seq": ("model=seq2seq", "model.d_model=16", *COPYING),
    "model=encoder_decoder": ("model=encoder_decoder", "model.d_model=16", *COPYING),
}


@pytest.mark.parametrize("named", REFUSED)
def test_what_cannot_be_compiled_is_refused(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    with pytest.raises(UsageError) as told:
        planned(monkeypatch, *REFUSED[named], "train.compile=true")
    assert str(told.value).startswith(f"train.compile=true is not allowed with {named}, ")
    assert str(told.value).endswith("or leave train.compile false")
    planned(monkeypatch, *REFUSED[named])


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config

    told = r"needs a C\+\+ compiler, and torch finds none: install"
    with config.patch({"cpp.cxx": ("no-such-compiler",)}), pytest.raises(UsageError, match=told):
        planned(monkeypatch, "train.compile=true")


def wide_step(train: Train, *words: str, double: bool) -> None:
    """Inductor's step beside the plain one."""
    torch.set_default_dtype(torch.float64 if double else torch.float32)
    plain, compiled = train(3, *words), train(3, *words, "train.compile=true")
    if double:
        assert_same(compiled, plain)
    else:
        assert float(compiled.loss_sum) == pytest.approx(float(plain.loss_sum), rel=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("error:Torchinductor")
@pytest.mark.parametrize("double", [True, False], ids=["float64", "float32"])
@pytest.mark.parametrize("pe", ["cope", "rope"])
def test_inductor_makes_the_plain_step(train: Train, pe: str, double: bool) -> None:
    words = (f"pe={pe}", "model.dropout=0.1", "model.n_layers=2")
    before = graphs()
    wide_step(train, *words, double=double)
    assert graphs() - before == 1


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("pe", [pe for pe in ENCODINGS if pe not in ONE_BY_ONE])
def test_every_encoding_is_traced(train: Train, pe: str) -> None:
    words = (f"pe={pe}", *PARTS.get(pe, ()), "model.n_layers=2", "model.dropout=0.1")
    wide_step(train, *words, double=True)
