"""Against code by others, where it is installed (`pip install .[peers]`)."""

from typing import Any

import pytest
import torch
from agreement import attend_by_hooks
from naive import t5_bucket
from variants import SECTIONS, dims, move_parameters, sequential

from pe_lab.build import build_encodings
from pe_lab.pe.base import Scene


def encoding(name: str, sizes: dict[str, int], **changes: Any) -> Any:
    return build_encodings({**SECTIONS[name], **changes}, dims(**sizes))[0]


@pytest.mark.parametrize(("buckets", "most"), [(32, 128), (32, 512), (8, 20), (6, 40)])
def test_t5_buckets(buckets: int, most: int) -> None:
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    n = 3 * most
    ours = encoding("t5", {"n_heads": 1}, buckets=buckets, max_distance=most)
    ours.table.data[:, 0] = torch.arange(buckets)
    bias = ours.bias(torch.tensor([[n]]), torch.arange(n + 1)[None])
    theirs = t5.T5Attention._relative_position_bucket(
        torch.arange(n + 1) - n, bidirectional=False, num_buckets=buckets, max_distance=most
    )
    assert torch.equal(bias[0, 0, 0].long(), theirs)
    assert [t5_bucket(d, buckets, most) for d in range(n, -1, -1)] == theirs.tolist()


@pytest.mark.parametrize("heads", [1, 4, 6, 8, 12, 16])
def test_alibi_slopes(heads: int) -> None:
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    ours = encoding("alibi", {"d_model": 4 * heads, "n_heads": heads}).slopes
    at_one = bloom.build_alibi_tensor(torch.ones(1, 2), heads, torch.float64)[:, 0, 1]
    torch.testing.assert_close(ours, at_one, rtol=1e-6, atol=0)


def rotated(pairing: str, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rope = encoding("rope", {"d_model": 16, "n_heads": 2}, pairing=pairing)
    pos = sequential(q.shape[2])
    mask = torch.ones(1, 1, dtype=torch.bool)
    result: tuple[torch.Tensor, torch.Tensor] = rope.rotate(q, k, Scene(q, q, k, k, pos, pos, mask))
    return result


def test_rope_halves_as_llama() -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    q, k = torch.randn(2, 3, 2, 7, 8).unbind(0)
    angle = sequential(7)[..., None] * 10000 ** (-torch.arange(0, 8, 2) / 8)
    angle = torch.cat((angle, angle), -1)
    theirs = llama.apply_rotary_pos_emb(q, k, angle.cos(), angle.sin())
    torch.testing.assert_close(rotated("half", q, k), theirs, rtol=1e-12, atol=1e-12)


def test_rope_interleaved_as_gptj() -> None:
    gptj = pytest.importorskip("transformers.models.gptj.modeling_gptj")
    q, k = torch.randn(2, 3, 2, 7, 8).unbind(0)
    table = gptj.create_sinusoidal_positions(7, 8).double()[None]
    sin, cos = table.chunk(2, -1)
    theirs = tuple(
        gptj.apply_rotary_pos_emb(x.transpose(1, 2), sin, cos).transpose(1, 2) for x in (q, k)
    )
    # Their table is computed in float32.
    torch.testing.assert_close(rotated("interleaved", q, k), theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("npos", [3, 9])
def test_cope_as_x_transformers(npos: int) -> None:
    peer = pytest.importorskip("x_transformers.x_transformers")
    torch.manual_seed(0)
    ours = encoding("cope", {"d_model": 16, "n_heads": 2}, npos=npos)
    move_parameters(ours)
    theirs = peer.CoPE(dim=8, heads=2, max_pos=npos)
    theirs.pos_emb.data.copy_(ours.position.table)
    q, k, v = torch.randn(3, 2, 2, 7, 8).unbind(0)
    got = attend_by_hooks(ours, q, k, v, torch.randn(2, 7, 16), sequential(7))
    mask = torch.ones(7, 7, dtype=torch.bool).tril()
    logits = (q @ k.mT / 8**0.5).masked_fill(~mask, -torch.finfo(q.dtype).max)
    expected = (logits + theirs(q, logits)).softmax(-1) @ v
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
