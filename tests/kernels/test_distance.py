"""The compiled attention with a bias by distance, and dropout, against the plain formulas."""

import math
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch
from compiler import needs_compiler
from torch import Tensor

from pe_lab.common.dropout import Drop, attention_rows
from pe_lab.kernels.cpu import build, distance

DROP = Drop(0.3, 0x123456789ABCDEF)
# Of values and gradients, relative to the largest of them.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}

pytestmark = needs_compiler


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def plain(
    q_BHTD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, bias_HN: Tensor | None, drop: Drop | None
) -> Tensor:
    """The formula."""
    t, s = q_BHTD.shape[-2], k_BHSD.shape[-2]
    distances = torch.arange(s - t, s)[:, None] - torch.arange(s)
    logits = q_BHTD @ k_BHSD.transpose(-1, -2) / math.sqrt(q_BHTD.shape[-1])
    if bias_HN is not None:
        logits = logits + bias_HN[:, distances.clamp(min=0)]
    weights = logits.masked_fill(distances < 0, -math.inf).softmax(-1)
    if drop is not None:
        weights = drop(weights, attention_rows(weights))
    return weights @ v_BHSD


def given(
    b: int, h: int, t: int, s: int, d: int, dtype: torch.dtype = torch.float64, size: float = 1
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k and v as Attention has them, views of one tensor, and a bias with room to spare."""
    generator = torch.Generator().manual_seed(t * 1000 + s)
    qkv = torch.randn(b, s, 3 * h * d, dtype=torch.float64, generator=generator).to(dtype) * size
    q, k, v = (x.unflatten(-1, (h, d)).transpose(1, 2) for x in qkv.chunk(3, -1))
    bias = torch.randn(h, s + 5, dtype=torch.float64, generator=generator).to(dtype)
    return tuple(x.requires_grad_() for x in (q[:, :, s - t :], k, v, bias))  # type: ignore[return-value]


def result(
    backend: Callable[..., Tensor], inputs: tuple[Tensor | None, ...], drop: Drop | None
) -> list[Tensor]:
    """The output, and the gradients of all inputs that are wanted."""
    out = backend(*inputs, drop)
    wanted = [x for x in inputs if x is not None and x.requires_grad]
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    return [out.detach(), *torch.autograd.grad(out, wanted, grad.to(out.dtype))]


def assert_same(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    assert len(found) == len(expected)
    for x, y in zip(found, expected, strict=True):
        assert x.shape == y.shape
        size = y.abs().max() or max(z.abs().max() for z in expected)
        assert (x.double() - y.double()).abs().max() <= tolerance * size


# B, H, T, S, D: single tokens, blocks just too short and too long, odd widths, few queries.
SHAPES = [
    (2, 3, 5, 5, 4),
    (1, 1, 1, 1, 1),
    (2, 2, 64, 64, 16),
    (1, 2, 63, 63, 32),
    (1, 2, 65, 65, 8),
    (1, 2, 200, 200, 64),
    (2, 1, 129, 129, 3),
    (2, 2, 77, 131, 24),
    (1, 2, 1, 300, 17),
    (1, 1, 100, 333, 256),
    (1, 3, 64, 65, 7),
    (4, 4, 130, 130, 8),  # many heads: none is cut into parts
]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("drop", [None, DROP])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients_are_the_formulas(
    shape: tuple[int, ...], biased: bool, drop: Drop | None, dtype: torch.dtype
) -> None:
    *qkv, bias = given(*shape, dtype=dtype)
    inputs = (*qkv, bias if biased else None)
    wide = tuple(None if x is None else x.detach().double().requires_grad_() for x in inputs)
    expected = result(plain, wide, drop)
    assert_same(result(distance.distance, inputs, drop), expected, TOLERANCE[dtype])


@pytest.mark.parametrize("wanted", ["q", "k", "v", "bias", "kv", "qbias"])
def test_only_some_gradients(wanted: str) -> None:
    inputs = given(2, 2, 70, 90, 8)
    for name, x in zip(("q", "k", "v", "bias"), inputs, strict=True):
        x.requires_grad_(name in wanted)
    assert_same(result(distance.distance, inputs, DROP), result(plain, inputs, DROP), 1e-12)


@pytest.mark.parametrize("drop", [DROP, Drop(0.0, 5), Drop(0.999, 2**63 - 1)])
def test_what_is_dropped_is_what_drop_says(drop: Drop) -> None:
    b, h, t, s = 2, 2, 70, 90
    q = torch.zeros(b, h, t, 16)
    k = torch.zeros(b, h, s, 16)
    one_hot = torch.eye(s).expand(b, h, s, s)
    seen = distance.distance(q[..., :1], k[..., :1], one_hot[..., :1], None, drop)
    for key in range(s):  # values of width one: a value for each key in turn
        seen = distance.distance(
            q[..., :1], k[..., :1], one_hot[..., key : key + 1].contiguous(), None, drop
        )
        kept = drop.kept(attention_rows(torch.empty(b, h, t, s)), torch.tensor([key]))
        visible = torch.arange(s - t, s)[:, None] >= key
        assert torch.equal(seen != 0, kept & visible)


def test_the_outputs_memory_is_what_attention_flattens() -> None:
    q, k, v, _ = given(2, 3, 20, 30, 8)
    out = distance.distance(q, k, v, None, None)
    assert out.transpose(1, 2).is_contiguous()


def strides(kind: str) -> tuple[Tensor, ...]:
    q, k, v, bias = given(2, 2, 40, 70, 8)
    if kind == "contiguous":
        return tuple(x.contiguous() for x in (q, k, v, bias))
    if kind == "last dimension apart":
        return tuple(x.transpose(-1, -2).contiguous().transpose(-1, -2) for x in (q, k, v, bias))
    return q[:1].expand(2, -1, -1, -1), k[:, :1].expand(-1, 2, -1, -1), v, bias[:1].expand(2, -1)


@pytest.mark.parametrize("kind", ["contiguous", "last dimension apart", "expanded"])
def test_any_strides(kind: str) -> None:
    inputs = strides(kind)
    assert_same(result(distance.distance, inputs, DROP), result(plain, inputs, DROP), 1e-12)


@pytest.mark.parametrize("kind", ["of a sum", "last dimension apart"])
def test_any_strides_of_the_gradient(kind: str) -> None:
    inputs = given(2, 2, 40, 70, 8)

    def grads(backend: Callable[..., Tensor]) -> list[Tensor]:
        out = backend(*inputs, DROP)
        if kind == "of a sum":
            return list(torch.autograd.grad(out.sum(), inputs))
        weights = torch.randn(out.transpose(-1, -2).shape, generator=torch.Generator(),
                              dtype=out.dtype)  # fmt: skip
        return list(torch.autograd.grad(out, inputs, weights.transpose(-1, -2)))

    assert_same(grads(distance.distance), grads(plain), 1e-12)


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("heads", [1, 8])
def test_the_number_of_threads_changes_nothing(heads: int, threads: int) -> None:
    inputs = given(1, heads, 200, 333, 16)
    alone = result(distance.distance, inputs, DROP)
    torch.set_num_threads(threads)
    together = result(distance.distance, inputs, DROP)
    assert all(torch.equal(x, y) for x, y in zip(together, alone, strict=True))


def test_other_threads_than_openmps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "fork", lambda: 0)
    torch.set_num_threads(3)
    inputs = given(2, 2, 100, 100, 16)
    assert_same(result(distance.distance, inputs, DROP), result(plain, inputs, DROP), 1e-12)


@pytest.mark.parametrize("size", [30.0, 1e3, 1e-30])
def test_large_and_tiny_logits(size: float) -> None:
    inputs = given(2, 2, 100, 100, 16, size=size)
    assert_same(result(distance.distance, inputs, DROP), result(plain, inputs, DROP), 1e-11)


def test_far_biases_underflow_to_zero() -> None:
    q, k, v, bias = given(1, 2, 150, 150, 16, dtype=torch.float32)
    steep = (bias.detach() * 0 - torch.arange(155.0)).requires_grad_()
    expected = result(plain, tuple(x.detach().double().requires_grad_() for x in (q, k, v, steep)),
                      DROP)  # fmt: skip
    assert_same(result(distance.distance, (q, k, v, steep), DROP), expected, 1e-5)


def test_a_bias_whose_power_is_no_number() -> None:
    q, k, v, bias = given(1, 2, 70, 70, 16)
    large = torch.full_like(bias, 1024 * math.log(2)).requires_grad_()
    inputs = (q, k, v, large)
    assert_same(result(distance.distance, inputs, DROP), result(plain, inputs, DROP), 1e-11)


def test_a_bias_of_minus_infinity_closes_a_distance() -> None:
    q, k, v, bias = given(1, 2, 150, 150, 16)
    closed = bias.detach().clone()
    closed[:, 3:100] = -math.inf
    expected = result(plain, (q, k, v, closed), None)
    assert_same(result(distance.distance, (q, k, v, closed), None), expected, 1e-12)


@pytest.mark.parametrize("where", [0, 1, 2, 3])
def test_what_is_not_a_number_stays_none(where: int) -> None:
    inputs = list(given(2, 2, 70, 90, 16))
    inputs[where] = inputs[where].detach().clone()
    inputs[where][(-1, 66) if where == 3 else (-1, -1, 4)] = math.nan
    inputs[where].requires_grad_()
    found = result(distance.distance, tuple(inputs), None)
    expected = result(plain, tuple(inputs), None)
    assert [bool(x.isnan().any()) for x in found] == [bool(x.isnan().any()) for x in expected]
    assert bool(found[0].isnan().any())


def test_what_does_not_fit_is_refused() -> None:
    q, k, v, bias = given(1, 2, 5, 9, 4)
    for tensors, message in (
        ((k, q, q, bias), "9 queries are not the last of 5 tokens"),
        ((q, k, v[:, :, 1:], bias), "v has the shape"),
        ((q, k, v, bias[:, :8]), "bias has the shape"),
        ((q, k, v, bias[:1]), "bias has the shape"),
        ((q, k.float(), v, bias), "k is of torch.float32"),
        ((q.half(), k.half(), v.half(), bias), "q is of torch.float16"),
    ):
        with pytest.raises(ValueError, match=message):
            distance.distance(*tensors, None)


def test_gradients_of_gradients_are_refused() -> None:
    q, k, v, bias = given(1, 2, 5, 9, 4)
    (grad,) = torch.autograd.grad(
        distance.distance(q, k, v, bias, None).square().sum(), q, create_graph=True
    )
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


@pytest.mark.parametrize("shape", [(0, 2, 5, 5, 4), (2, 0, 5, 5, 4), (2, 2, 0, 5, 4)])
def test_nothing_to_attend(shape: tuple[int, ...]) -> None:
    inputs = given(*shape)
    found = result(distance.distance, inputs, DROP)
    assert found[0].shape == (*shape[:3], shape[4])
    assert all(not x.any() for x in found)


def test_memory_grows_with_the_length_only() -> None:
    code = """
import resource, torch
from pe_lab.kernels.cpu import distance
torch.set_num_threads(1)
x = torch.randn(1, 1, 8192, 16, requires_grad=True)
distance.distance(x[:, :, :64], x[:, :, :64], x[:, :, :64], None, None).sum().backward()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
distance.distance(x, x, x, None, None).sum().backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    scale = 1 if sys.platform == "darwin" else 1024
    assert int(done.stdout) * scale < 20e6  # a (T, S) matrix has 268 MB
