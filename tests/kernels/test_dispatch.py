"""A kernel is used only after its self-check, and only where it is allowed and supported."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from attention_cases import Attend, Size, inputs
from compiler import needs_compiler
from torch import Tensor

from pe_lab.kernels import dispatch, reference, selfcheck
from pe_lab.kernels.cpu import build
from pe_lab.pe.rotation import Rotation

SIZE = Size(1, 2, 33, 33, 8)
each_kind = pytest.mark.parametrize("kind", dispatch.KINDS)


def ask(kind: str, dtype: torch.dtype = torch.float32, size: Size = SIZE) -> Tensor | None:
    """What ``dispatch`` computes of this kind of attention."""
    tensors, rest = inputs(kind, size, torch.float32)
    out: Tensor | None = getattr(dispatch, kind)(*(x.to(dtype) for x in tensors), *rest, None)
    return out


@pytest.fixture(autouse=True)
def unverified() -> Iterator[None]:
    """No test relies on another's self-checks."""
    dispatch.verified.cache_clear()
    yield
    dispatch.verified.cache_clear()


def use(monkeypatch: pytest.MonkeyPatch, **kernels: Attend) -> None:
    """Backends of these names, each with one function for all kinds of attention."""
    backends = []
    for name, attend in kernels.items():
        functions = SimpleNamespace(**dict.fromkeys(dispatch.KINDS, attend))
        monkeypatch.setitem(sys.modules, f"backend_{name}", functions)
        modules = dict.fromkeys(dispatch.KINDS, f"backend_{name}")
        backends.append(dispatch.Backend(name, modules, None))
    monkeypatch.setattr(dispatch, "BACKENDS", tuple(backends))


def formula(*arguments: object) -> Tensor:
    """The reference of the kind, recognized by its arguments."""
    kind = {5: "distance", 7: "path", 8: "cope", 10: "relative"}[len(arguments)]
    kind = "stick_breaking" if isinstance(arguments[3], bool) else kind
    kind = "dape" if kind == "cope" and not isinstance(arguments[6], float) else kind
    kind = "near_far" if any(isinstance(x, Rotation) for x in arguments) else kind
    return reference.REFERENCE[kind](*arguments)


def wrong_value(*arguments: object) -> Tensor:
    return formula(*arguments) * 1.01


def wrong_gradient(*arguments: object) -> Tensor:
    out = formula(*arguments)
    return out + (out - out.detach()) * 0.01


def not_a_number(*arguments: object) -> Tensor:
    return formula(*arguments) * torch.nan


def broken(*arguments: object) -> Tensor:
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
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if reason == "gradient" and kind in selfcheck.FORWARD_ONLY:
        pytest.skip("a kernel without gradients")
    use(monkeypatch, fake=attend)
    with caplog.at_level(logging.WARNING, "pe_lab"):
        assert ask(kind) is None
        assert ask(kind) is None
        assert dispatch.backend_names(torch.device("cpu"))[kind] == "eager"
    (warning,) = [r.getMessage() for r in caplog.records if kind in r.getMessage()]
    assert warning.startswith(f"the fake kernel of {kind} attention failed its self-check (")
    assert reason in warning


def test_a_wrong_small_kernel_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(build, "library", lambda name: object())
    with caplog.at_level(logging.WARNING, "pe_lab"):
        assert not selfcheck.cpu_kernel_passes("dropout", torch.float32, lambda _: False)
    assert [r.getMessage() for r in caplog.records] == [
        "CPU kernel 'dropout' failed its self-check; falling back to PyTorch"
    ]


@each_kind
def test_the_next_backend_is_used(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, fake=broken, right=formula)
    assert dispatch.backend_names(torch.device("cpu"), [kind]) == {kind: "right"}
    assert ask(kind) is not None


def test_a_self_check_imports_nothing_large() -> None:
    """Every run waits for it."""
    code = (
        "import sys, torch; from pe_lab.kernels import dispatch; "
        "dispatch.backend_names(torch.device('cpu')); sys.exit('sympy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@each_kind
def test_a_single_backend_can_be_chosen(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, right=formula)
    with dispatch.only("eager"):
        assert ask(kind) is None
    monkeypatch.setenv("PE_LAB_BACKEND", "eager")
    assert ask(kind) is None
    assert dispatch.backend_names(torch.device("cpu"), [kind]) == {kind: "eager"}
    monkeypatch.setenv("PE_LAB_BACKEND", "shortcut")
    with pytest.raises(ValueError, match="unknown backend 'shortcut': choose one of cpu, "):
        ask(kind)


@each_kind
def test_half_precision_and_autocast(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel without half precision does not get it, nor is it inside autocast's reach."""
    use(monkeypatch, right=formula)
    assert ask(kind, torch.bfloat16) is None
    plain = ask(kind)
    with torch.autocast("cpu", torch.bfloat16):
        cast = ask(kind)
    assert plain is not None
    assert cast is not None
    assert torch.equal(plain, cast)


@needs_compiler
@each_kind
def test_a_single_query_is_left_to_pytorch(kind: str) -> None:
    assert ask(kind, size=Size(2, 2, 1, 70, 8)) is None
    assert ask(kind, size=Size(2, 2, 2, 70, 8)) is not None
