"""The compiled CoPE attention against CoPE's own formulas (proof.py), value and gradients."""

import math
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from compiler import needs_compiler
from held import DROP, GATES, SIZES, Size, cope_inputs, hold, hold_cope, results
from torch import Tensor

from pe_lab.common.dropout import Drop, attention_rows
from pe_lab.kernels import reference
from pe_lab.kernels.cpu.cope import cope

pytestmark = needs_compiler

WIDE = [torch.float64, torch.float32]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("size", SIZES)
def test_values_and_gradients_are_the_formulas(size: Size, gates: str, dtype: torch.dtype) -> None:
    hold_cope(cope, size, gates, 20, dtype)


@pytest.mark.parametrize("npos", [1, 2, 5, 66, 300])
@pytest.mark.parametrize("size", [Size(2, 2, 65, 65, 16), Size(1, 1, 40, 100, 8)])
def test_tables_shorter_and_longer_than_the_keys(size: Size, npos: int) -> None:
    hold_cope(cope, size, "keys", npos, torch.float64)


# Blocks just full and just not, single tokens, widths that fill no vector, long rows.
SHAPES = [
    Size(1, 1, 1, 1, 1),
    Size(2, 1, 32, 32, 16),
    Size(1, 2, 33, 33, 3),
    Size(1, 1, 31, 64, 17),
    Size(5, 4, 48, 48, 32),
    Size(1, 2, 300, 300, 64),
    Size(1, 1, 97, 260, 80),
]


@pytest.mark.parametrize("size", SHAPES)
def test_any_length_and_width(size: Size) -> None:
    hold_cope(cope, size, "keys", size.s + 1, torch.float64)


def test_queries_that_share_no_gates_keys() -> None:
    """Own gate queries beside the keys' own, which no encoding has and the interface allows."""
    size = Size(2, 2, 40, 50, 8)
    q, k, v, gate_q, _, table = cope_inputs(size, "rope", 9, torch.float64)
    hold(cope, reference.cope, [q, k, v, gate_q, k, table], 0.7, DROP)


def test_no_queries_give_no_gradients() -> None:
    q, gate_q, k = torch.randn(3, 2, 2, 50, 8).requires_grad_()
    q, gate_q, table = q[:, :, :0], gate_q[:, :, :0], torch.randn(9, 8, requires_grad=True)
    for gates in (q, gate_q):
        # Memory that is taken again without being written has these numbers.
        scrap = [torch.full((2, 2, 50, 8), 7.0) for _ in range(9)]
        del scrap
        grads = torch.autograd.grad(cope(q, k, k, gates, k, table, 1.0, None).sum(), (k, table))
        assert not any(x.any() for x in grads)


@pytest.mark.parametrize(
    ("place", "wrong", "message"),
    [
        (0, torch.zeros(1, 2, 6, 4), "6 queries are not the last of 5 tokens"),
        (2, torch.zeros(1, 2, 4, 4), "v has the shape"),
        (3, torch.zeros(1, 1, 5, 4), "gate_q has the shape"),
        (4, torch.zeros(1, 2, 5, 3), "gate_k has the shape"),
        (5, torch.zeros(9, 3), "table has the shape"),
        (5, torch.zeros(0, 4), "table has the shape"),
        (5, torch.zeros(9, 4, dtype=torch.float64), "table is of torch.float64 on cpu"),
        (1, torch.zeros(1, 2, 5, 4, device="meta"), "k is of torch.float32 on meta"),
    ],
)
def test_what_does_not_fit_is_refused(place: int, wrong: Tensor, message: str) -> None:
    tensors = [*torch.zeros(5, 1, 2, 5, 4), torch.zeros(9, 4)]
    tensors[place] = wrong
    with pytest.raises(ValueError, match=message):
        cope(*tensors, 1.0, None)


