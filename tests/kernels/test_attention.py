"""The C++ attention kernels: equal to the formulas, and the contract that both keep."""

import subprocess
import sys

import pytest
import torch
from attention_cases import (
    DROP,
    GATES,
    SIZES,
    Attend,
    Size,
    assert_equal,
    assert_kernel,
    cope_inputs,
    dape_inputs,
    distance_inputs,
    formula,
    inputs,
    kernel,
    path_inputs,
    relative_inputs,
    results,
    windowed,
)
from compiler import needs_compiler
from torch import Tensor

from pe_lab.core.dropout import Drop, attention_rows
from pe_lab.kernels.cpu import build

pytestmark = needs_compiler

KERNELS = {
    name: kernel(name)
    for name in ("cope", "distance", "near_far", "path", "relative", "stick_breaking")
}
TERMS = range(3, 9)
"""Arguments of ``relative`` that may be None."""
each_kernel = pytest.mark.parametrize("kind", KERNELS)
each_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)


@each_dtype
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_cope_equals_the_formula(size: Size, dtype: torch.dtype) -> None:
    cases = [(gates, 20) for gates in (*GATES, "sep_queries")]
    cases += [("keys", npos) for npos in (1, 2, size.s + 1, 3 * size.s)]
    for gates, npos in cases:
        for drop in (None, DROP):
            assert_kernel("cope", cope_inputs(size, gates, npos, dtype), 0.7, drop)


@each_dtype
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_distance_equals_the_formula(size: Size, dtype: torch.dtype) -> None:
    *qkv, bias = distance_inputs(size, dtype)
    for drop in (None, DROP):
        assert_kernel("distance", [*qkv, bias], drop)
        assert_equal(no_bias(kernel("distance")), no_bias(formula("distance")), qkv, drop)


def no_bias(attend: Attend) -> Attend:
    return lambda q, k, v, drop: attend(q, k, v, None, drop)


@each_dtype
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_relative_equals_the_formula(size: Size, dtype: torch.dtype) -> None:
    """All terms at once, and each alone."""
    for present in (TERMS, *([term] for term in TERMS)):
        places = [0, 1, 2, *present]
        tensors = [relative_inputs(size, dtype)[i] for i in places]

        def only(attend: Attend, places: list[int] = places) -> Attend:
            def call(*given: object) -> Tensor | None:
                *x, drop = given
                of = dict(zip(places, x, strict=True))
                return attend(*(of.get(i) for i in range(9)), drop)

            return call

        for drop in (None, DROP):
            assert_equal(only(kernel("relative")), only(formula("relative")), tensors, drop)


@each_dtype
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_stick_breaking_equals_the_formula(size: Size, dtype: torch.dtype) -> None:
    for remainder in (False, True):
        for drop in (None, DROP):
            q, k, v, _ = distance_inputs(size, dtype)
            assert_kernel("stick_breaking", [q, k, v], remainder, drop)
            # Sticks that end at once, or stay whole.
            assert_kernel("stick_breaking", [30 * q, k, v], remainder, drop, tolerance=3e-5)


@each_dtype
@pytest.mark.parametrize(
    "size", [*(size for size in SIZES if size.s > 1), Size(2, 2, 150, 213, 16)], ids=str
)
def test_path_equals_the_formula(size: Size, dtype: torch.dtype) -> None:
    def no_gates(attend: Attend) -> Attend:
        return lambda *given: attend(*given[:-1], None, given[-1])

    for drop in (None, DROP):
        *ungated, kept = path_inputs(size, dtype)
        assert_kernel("path", [*ungated, kept], drop)
        assert_equal(no_gates(kernel("path")), no_gates(formula("path")), ungated, drop)


HEADS = [
    Size(2, 2, 5, 5, 4),
    Size(1, 4, 131, 131, 8),
    Size(3, 8, 1, 70, 8),
    Size(2, 1, 65, 137, 17),
    Size(1, 1, 1, 1, 1),
]


@each_dtype
@pytest.mark.parametrize("size", HEADS, ids=str)
def test_dape_equals_the_formula(size: Size, dtype: torch.dtype) -> None:
    for drop in (None, DROP):
        assert_kernel("dape", dape_inputs(size, dtype), drop)


def test_dape_is_left_to_pytorch_for_other_numbers_of_heads() -> None:
    assert kernel("dape")(*dape_inputs(Size(2, 3, 5, 5, 4), torch.float32), None) is None


def test_a_broken_stick_ends_the_row_but_not_where_it_is_not_a_number() -> None:
    """Key 0 is far beyond where the weights of float32 end."""
    q, k, v = torch.zeros(3, 1, 1, 400, 8)
    v[..., 0, :] = torch.nan
    found = KERNELS["stick_breaking"](q, k, v, True, None)
    assert bool(found[..., 300:, :].isfinite().all())
    k[..., 390, :] = torch.nan
    assert bool(KERNELS["stick_breaking"](q, k, v, True, None)[..., 391:, :].isnan().all())


