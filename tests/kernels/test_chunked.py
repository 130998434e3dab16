"""The backend in plain PyTorch: blocks of every size, linear memory, no answer to no numbers."""

import pytest
import torch
from attention_cases import (
    DROP,
    Attend,
    Size,
    assert_cope,
    assert_distance,
    cope_inputs,
    distance_inputs,
)
from torch.utils._python_dispatch import TorchDispatchMode

from pe_lab.common.dropout import attention_rows
from pe_lab.kernels import blocks, chunked, chunked_logits


@pytest.mark.parametrize(("rows", "elements"), [(3, 1000), (7, 1), (7, 300), (64, 1 << 24)])
def test_blocks_of_any_size(rows: int, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "ROWS", rows)
    monkeypatch.setattr(blocks, "ELEMENTS_CPU", elements)
    # As little of the table as the positions of a block need.
    monkeypatch.setattr(chunked_logits, "EVEN", 1)
    for size, gates in ((Size(3, 2, 13, 20, 4), "rope"), (Size(2, 3, 21, 21, 4), "keys")):
        for npos in (5, 30):
            assert_cope(chunked.cope, size, gates, npos, torch.float64)
        assert_distance(chunked.distance, size, torch.float64)


@pytest.mark.parametrize("rows", [3, 64])
def test_the_mask_is_that_of_drop(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "ROWS", rows)
    b, h, t, s = 2, 3, 17, 31
    walk = blocks.Walk(torch.empty(b, h, t, 4), torch.empty(b, h, s, 4), DROP)
    expected = DROP.kept(attention_rows(torch.empty(b, h, t, s)), torch.arange(s))
    for block, rows in zip(walk.blocks, walk.of_rows(expected), strict=True):
        assert torch.equal(walk.kept(block) == 1, rows[..., : block.shape[2]])


class Largest(TorchDispatchMode):
    """Bytes of the largest tensor that any operation makes."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.bytes = max(self.bytes, out.untyped_storage().nbytes())
        return out


def forward_and_backward(attend: Attend, given: list[torch.Tensor], *rest: object) -> int:
    with Largest() as largest:
        leaves = {id(x): x.requires_grad_() for x in given}
        attend(*(leaves[id(x)] for x in given), *rest).sum().backward()  # type: ignore[union-attr]
    return largest.bytes


def test_memory_grows_with_the_length_only() -> None:
    def bytes_at(length: int) -> list[int]:
        q, k, v, bias = distance_inputs(Size(1, 1, length, length, 4), torch.float32)
        table = torch.randn(length + 1, 4)
        return [
            forward_and_backward(chunked.cope, [q, k, v, q, k, table], 1.0, DROP),
            forward_and_backward(chunked.distance, [q, k, v, bias], DROP),
        ]

    for small, large in zip(bytes_at(512), bytes_at(1024), strict=True):
        assert large <= 2.1 * small


def test_gradients_only_where_wanted() -> None:
    q, k, v, _, _, table = cope_inputs(Size(1, 2, 9, 9, 4), "keys", 3, torch.float64)
    chunked.cope(q, k, v.requires_grad_(), q, k, table, 1.0, None).sum().backward()
    assert v.grad is not None
    assert table.grad is None
    assert q.grad is None


def test_no_number_in_no_number_out() -> None:
    q, k, v, _, _, table = cope_inputs(Size(1, 1, 5, 5, 4), "keys", 3, torch.float64)
    k = k.clone()
    k[0, 0, 3] = torch.nan
    out = chunked.cope(q, k, v, q, k, table, 1.0, None)
    assert out[0, 0, 3:].isnan().all()
