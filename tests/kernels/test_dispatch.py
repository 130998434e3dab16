"""Every backend equals the eager code, and one that does not is not taken."""

import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from compiler import needs_compiler
from held import (
    GATES,
    SIZES,
    Attend,
    Size,
    cope_inputs,
    distance_inputs,
    hold_cope,
    hold_distance,
    results,
)
from torch import Tensor

from pe_lab.common.dropout import Drop
from pe_lab.kernels import chunked, dispatch

ON_CPU = [
    pytest.param(backend, marks=needs_compiler if backend.name == "cpu" else ())
    for backend in dispatch.BACKENDS
    if backend.device in (None, "cpu")
]
every_road = pytest.mark.parametrize("backend", ON_CPU, ids=lambda backend: backend.name)
every_size = pytest.mark.parametrize("size", SIZES, ids=str)
both_types = pytest.mark.parametrize("dtype", dispatch.FULL, ids=str)

KEY = 2**62 + 2**31 + 5


@pytest.fixture
def unproved() -> Iterator[None]:
    """What a test makes of a backend is not believed by another test."""
    dispatch.verified.cache_clear()
    yield
    dispatch.verified.cache_clear()


@both_types
@every_size
@every_road
def test_cope_equals_the_eager_code(
    backend: dispatch.Backend, size: Size, dtype: torch.dtype
) -> None:
    attend = dispatch.verified(backend, "cope", "cpu", dtype)
    assert attend is not None
    for gates in GATES:
        hold_cope(attend, size, gates, npos=7, dtype=dtype)
    for npos in (1, 2, size.s + 1, 3 * size.s):
        hold_cope(attend, size, "keys", npos, dtype)


@both_types
@every_size
@every_road
def test_distance_equals_the_eager_code(
    backend: dispatch.Backend, size: Size, dtype: torch.dtype
) -> None:
    attend = dispatch.verified(backend, "distance", "cpu", dtype)
    assert attend is not None
    hold_distance(attend, size, dtype)


def wrong_value(attend: Attend) -> Attend:
    return lambda *given: attend(*given) * 1.01


def wrong_gradient(attend: Attend) -> Attend:
    def lying(*given: Tensor) -> Tensor:
        out = attend(*given)
        return out + (out - out.detach()) * 0.01

    return lying


def not_a_number(attend: Attend) -> Attend:
    return lambda *given: attend(*given) * torch.nan


def broken(attend: Attend) -> Attend:
    def failing(*given: Tensor) -> Tensor:
        raise RuntimeError("no such instruction")

    return failing


LIES = [(wrong_value, "value"), (wrong_gradient, "gradient"), (not_a_number, "value")]
LIES += [(broken, "no such instruction")]


@pytest.mark.parametrize("kind", dispatch.KINDS)
@pytest.mark.parametrize(("lie", "word"), LIES)
def test_a_road_that_lies_is_not_taken(
    lie: object,
    word: str,
    kind: str,
    unproved: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(chunked, kind, lie(getattr(chunked, kind)))  # type: ignore[operator]
    size = SIZES[0]
    given = [*cope_inputs(size, "keys", 3, torch.float32), 1.0, None]
    if kind == "distance":
        given = [*distance_inputs(size, torch.float32), Drop(0.1, 1)]
    with caplog.at_level(logging.WARNING, "pe_lab"), dispatch.only("chunked"):
        assert getattr(dispatch, kind)(*given) is None
        assert getattr(dispatch, kind)(*given) is None
        assert dispatch.backend_names(torch.device("cpu"))[kind] == "eager"
    (said,) = [record.getMessage() for record in caplog.records]
    assert "chunked" in said
    assert word in said


def test_the_next_road_serves(unproved: None, monkeypatch: pytest.MonkeyPatch) -> None:
    liar = dispatch.Backend("liar", {"cope": "pe_lab.kernels.nowhere"}, "cpu")
    monkeypatch.setattr(dispatch, "BACKENDS", (liar, dispatch.BACKENDS[-1]))
    assert dispatch.backend_names(torch.device("cpu")) == {"cope": "chunked", "distance": "chunked"}


def test_a_proof_imports_nothing_large() -> None:
    """Every run waits for it."""
    code = (
        "import sys, torch; from pe_lab.kernels import dispatch; "
        "dispatch.backend_names(torch.device('cpu')); sys.exit('sympy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_only_and_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [*cope_inputs(SIZES[1], "keys", 3, torch.float32), 1.0, None]
    with dispatch.only("eager"):
        assert dispatch.cope(*given) is None
    monkeypatch.setenv("PE_LAB_BACKEND", "chunked")
    assert dispatch.backend_names(torch.device("cpu")) == {"cope": "chunked", "distance": "chunked"}
    monkeypatch.setenv("PE_LAB_BACKEND", "shortcut")
    with pytest.raises(ValueError, match="unknown backend 'shortcut': choose one of cpu, "):
        dispatch.cope(*given)


def test_chunked_is_left_where_eager_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "BACKENDS", dispatch.BACKENDS[-1:])
    long, short = Size(8, 1, 128, 128, 4), Size(8, 1, 100, 100, 4)
    for size, served in ((long, True), (short, False)):
        given = cope_inputs(size, "keys", 3, torch.float32)
        assert (dispatch.cope(*given, 1.0, None) is not None) is served
    q, k, v, bias = distance_inputs(long, torch.float32)
    assert dispatch.distance(q, k, v, bias, None) is None
    assert dispatch.distance(q, k, v, bias, Drop(0.1, 1)) is not None
    assert dispatch.distance(q, k, v, bias.requires_grad_(), None) is not None


def test_several_models_at_once_are_left_to_the_eager_code() -> None:
    given = cope_inputs(SIZES[1], "keys", 3, torch.float64)
    many = [x.expand(2, *x.shape) for x in given]
    seen = []

    def one(*one_of_many: Tensor) -> Tensor:
        seen.append(dispatch.cope(*one_of_many, 1.0, None))
        return one_of_many[0]

    with dispatch.only("chunked"):
        torch.func.vmap(one)(*many)
        assert seen == [None]

        def keyed(key: Tensor) -> Tensor:
            seen.append(dispatch.cope(*given, 1.0, Drop(0.1, key)))
            return key

        torch.func.vmap(keyed)(torch.tensor([5, 6]))
        assert seen == [None, None]


@pytest.mark.parametrize("backend", ON_CPU, ids=lambda backend: backend.name)
def test_a_key_may_lie_in_memory(backend: dispatch.Backend) -> None:
    given = cope_inputs(SIZES[1], "keys", 3, torch.float64)
    with dispatch.only(backend.name):
        number, tensor = (
            dispatch.cope(*given, 1.0, Drop(0.1, key)) for key in (KEY, torch.tensor(KEY))
        )
    assert number is not None
    assert torch.equal(number, tensor)


def test_half_precision_and_autocast() -> None:
    given = cope_inputs(SIZES[1], "keys", 3, torch.float32)
    assert dispatch.cope(*(x.bfloat16() for x in given), 1.0, None) is None
    with dispatch.only("chunked"):
        plain = results(lambda *x: dispatch.cope(*x, 1.0, None), given)
        with torch.autocast("cpu", torch.bfloat16):
            cast = results(lambda *x: dispatch.cope(*x, 1.0, None), given)
    assert plain is not None
    assert cast is not None
    assert all(torch.equal(x, y) for x, y in zip(plain, cast, strict=True))
