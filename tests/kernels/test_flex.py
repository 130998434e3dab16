"""Attention with a bias by distance through PyTorch's own kernels for GPUs."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from pe_lab.common.dropout import Drop
from pe_lab.kernels import flex


def on_a_gpu(test: Callable[..., None]) -> Callable[..., None]:
    absent = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
    return pytest.mark.gpu(absent(test))


@pytest.fixture
def any_order() -> Iterator[None]:
    before = torch.get_deterministic_debug_mode()
    torch.use_deterministic_algorithms(False)
    yield
    torch.set_deterministic_debug_mode(before)


def given(length: int, width: int, device: str = "cpu") -> list[Tensor]:
    """q, k, v, and a bias for more distances than there are."""
    torch.manual_seed(0)
    sizes = [(2, 3, length, width)] * 3 + [(3, length + 5)]
    return [torch.randn(size).to(device).requires_grad_() for size in sizes]


def by_formula(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    place = torch.arange(k.shape[2], device=q.device)
    distance = place[-q.shape[2] :, None] - place
    logits = q @ k.mT / q.shape[3] ** 0.5
    if bias is not None:
        logits = logits + bias[:, distance.clamp(min=0)]
    return logits.masked_fill(distance < 0, -torch.inf).softmax(-1) @ v


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_its_bias_and_its_mask_are_the_formulas() -> None:
    x = [part.detach() for part in given(41, 16)]
    found = flex.biased(flex_attention, *x)
    torch.testing.assert_close(found, by_formula(*x), rtol=1e-5, atol=1e-5)
    x[0] = x[0][:, :, 15:]
    found = flex.biased(flex_attention, *x)
    torch.testing.assert_close(found, by_formula(*x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("queries", [41, 20])
def test_ordered_attention_is_plain_attention(any_order: None, queries: int) -> None:
    x = given(41, 16)[:3]
    x[0] = x[0][:, :, 41 - queries :].detach().requires_grad_()
    back = torch.randn_like(x[0])
    torch.use_deterministic_algorithms(True, warn_only=True)
    found = flex.plain(*x)
    assert type(found.grad_fn).__name__ == "_OrderedBackward"
    grads = torch.autograd.grad(found, x, back)
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    wide = [part.detach().double().requires_grad_() for part in x]
    known = by_formula(*wide, None)
    torch.testing.assert_close(found.double(), known, rtol=1e-5, atol=1e-5)
    for a, b in zip(grads, torch.autograd.grad(known, wide, back.double()), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


def test_what_it_does_not_serve() -> None:
    q, k, _, bias = given(8, 16)
    assert not flex.serves(q, k, bias, None)
    if torch.cuda.is_available():
        q, k, bias = q.cuda(), k.cuda(), bias.detach().cuda()
        assert flex.serves(q, k, bias, None)
        assert flex.serves(q, k, None, None)
        assert not flex.serves(q, k, bias, Drop(0.1, 1))
        assert not flex.serves(q[:, :, 5:], k, bias, None)


def test_biases_it_does_not_take(any_order: None) -> None:
    q, k, _, bias = given(8, 16)
    assert flex.takes(q, k, bias)
    assert flex.takes(q[:, :, 4:], k, bias)
    assert not flex.takes(q[:, :, 5:], k, bias)
    for width in (8, 24, 512):
        q, k, *_ = given(8, width)
        assert not flex.takes(q, k, bias)
    q, k, *_ = given(8, 16)
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert not flex.takes(q, k, bias)
    assert flex.takes(q, k, bias.detach())
    with torch.no_grad():
        assert flex.takes(q, k, bias)


def test_a_mask_that_an_evaluation_made_serves_in_training() -> None:
    flex._causal.cache_clear()
    with torch.inference_mode():
        mask = flex._causal(9, torch.device("cpu"))
    assert not mask.kv_num_blocks.is_inference()


@on_a_gpu
@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize(("length", "width"), [(64, 16), (511, 64), (2048, 64)])
def test_a_gpu_follows_the_formula(any_order: None, length: int, width: int, learned: bool) -> None:
    x = given(length, width, "cuda")
    leaves = [part.detach().requires_grad_() for part in (x if learned else x[:3])]
    bias = leaves[3] if learned else None
    wide = [part.detach().double().requires_grad_() for part in leaves]
    back = torch.randn_like(x[0])
    found = flex.distance(*leaves[:3], bias, None)
    known = by_formula(*wide[:3], wide[3] if learned else None)
    grads = torch.autograd.grad(found, leaves, back)
    for a, b in zip(
        (found, *grads), (known, *torch.autograd.grad(known, wide, back.double())), strict=True
    ):
        assert float((a - b).abs().max()) <= 1e-5 * float(b.abs().max())


@on_a_gpu
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_gpu_does_the_same_twice(any_order: None, with_bias: bool) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    q, k, v, bias = given(512, 64, "cuda")
    x = [part.detach().requires_grad_() for part in (q, k, v)]
    bias = bias.detach() if with_bias else None
    back = torch.randn_like(q)
    first, again = (torch.autograd.grad(flex.distance(*x, bias, None), x, back) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