@each_dtype
@pytest.mark.parametrize("size", [*SIZES[:3], *SIZES[4:5], Size(1, 2, 97, 260, 38)], ids=str)
@pytest.mark.parametrize("near", [1, 20, 64, 65, 130, 10**12])
def test_near_far_equals_the_formula(size: Size, near: int, dtype: torch.dtype) -> None:
    """Blocks of near keys, of far ones, and of both."""
    q, k, v, _ = distance_inputs(size, dtype)
    for halves, far_keys, drop in ((False, True, None), (True, False, DROP)):
        rest = windowed(size, near, halves, far_keys)
        assert_kernel("near_far", [q / 4, k / 4, v], *rest, drop)


def test_near_far_is_left_to_pytorch_where_gradients_are_needed() -> None:
    (q, k, v), rest = inputs("near_far", Size(1, 2, 5, 9, 4), torch.float64)
    assert KERNELS["near_far"](q, k, v.requires_grad_(), *rest, None) is None
    with torch.no_grad():
        assert KERNELS["near_far"](q, k, v, *rest, None) is not None


@pytest.mark.parametrize(
    ("kind", "needed"), [*(("distance", i) for i in range(4)), *(("relative", i) for i in range(9))]
)
def test_one_gradient_alone(kind: str, needed: int) -> None:
    found, (drawn, _) = [], inputs(kind, Size(2, 2, 70, 90, 16), torch.float64)
    for attend in (kernel(kind), formula(kind)):
        tensors = [x.detach().requires_grad_(i == needed) for i, x in enumerate(drawn)]
        found += torch.autograd.grad(attend(*tensors, DROP).sin().sum(), tensors[needed])
    torch.testing.assert_close(*found, rtol=0, atol=1e-10)


@each_kernel
@pytest.mark.parametrize("drop", [DROP, Drop(0.0, 5), Drop(0.999, 2**63 - 1)])
def test_the_dropout_mask(kind: str, drop: Drop) -> None:
    """Values are unit vectors, so that the result is the weights."""
    q, k, v = torch.zeros(2, 2, 70, 90), torch.zeros(2, 2, 90, 90), torch.eye(90)
    v = v.expand(2, 2, 90, 90)
    if kind == "cope":
        weights = KERNELS["cope"](q, k, v, q, k, torch.zeros(4, 90), 1.0, drop)
    else:
        rest = {
            "distance": [None],
            "near_far": windowed(Size(2, 2, 70, 90, 90), 9, False, True),
            "path": [torch.zeros(2, 2, 90, 90), torch.zeros(2, 2, 90), None],
            "relative": [None] * 6,
            "stick_breaking": [True],
        }[kind]
        weights = KERNELS[kind](q, k, v, *rest, drop)
    kept = drop.kept(attention_rows(weights), torch.arange(90))
    assert torch.equal(weights != 0, kept & torch.ones(70, 90, dtype=torch.bool).tril(20))


@each_kernel
@pytest.mark.parametrize("spread", ["contiguous", "last dimension strided", "gradient strided"])
def test_strides(kind: str, spread: str) -> None:
    tensors, rest = inputs(kind, Size(2, 2, 40, 70, 8), torch.float64)
    if spread == "contiguous":
        tensors = [x.contiguous() for x in tensors]
    elif spread == "last dimension strided":
        tensors = [x.mT.contiguous().mT for x in tensors]

    def attend(*arguments: object) -> Tensor | None:
        out = KERNELS[kind](*arguments)
        strided = spread == "gradient strided" and out is not None
        return out.mT.contiguous().mT if strided else out

    assert_equal(attend, formula(kind), tensors, *rest, DROP)


@each_kernel
def test_the_output_lies_as_the_output_projection_reads_it(kind: str) -> None:
    tensors, rest = inputs(kind, Size(2, 3, 20, 30, 8), torch.float32)
    assert KERNELS[kind](*tensors, *rest, None).transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("kind", [*KERNELS, "dape"])
@pytest.mark.parametrize("size", [Size(1, 1, 200, 333, 8), Size(5, 4, 48, 48, 16)], ids=str)
def test_the_number_of_threads_changes_no_bit(kind: str, size: Size) -> None:
    tensors, rest = inputs(kind, size, torch.float32)
    alone = results(kernel(kind), tensors, *rest, DROP)
    torch.set_num_threads(3)
    for x, y in zip(results(kernel(kind), tensors, *rest, DROP), alone, strict=True):
        assert torch.equal(x, y)