def test_gates_all_open_count_whole_positions_and_stay_in_the_table() -> None:
    """A sum of gates that are exactly 1 in rounding: position i - j + 1, or the last."""
    ones = torch.ones(1, 1, 40, 16, dtype=torch.float64)
    table = torch.randn(7, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    tensors = [100 * ones, ones, torch.eye(40, 16, dtype=torch.float64)[None, None]]
    out = cope(*tensors, 100 * ones, 9 * ones, table, 1.0, None)
    distance = torch.arange(40)[:, None] - torch.arange(40)
    logits = 100 * table.sum(-1)[(distance + 1).clamp(0, 6)]
    weights = logits.masked_fill(distance < 0, -math.inf).softmax(-1)
    torch.testing.assert_close(out[0, 0], weights @ tensors[2][0, 0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("drop", [DROP, Drop(0.0, 5), Drop(0.999, 2**63 - 1)])
def test_what_is_dropped_is_what_drop_says(drop: Drop) -> None:
    q, k = torch.zeros(2, 2, 70, 90), torch.zeros(2, 2, 90, 90)
    one_hot = torch.eye(90).expand(2, 2, 90, 90)
    seen = cope(q, k, one_hot, q, k, torch.zeros(4, 90), 1.0, drop)
    kept = drop.kept(attention_rows(seen), torch.arange(90))
    visible = torch.arange(20, 90)[:, None] >= torch.arange(90)
    assert torch.equal(seen != 0, kept & visible)


@pytest.mark.parametrize("spread", ["contiguous", "last dimension apart", "grad_out apart"])
def test_any_strides(spread: str) -> None:
    inputs = cope_inputs(Size(2, 2, 40, 70, 8), "rope", 9, torch.float64)
    if spread == "contiguous":
        inputs = [x.contiguous() for x in inputs]
    elif spread == "last dimension apart":
        inputs = [x.mT.contiguous().mT for x in inputs]

    def apart(*given: object) -> Tensor:
        out = cope(*given)  # type: ignore[arg-type]
        return out.mT.contiguous().mT if spread == "grad_out apart" else out

    hold(apart, reference.cope, inputs, 0.7, DROP)


def test_the_outputs_memory_is_what_attention_flattens() -> None:
    q, k, v, *rest = cope_inputs(Size(2, 3, 20, 30, 8), "keys", 9, torch.float32)
    assert cope(q, k, v, q, k, rest[-1], 1.0, None).transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("size", [Size(1, 2, 200, 230, 8), Size(5, 4, 48, 48, 16)])
def test_any_number_of_threads_gives_the_same_bits(size: Size) -> None:
    tensors = cope_inputs(size, "rope", 30, torch.float32)
    alone = results(cope, tensors, 0.7, DROP)
    torch.set_num_threads(3)
    for x, y in zip(results(cope, tensors, 0.7, DROP) or [], alone or [], strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("name", ["q", "k", "v", "table"])
def test_what_is_no_number_gives_no_number_and_no_crash(
    name: str, bad: float, dtype: torch.dtype
) -> None:
    q, k, v, *_, table = cope_inputs(Size(1, 1, 70, 70, 8), "keys", 9, dtype)
    leaves = {"q": q.clone(), "k": k.clone(), "v": v.clone(), "table": table.clone()}
    leaves[name][..., 5, :] = bad
    q, k, v, table = (x.requires_grad_() for x in leaves.values())
    out = cope(q, k, v, q, k, table, 1.0, None)
    grads = torch.autograd.grad(out.sum(), (q, k, v, table))
    if name in "qk":
        assert bool(out[:, :, :5].isfinite().all())
    if math.isnan(bad):
        seen = slice(None) if name == "table" else 5
        assert bool(out[:, :, seen].isnan().any())
        assert bool(grads[0][:, :, seen].isnan().any())


LONG = """
import resource, torch
from pe_lab.kernels.cpu.cope import cope
torch.set_num_threads(1)
def step(length):
    q, k, v = torch.randn(3, 1, 1, length, 16).requires_grad_()
    table = torch.randn(length + 1, 16).requires_grad_()
    cope(q, k, v, q, k, table, 1.0, None).sum().backward()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
few = step(64)
print(step(8192) - few)
"""


def test_memory_is_linear_in_the_length() -> None:
    """Forward and backward of 8192 tokens, whose matrix of logits is of 256 MiB."""
    done = subprocess.run([sys.executable, "-c", LONG], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 64 * 2**20
