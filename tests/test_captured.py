"""train.cuda_graphs: the step that is recorded is the plain one. On a CPU all but the recording.

How equal: in float64, on a CPU, losses and weights differ by less than 1e-10.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from program import ROOT
from test_compiled_step import COPYING, PARTS, assert_same
from test_step import planned
from torch.utils._python_dispatch import TorchDispatchMode

from pe_lab.common.errors import RunError, UsageError
from pe_lab.kernels import build
from pe_lab.store.metrics_log import MetricsLog
from pe_lab.store.run_folder import RunFolder
from pe_lab.training import captured
from pe_lab.training.captured import Captured, FixedStep, room
from pe_lab.training.compiled_loss import CompiledLoss
from pe_lab.training.padded_steps import PaddedSteps
from pe_lab.training.trainer import Trainer

ENCODINGS = sorted(path.stem for path in (ROOT / "conf" / "pe").glob("*.yaml"))
ONE_BY_ONE = {"floater", "recurrent"}
SIZED = ("nonzero", "masked_select", "_unique2", "is_nonzero")


class Unrecorded(Captured):
    """Runs the step that would be recorded."""

    def capture(self, fixed: FixedStep) -> Callable[[], None]:
        return fixed.run


class Reads(TorchDispatchMode):
    """Fails where a number, or a size, is read from a tensor: a recorded step cannot."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        # In inference mode composite operations come whole.
        if name in ("_local_scalar_dense", "item", *SIZED):
            raise AssertionError(f"{name} reads a number")
        return func(*args, **(kwargs or {}))


class Watched(Captured):
    """The step is warmed up, as it is before it is recorded, then watched."""

    def capture(self, fixed: FixedStep) -> Callable[[], None]:
        fixed.run()

        def run() -> None:
            with Reads():
                fixed.run()

        return run


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Trainer]]:
    """``train(steps, *words, by=)``: a trainer after so many steps; ``by`` takes them."""

    def trained(steps: int, *words: str, by: type[Captured] | None = None) -> Trainer:
        made = planned(monkeypatch, *words)
        trainer = Trainer(made, torch.device("cpu"), RunFolder(tmp_path), {}, lambda: None)
        if by is not None:
            padded = PaddedSteps(made, trainer.model, trainer.optimizer, trainer.data)
            padded.captured = by(padded.loss, trainer.optimizer, made.config.train.clip)
            trainer.padded = padded
        for _ in range(steps):
            trainer.train_step()
        return trainer

    yield trained
    torch.set_default_dtype(torch.float32)


CASES = {
    "cope": ("pe=cope", "model.dropout=0.1", "model.n_layers=2"),
    "rope": ("pe=rope", "train.clip=null", "model.norm=rmsnorm", "model.dropout=0.2"),
    "t5, in unequal parts": (
        "pe=t5", "train.accumulate=3", "model.norm_position=post", "train.optimizer=adam",
        "model.dropout=0.1",
    ),
    "all places": ("pe=alibi", "task.loss_on=all", "model.tied_embeddings=true"),
    "answers at the end": (
        "pe=learned", "task=selective_copy", "task.n_copy=12", "task.n_blank=8", "task.n_symbols=3",
        "train.betas=[0.8,0.9]",
    ),
    "lstm": ("model=lstm", "model.d_model=16", "model.n_layers=2", "model.dropout=0.1"),
}  # fmt: skip


@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_a_step_on_memory_that_stays_is_the_plain_one(
    train: Callable[..., Trainer], words: tuple[str, ...]
) -> None:
    torch.set_default_dtype(torch.float64)
    plain, fixed = train(8, *words), train(8, *words, by=Unrecorded)
    assert fixed.padded is not None
    assert isinstance(fixed.padded.captured, Captured)
    # Batches differ in how many places count, and few of the shapes do.
    assert len(fixed.padded.captured.steps) <= 3
    assert fixed.padded.first == (16 if "task=selective_copy" in words else 0)
    assert_same(fixed, plain)


def test_a_run_goes_on_with_the_numbers_of_one_that_never_stopped(
    train: Callable[..., Trainer],
) -> None:
    words = ("pe=cope", "model.dropout=0.1", "task.p_ignore=0.3")
    whole = train(7, *words, by=Unrecorded)
    half = train(3, *words, by=Unrecorded)
    half.folder.make()
    half.log = MetricsLog(half.folder.metrics, 0)
    half.save()
    again = train(0, *words, by=Unrecorded)
    assert again.resume()
    for _ in range(4):
        again.train_step()
    assert float(again.loss_sum) == float(whole.loss_sum)
    for name, weights in whole.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], weights), name