@each_kernel
def test_threads_without_openmp(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "fork", lambda: 0)
    torch.set_num_threads(3)
    tensors, rest = inputs(kind, Size(2, 2, 100, 100, 16), torch.float64)
    assert_equal(KERNELS[kind], formula(kind), tensors, *rest, DROP)


@each_kernel
@pytest.mark.parametrize(
    ("argument", "wrong", "message"),
    [
        (0, torch.zeros(1, 2, 6, 4), "6 queries are not the last of 5 tokens"),
        (2, torch.zeros(1, 2, 4, 4), "v has the shape"),
        (1, torch.zeros(1, 2, 5, 4, dtype=torch.float64), "k is of torch.float64 on cpu"),
        (1, torch.zeros(1, 2, 5, 4, device="meta"), "k is of torch.float32 on meta"),
        (0, torch.zeros(1, 2, 5, 4, dtype=torch.float16), "q is of torch.float16|k is of"),
        (-1, torch.zeros(1, 3), "has the shape"),
        (-1, torch.zeros(0, 4), "has the shape"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    kind: str, argument: int, wrong: Tensor, message: str
) -> None:
    tensors, rest = inputs(kind, Size(1, 2, 5, 5, 4), torch.float32)
    tensors[argument] = wrong
    with pytest.raises(ValueError, match=message):
        KERNELS[kind](*tensors, *rest, None)


@pytest.mark.parametrize("kind", sorted(KERNELS.keys() - {"near_far"}))
def test_double_backward_is_refused(kind: str) -> None:
    tensors, rest = inputs(kind, Size(1, 2, 5, 9, 4), torch.float64)
    q = tensors[0].requires_grad_()
    out = KERNELS[kind](*tensors, *rest, None)
    (grad,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


@each_kernel
@pytest.mark.parametrize("size", [Size(0, 2, 5, 5, 4), Size(2, 0, 5, 5, 4)], ids=str)
def test_no_sequences_or_heads(kind: str, size: Size) -> None:
    *qkv, bias = torch.zeros(3, size.b, size.h, 5, 4), torch.zeros(size.h, 8)
    tensors = [*qkv[0].unbind(), bias]
    if kind == "cope":
        tensors = [*qkv[0].unbind(), *qkv[0][:2].unbind(), torch.zeros(9, 4)]
    if kind in ("path", "relative"):
        tensors = inputs(kind, size, torch.float32)[0]
    if kind in ("near_far", "stick_breaking"):
        tensors = tensors[:3]
    rest = inputs(kind, Size(1, 1, 5, 5, 4), torch.float32)[1]
    found = results(KERNELS[kind], [x.clone() for x in tensors], *rest, DROP)
    assert not any(x.any() for x in found)


@each_kernel
def test_no_queries_have_no_gradients(kind: str) -> None:
    tensors, rest = inputs(kind, Size(2, 2, 50, 50, 8), torch.float32)
    tensors[0] = tensors[0][:, :, :0]
    if kind == "cope":
        tensors[3] = tensors[3][:, :, :0]
    if kind == "relative":
        tensors[5] = tensors[5][:, :0]
    if kind == "near_far":
        rest = inputs(kind, Size(2, 2, 0, 50, 8), torch.float32)[1]
    # Memory that is reused without being written has these numbers.
    scrap = [torch.full((2, 2, 50, 8), 7.0) for _ in range(9)]
    del scrap
    assert not any(x.any() for x in results(KERNELS[kind], tensors, *rest, None))


LONG = """
import resource, torch
from pe_lab.kernels.dispatch import KERNELS
from pe_lab.kernels.requests import Cope, Distance, StickBreaking
torch.set_num_threads(1)
def step(length):
    q, k, v = torch.randn(3, 1, 1, length, 16).requires_grad_()
    of = {"q": q, "k": k, "v": v}
    table = torch.randn(length + 1, 16).requires_grad_()
    kept, tables = torch.randn(1, 1, length).requires_grad_(), torch.randn(3, 1, length, 16)
    names = "key_HND", "query_HND", "value_HND"
    terms = dict(zip(names, tables.requires_grad_(), strict=True))
    for request in (
        Cope(**of, gate_q=q, gate_k=k, table_ND=table, position_scale=1.0),
        Distance(**of),
        Distance(**of, kept_BHS=kept, **terms),
        StickBreaking(**of, remainder=True),
    ):
        KERNELS[type(request)](request).sum().backward()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
short = step(64)
print(step(4096) - short)
"""


def test_memory_is_linear_in_the_length() -> None:
    """Forward and backward of 4096 tokens, whose matrix of logits has 64 MiB."""
    done = subprocess.run([sys.executable, "-c", LONG], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 24 * 2**20
