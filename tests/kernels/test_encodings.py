"""Kernels of encodings, and FLOATER's path with its gradient written out, equal the hooks."""

import copy
from typing import Any

import pytest
import torch
from compiler import needs_compiler
from fast import accelerated

from docs import facts
from pe_lab.kernels import dispatch
from pe_lab.kernels.floater import FastSlope
from pe_lab.kernels.requests import Request
from pe_lab.models.config import Vocabulary
from pe_lab.pe.floater import Slope
from pe_lab.train.encodings import build_encodings

LENGTH = 71
# Tables shorter than the sequence, whose last row is that of all further distances.
BY_PLACES: dict[str, list[dict[str, Any]]] = {
    "relative": [{}, {"share_layers": False}],
    "shaw": [{}, {"values": False, "clip": 100}],
    "transformer_xl": [{}],
    "dape": [{}, {"base": "kerple"}],
    "deberta": [{}, {"clip": 9, "mirrored": False}],
    "rerope": [{"window": 5}, {"pairing": "half", "logn": "train"}],
    "leaky_rerope": [{"window": 66, "k": 3}],
    "self_extend": [{"window": 5, "group": 3}],
}
WINDOWED = ("rerope", "leaky_rerope", "self_extend")
AT_ANY: dict[str, list[dict[str, Any]]] = {
    "fox": [{}],
    "fire": [{}],
    "tupe": [{}],
    "stick_breaking": [{}, {"remainder": "self"}],
    "path": [{}, {"forget": True, "rank": None}],
    "combined": [{"parts": facts.parts("stick_breaking", "rope", "learned")}],
}
CASES = [
    pytest.param(name, keys, name in BY_PLACES, id=f"{name}-{keys}")
    for name, changes in {**BY_PLACES, **AT_ANY}.items()
    for keys in changes
]


@needs_compiler
@pytest.mark.parametrize(("name", "keys", "of_places"), CASES)
def test_values_and_gradients_are_those_of_the_hooks(
    name: str, keys: dict[str, Any], of_places: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where positions skip some, tables by the distance of places do not serve. The kernel of the
    windowed encodings has values only."""
    served: list[bool] = []
    kind = {"combined": "stick_breaking", **dict.fromkeys(WINDOWED, "near_far")}.get(name, name)
    kind = kind if kind in ("dape", "near_far", "path", "stick_breaking") else "distance"
    real = dispatch.attend

    def counted(request: Request) -> torch.Tensor | None:
        out = real(request)
        assert request.kind == kind
        served.append(out is not None)
        return out

    monkeypatch.setattr(dispatch, "attend", counted)
    torch.manual_seed(0)
    with facts.float64(0):
        encodings = build_encodings({**facts.section(name), **keys}, facts.dims(2 * LENGTH))
        plain = facts.small_model().build(Vocabulary(facts.VOCAB), encodings)
        facts.move(encodings)
    fast = accelerated(copy.deepcopy(plain))
    seen = torch.randint(facts.VOCAB, (2, LENGTH))
    places = torch.arange(LENGTH)[None]
    for pos in (places, 2 * places):
        for gradients in (True, False):
            served.clear()
            found = []
            for model in (plain, fast):
                with torch.set_grad_enabled(gradients):
                    out = model(seen, pos)
                found.append([out])
                if gradients:
                    slope = torch.linspace(-9, 9, out.numel()).to(out).sin().view(out.shape)
                    leaves = [p for p in model.parameters() if p is not model.head.weight]
                    found[-1] += torch.autograd.grad(out, leaves, slope)
            fits = pos is places or not of_places
            assert any(served) == (fits and not (gradients and name in WINDOWED))
            for x, y in zip(*found, strict=True):
                torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("n", "steps"), [(2, 1), (33, 1), (7, 3)])
def test_path_and_gradients(n: int, steps: int) -> None:
    torch.manual_seed(0)
    plain = Slope(6).double()
    fast = FastSlope(6).double()
    fast.load_state_dict(plain.state_dict())
    start = torch.randn(6, dtype=torch.float64, requires_grad=True)
    direction = torch.randn(n, 6, dtype=torch.float64)
    found = []
    for slope in (plain, fast):
        path = slope.path(start, n, steps, 0.3)
        leaves = [start, *slope.parameters()]
        found.append([path, *torch.autograd.grad((path * direction).sum(), leaves)])
    assert torch.equal(found[0][0], found[1][0])
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)
    assert all(bool(x.any()) for x in found[1])


def test_a_single_position_is_the_start() -> None:
    start = torch.randn(6, requires_grad=True)
    path = FastSlope(6).path(start, 1, 2, 0.3)
    assert torch.equal(path, start[None])
    path.sum().backward()
    assert torch.equal(start.grad, torch.ones(6))