@pytest.mark.slow
def test_compiled_too(train: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch) -> None:
    """Both keys at once."""
    monkeypatch.setattr(CompiledLoss, "backend", "aot_eager")
    torch.set_default_dtype(torch.float64)
    words = ("pe=cope", "model.dropout=0.1")
    assert_same(train(3, *words, "train.compile=true", by=Unrecorded), train(3, *words))
    torch.compiler.reset()


@pytest.mark.parametrize(
    "pe",
    [
        pytest.param(pe, marks=() if pe in ("cope", "t5", "transformer_xl") else pytest.mark.slow)
        for pe in ENCODINGS
        if pe not in ONE_BY_ONE
    ],
)
def test_a_recorded_step_reads_no_number(
    train: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch, pe: str
) -> None:
    # A kernel on a CPU may; those for a GPU are not there.
    monkeypatch.setenv("PE_LAB_ROAD", "eager")
    train(2, f"pe={pe}", *PARTS.get(pe, ()), "model.n_layers=2", "model.dropout=0.1", by=Watched)


@pytest.mark.parametrize("pe", ["t5", "rope"])
def test_what_attends_in_blocks_reads_no_number(
    train: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch, pe: str
) -> None:
    """As a GPU does where something is dropped and positions are distances or turns."""
    monkeypatch.setenv("PE_LAB_ROAD", "chunked")
    train(2, f"pe={pe}", "model.dropout=0.1", by=Watched)


@pytest.mark.parametrize("road", ["compiled", "chunked"])
def test_the_watch_sees_what_reads(
    train: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch, road: str
) -> None:
    """Or the tests above would see nothing; in blocks CoPE asks how far it has counted."""
    if road == "compiled" and build.library("cope") is None:
        pytest.skip("there is no compiler")
    monkeypatch.setenv("PE_LAB_ROAD", road)
    with pytest.raises(AssertionError, match="reads a number"):
        train(1, "pe=cope", "model.dropout=0.1", by=Watched)


def test_few_shapes_are_recorded_and_others_run_as_they_are(
    train: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [room(n) for n in (0, 16, 17, 24, 25, 33, 200, 205, 257)] == [
        16, 16, 24, 24, 32, 48, 256, 256, 384,
    ]  # fmt: skip
    monkeypatch.setattr(captured, "MOST", 1)
    monkeypatch.setattr(captured, "room", int)
    monkeypatch.setattr("pe_lab.training.padded_steps.room", lambda n: n)
    recorded = []

    class Noted(Unrecorded):
        def capture(self, fixed: FixedStep) -> Callable[[], None]:
            recorded.append(fixed)
            return super().capture(fixed)

    torch.set_default_dtype(torch.float64)
    several = train(6, "pe=none", by=Noted)
    assert several.padded is not None
    assert several.padded.captured is not None
    assert len(recorded) == 1 < len(several.padded.captured.steps)
    assert_same(several, train(6, "pe=none"))


def test_what_is_no_number_ends_the_run(train: Callable[..., Trainer]) -> None:
    words = ("train.lr=1e30", "train.clip=null", "train.warmup=1", "train.optimizer=adam")
    with pytest.raises(RunError, match="is not finite at step"):
        train(9, *words, by=Unrecorded)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_cpu_records_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError) as told:
        planned(monkeypatch, "train.cuda_graphs=true")
    assert str(told.value) == (
        "train.cuda_graphs=true is not allowed with device=auto here, where steps run on the CPU: "
        "give device=cuda on a machine with a GPU, or leave it false"
    )


REFUSED = {
    "train.fast=false": ("train.fast=false",),
    "positions=offset": ("positions=offset", "positions.max=64"),
    "pe=recurrent": ("pe=recurrent",),
    "model=seq2seq": ("model=seq2seq", "model.d_model=16", *COPYING),
}


@pytest.mark.parametrize("named", REFUSED)
def test_what_cannot_be_recorded_is_refused(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    with pytest.raises(UsageError) as told:
        planned(monkeypatch, *REFUSED[named], "train.cuda_graphs=true")
    assert str(told.value).startswith(f"train.cuda_graphs=true is not allowed with {named}, ")
