"""A kernel is used only after its self-check, and only where it is allowed and supported."""

import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from attention_cases import Attend, Size, inputs, request
from compiler import needs_compiler
from torch import Tensor

from pe_lab.kernels import dispatch
from pe_lab.kernels.cpu import build, pointwise
from pe_lab.kernels.requests import Request

SIZE = Size(1, 2, 33, 33, 8)
each_kind = pytest.mark.parametrize("kind", dispatch.KERNELS, ids=lambda kind: kind.kind)


def ask(
    kind: type[Request], dtype: torch.dtype = torch.float32, size: Size = SIZE
) -> Tensor | None:
    """What ``dispatch`` computes of this kind of attention."""
    tensors, rest = inputs(kind.kind, size, torch.float32)
    return dispatch.attend(request(kind.kind, *(x.to(dtype) for x in tensors), *rest, None))


@pytest.fixture(autouse=True)
def unverified() -> Iterator[None]:
    """No test relies on another's self-checks."""
    dispatch.verified.cache_clear()
    yield
    dispatch.verified.cache_clear()


def use(monkeypatch: pytest.MonkeyPatch, attend: Attend) -> None:
    """One function as the kernel of all kinds of attention."""
    monkeypatch.setattr(dispatch, "KERNELS", dict.fromkeys(dispatch.KERNELS, attend))


def formula(given: Request) -> Tensor:
    return given.formula()


def wrong_value(given: Request) -> Tensor:
    return given.formula() * 1.01


def wrong_gradient(given: Request) -> Tensor:
    out = given.formula()
    return out + (out - out.detach()) * 0.01


def not_a_number(given: Request) -> Tensor:
    return given.formula() * torch.nan


def broken(given: Request) -> Tensor:
    raise RuntimeError("no such instruction")


@each_kind
@pytest.mark.parametrize(
    ("attend", "reason"),
    [
        (wrong_value, "value"),
        (wrong_gradient, "gradient"),
        (not_a_number, "value"),
        (broken, "no such instruction"),
    ],
)
def test_a_wrong_kernel_is_not_used(
    attend: Attend,
    reason: str,
    kind: type[Request],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if reason == "gradient" and not kind.has_gradients:
        pytest.skip("a kernel without gradients")
    use(monkeypatch, attend)
    with caplog.at_level(logging.WARNING, "pe_lab"):
        assert ask(kind) is None
        assert ask(kind) is None
        assert dispatch.backend_names(torch.device("cpu"))[kind.kind] == "eager"
    (warning,) = [r.getMessage() for r in caplog.records if f" {kind.kind} " in r.getMessage()]
    assert warning.startswith(f"the kernel of {kind.kind} attention failed its self-check (")
    assert reason in warning


def test_a_wrong_small_kernel_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(build, "library", lambda name: object())
    with caplog.at_level(logging.WARNING, "pe_lab"):
        assert not pointwise.cpu_kernel_passes("dropout", torch.float32, lambda _: False)
    assert [r.getMessage() for r in caplog.records] == [
        "CPU kernel 'dropout' failed its self-check; falling back to PyTorch"
    ]


@pytest.mark.extended
def test_a_self_check_imports_nothing_large() -> None:
    """Every run waits for it."""
    code = (
        "import sys, torch; from pe_lab.kernels import dispatch; "
        "dispatch.backend_names(torch.device('cpu')); sys.exit('sympy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@each_kind
def test_a_single_backend_can_be_chosen(
    kind: type[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, formula)
    assert dispatch.backend_names(torch.device("cpu"), [kind]) == {kind.kind: "cpu"}
    with dispatch.only("eager"):
        assert ask(kind) is None
    monkeypatch.setenv("PE_LAB_BACKEND", "eager")
    assert ask(kind) is None
    assert dispatch.backend_names(torch.device("cpu"), [kind]) == {kind.kind: "eager"}
    monkeypatch.setenv("PE_LAB_BACKEND", "shortcut")
    with pytest.raises(ValueError, match="unknown backend 'shortcut': choose one of cpu, "):
        ask(kind)


@each_kind
def test_half_precision_and_autocast(kind: type[Request], monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel without half precision does not get it, nor is it inside autocast's reach."""
    use(monkeypatch, formula)
    assert ask(kind, torch.bfloat16) is None
    plain = ask(kind)
    with torch.autocast("cpu", torch.bfloat16):
        cast = ask(kind)
    assert torch.equal(plain, cast)


@needs_compiler
@each_kind
def test_a_single_query_is_left_to_pytorch(kind: type[Request]) -> None:
    assert ask(kind, size=Size(2, 2, 1, 70, 8)) is None
    assert ask(kind, size=Size(2, 2, 2, 70, 8)) is not None
