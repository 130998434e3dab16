"""A branch that joins by the compiled kernel equals one of plain PyTorch, value and gradient."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from compiler import needs_compiler
from torch import Tensor, nn

from pe_lab.common.dropout import Drop
from pe_lab.kernels import apply, dispatch
from pe_lab.kernels.cpu import add_norm
from pe_lab.models.base import Vocabulary
from pe_lab.models.encoder_decoder import EncoderDecoderConfig
from pe_lab.pe.none import NoPE

pytestmark = needs_compiler

NORMS: dict[str, Callable[[int], nn.Module | None]] = {
    "none": lambda e: None,
    "layer": nn.LayerNorm,
    "rms": nn.RMSNorm,
    "rms with eps": lambda e: nn.RMSNorm(e, eps=0.1),
}
SHAPES = [(3,), (2, 7, 16), (50, 5), (3, 0, 4), (33, 37), (2, 30, 64)]
DROP = Drop(0.4, 0x0123_4567_89AB_CDEF)


class Case:
    """Leaves, and what is made of them by the kernel and by the formula."""

    def __init__(self, shape: tuple[int, ...], norm: str, fed: bool, dtype: torch.dtype) -> None:
        e = shape[-1]
        self.norm, self.out = NORMS[norm](e), nn.Linear(e + 3, e)
        self.up = nn.Linear(e + 1, e + 3) if fed else None
        modules = [m.to(dtype) for m in (self.norm, self.out, self.up) if m is not None]
        self.parameters = [p for m in modules for p in m.parameters()]
        for p in self.parameters:
            nn.init.normal_(p)
        self.x = torch.randn(*shape, dtype=dtype, requires_grad=True)
        self.given = torch.randn(
            *shape[:-1], e + (1 if fed else 3), dtype=dtype, requires_grad=True
        )
        self.leaves = [self.x, self.given, *self.parameters]

    def made(self, drop: Drop | None, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        return add_norm.fused_add_norm(
            self.x, self.given, self.out, self.norm, drop, rows, up=self.up
        )

    def plain(self, drop: Drop | None, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        given = self.given if self.up is None else F.relu(self.up(self.given))
        branch = self.out(given)
        total = self.x + (branch if drop is None else drop(branch, rows))
        return total, total if self.norm is None else self.norm(total)


def gradients(made: tuple[Tensor, ...], leaves: list[Tensor]) -> list[Tensor]:
    """Of both results, in directions of their own."""
    rng = torch.Generator().manual_seed(1)
    ways = [torch.randn(x.shape, generator=rng, dtype=torch.float64).to(x) for x in made]
    return list(torch.autograd.grad(made, leaves, ways, retain_graph=True, materialize_grads=True))


def close(found: list[Tensor], expected: list[Tensor], limit: float) -> None:
    for x, y in zip(found, expected, strict=True):
        assert x.shape == y.shape
        largest = max(1.0, float(y.detach().abs().max())) if y.numel() else 1.0
        torch.testing.assert_close(x, y, atol=limit * largest, rtol=0)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 2e-5), (torch.float64, 1e-11)])
@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients(
    shape: tuple[int, ...], norm: str, fed: bool, dtype: torch.dtype, limit: float
) -> None:
    case = Case(shape, norm, fed, dtype)
    places = torch.arange(case.x[..., 0].numel()).flip(0).view(shape[:-1]) + 2**31
    for drop, rows in ((None, None), (DROP, None), (DROP, places)):
        found, expected = case.made(drop, rows), case.plain(drop, rows)
        assert "_AddNorm" in found[0].grad_fn.name()
        pairs = [[*made, *gradients(made, case.leaves)] for made in (found, expected)]
        close(*pairs, limit=limit)
        # And of each result alone.
        for n in range(2):
            one, other = (gradients(made[n : n + 1], case.leaves) for made in (found, expected))
            close(one, other, limit)


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_a_norm_alone_and_who_reads_on(norm: str) -> None:
    made = NORMS[norm](21)
    assert made is not None
    made = made.double()
    x = torch.randn(5, 6, 21, dtype=torch.float64, requires_grad=True)
    same, found = add_norm.fused_norm(x, made)
    assert torch.equal(same, x)
    assert "_AddNorm" in found.grad_fn.name()
    leaves = [x, *made.parameters()]
    expected = [x * 1, made(x)]
    close([found, *gradients((same, found), leaves)],
          [expected[1], *gradients(tuple(expected), leaves)], 1e-11)  # fmt: skip


def test_what_is_dropped_is_zero_whatever_it_was() -> None:
    case = Case((4, 50), "none", False, torch.float32)
    with torch.no_grad():
        case.out.bias.fill_(torch.nan)
    total, _ = case.made(DROP, None)
    assert torch.equal(total.isnan(), case.plain(DROP, None)[0].isnan())
    assert 0 < total.isnan().sum() < total.numel()


def test_rows_far_from_zero_are_normalised() -> None:
    norm, x = nn.LayerNorm(64), torch.randn(3, 64) + 1e3
    found, expected = add_norm.fused_norm(x, norm)[1], norm.double()(x.double())
    torch.testing.assert_close(found, expected.float(), atol=1e-3, rtol=0)


def test_small_rows_are_normalised_with_no_more_than_the_given_eps() -> None:
    x = torch.randn(3, 64) * 1e-6
    for eps in (None, 0.0):
        norm = nn.RMSNorm(64, eps=eps)
        torch.testing.assert_close(add_norm.fused_norm(x, norm)[1], norm(x))


def test_a_branch_of_more_rows_is_added_as_pytorch_adds_it() -> None:
    x, given, out = torch.randn(1, 3, 8), torch.randn(2, 3, 8), nn.Linear(8, 8)
    total, _ = add_norm.fused_add_norm(x, given, out, nn.LayerNorm(8), None)
    torch.testing.assert_close(total, x + out(given))


def test_vectors_may_lie_anyhow_and_rows_be_those_of_every_sequence() -> None:
    case, rows = Case((2, 3, 21), "layer", True, torch.float64), torch.tensor([3, 1, 2])
    whole = torch.randn(21, 2, dtype=torch.float64)
    assert case.norm is not None
    case.norm.weight, case.out.bias = (nn.Parameter(whole[:, n]) for n in range(2))
    leaves = [case.x, case.norm.weight, case.out.bias]
    pairs = [
        [*made, *gradients(made, leaves)]
        for made in (case.made(DROP, rows), case.plain(DROP, rows))
    ]
    close(*pairs, limit=1e-11)


def test_the_number_of_threads_changes_no_bit() -> None:
    case = Case((301, 40), "layer", True, torch.float32)
    found = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        made = case.made(DROP, None)
        found.append([*made, *gradients(made, case.leaves)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_rows_changed_before_the_backward_pass_are_told() -> None:
    case, rows = Case((3, 40), "layer", False, torch.float32), torch.tensor([3, 1, 2])
    total, _ = case.made(DROP, rows)
    rows.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.sum().backward()


def test_what_the_kernel_cannot_take_is_done_in_pytorch() -> None:
    case = Case((4, 6), "layer", True, torch.float32)
    whole = case.made(DROP, None)[1]

    def not_joined() -> None:
        out = case.made(DROP, None)[1]
        assert "_AddNorm" not in out.grad_fn.name()
        torch.testing.assert_close(out.float(), whole, atol=0.3, rtol=0.1)

    with torch.autocast("cpu", torch.bfloat16):
        not_joined()
    with dispatch.only(dispatch.EAGER):
        not_joined()
    for other in (nn.LayerNorm(6, bias=False), nn.RMSNorm(6, elementwise_affine=False)):
        _, out = add_norm.fused_norm(case.x, other)
        assert "_AddNorm" not in out.grad_fn.name()


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_every_norm_of_an_encoder_and_a_decoder(norm: str) -> None:
    """PyTorch's own add up gradients in an order that follows the number of threads."""
    sizes = {"n_layers": 1, "n_heads": 2, "d_model": 8, "d_ff": 10, "dropout": 0.0}
    kinds = {"norm": norm, "norm_position": "pre", "activation": "relu", "tied_embeddings": False}
    cfg = EncoderDecoderConfig(**sizes, **kinds)  # type: ignore[arg-type]
    pe = [NoPE(cfg.dims(6, 6, 6)) for _ in range(2)]
    model = cfg.build(Vocabulary(6, separator=5), pe)
    apply.accelerate(model)
    norms = [m for m in model.modules() if isinstance(m, nn.LayerNorm | nn.RMSNorm)]
    assert len(norms) == 5 + 2
    called: list[int] = []
    for module in norms:
        module.register_forward_hook(lambda *_: called.append(1))
    model(torch.tensor([[1, 2, 5, 3, 4]]), torch.arange(5)[None]).sum().backward()
    # Those at the end of the encoder and of the decoder are modules of their own.
    assert len(called) == 2
    assert {type(model.encoded), type(model.decoded)} <= {*apply.NORMS.values()}
    assert all(p.grad is not None for module in norms for p in module.parameters())
