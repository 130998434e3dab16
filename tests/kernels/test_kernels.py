"""Kernels equal the plain code in value and gradient, and leave to it what they cannot compute."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from fast import plain
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1] / "pe"))

from variants import SECTIONS, VARIANTS, in_pieces, model, scattered, sequential, tokens

from pe_lab.check.base import gradients
from pe_lab.kernels import build, call, kernel_of
from pe_lab.kernels.call import Dropout
from pe_lab.models.config import LayerConfig
from pe_lab.models.transformer import Transformer
from pe_lab.pe.alibi import ALiBi
from pe_lab.pe.base import AttentionInputs, PositionalEncoding
from pe_lab.pe.cope import CoPE

pytestmark = pytest.mark.skipif(build.library("cope") is None, reason="no C++ compiler")

SERVED = {
    "none": SECTIONS["none"],
    "rope": SECTIONS["rope"],
    "alibi": SECTIONS["alibi"],
    "t5": SECTIONS["t5"],
    "fox": SECTIONS["fox"],
    "cope": SECTIONS["cope"],
    "cope, few positions": {**SECTIONS["cope"], "npos": 4},
    "cope, one position": {**SECTIONS["cope"], "npos": 1},
    "cope, every second layer": {**SECTIONS["cope"], "every": 2, "combine": "rope"},
    **{name: VARIANTS[name] for name in VARIANTS if name.startswith(("cope-gates", "path"))},
    "cope and rope": VARIANTS["cope-combine=rope"],
}
WIDTHS = {"d_model": 16, "n_heads": 2}, {"d_model": 40, "n_heads": 2}, {"d_model": 7, "n_heads": 1}


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that are called."""
    names: list[str] = []
    real = call.Kernel.attend

    def attend(kernel: call.Kernel, *args: Any, **tensors: Any) -> Tensor | None:
        names.append(kernel.source)
        return real(kernel, *args, **tensors)

    monkeypatch.setattr(call.Kernel, "attend", attend)
    return names


def both(section: dict[str, Any], length: int, **sizes: Any) -> tuple[Transformer, Transformer]:
    fast = model(section, train_len=length, max_len=length + 1, **sizes)
    return fast, plain(fast)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("length", [3, 13, 64, 150])
@pytest.mark.parametrize("name", SERVED)
def test_values_and_gradients_are_those_of_the_plain_code(
    name: str, length: int, served: list[str]
) -> None:
    odd_width = "rope" not in (name, SERVED[name].get("combine"))
    for widths in WIDTHS if odd_width else WIDTHS[:2]:
        made = both(SERVED[name], length, **widths)
        seen, pos = tokens(2, length), sequential(length)
        fast, slow = (built(seen, pos) for built in made)
        torch.testing.assert_close(fast, slow, rtol=1e-9, atol=1e-9)
        of_fast, of_slow = (gradients(b, out) for b, out in zip(made, (fast, slow), strict=True))
        for x, y in zip(of_fast, of_slow, strict=True):
            assert (x - y).abs().max() <= 1e-8 * y.abs().max().clamp(min=1)
    assert served


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", SERVED)
def test_the_last_queries_of_more_keys(name: str) -> None:
    """As a key cache has them; CoPE's sum of gates runs from each query back."""
    fast, slow = (built.eval() for built in both(SERVED[name], 100))
    seen, pos = tokens(2, 100), sequential(100)
    with torch.no_grad():
        pieces = in_pieces(fast, seen, pos, 3, 1, 17, 2, 77)
        torch.testing.assert_close(pieces, slow(seen, pos), rtol=1e-10, atol=1e-10)


def layer_inputs(s: int, t: int, values: Tensor | None = None) -> AttentionInputs:
    """Random inputs of two heads as wide as there are keys, for the last t queries."""
    stream = torch.Generator().manual_seed(1)
    x, q, k, v = (
        torch.randn(*shape, generator=stream, dtype=torch.float64)
        for shape in ((2, s, 2 * s), (2, 2, t, s), (2, 2, s, s), (2, 2, s, s))
    )
    pos = torch.arange(s)[None]
    v = v if values is None else values.expand(2, 2, -1, -1)
    return AttentionInputs(x, q, k, v, pos[:, -t:], pos)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", ["alibi", "fox", "cope", "path"])
@pytest.mark.parametrize("p", [0.1, 0.7])
def test_dropout(name: str, p: float) -> None:
    """Weights are dropped independently with probability p, and alike in the backward pass."""
    s = 96
    built = model(SERVED[name], train_len=s, max_len=s, d_model=2 * s, n_heads=2)
    encoding, drop = built.encodings[0], Dropout.draw(p)
    kernel = kernel_of(encoding)
    assert kernel is not None
    eye = layer_inputs(s, s, torch.eye(s, dtype=torch.float64))
    whole = kernel(encoding, eye.q_BHTD, eye.k_BHSD, eye, Dropout.draw(0))
    dropped = kernel(encoding, eye.q_BHTD, eye.k_BHSD, eye, drop)
    mask = torch.where(whole > 0, dropped / whole, 0)
    visible = torch.ones(s, s).tril().expand_as(mask) == 1
    kept = mask[visible] > 0
    torch.testing.assert_close(
        mask[visible][kept], torch.full_like(mask[visible][kept], 1 / (1 - p))
    )
    assert abs(float(kept.double().mean()) - (1 - p)) < 4 * (p * (1 - p) / kept.numel()) ** 0.5
    other = kernel(encoding, eye.q_BHTD, eye.k_BHSD, eye, Dropout.draw(p))
    assert abs(float(((other > 0) & (dropped > 0))[visible].double().mean()) - (1 - p) ** 2) < 0.02

    inputs = layer_inputs(s, s)
    leaves = [x.requires_grad_() for x in (inputs.q_BHTD, inputs.k_BHSD, inputs.v_BHSD)]
    out = kernel(encoding, *leaves[:2], inputs, drop)
    _, weights = built.blocks[0].attention.weights(*leaves[:2], inputs)  # type: ignore[union-attr]
    expected = (mask.detach() * weights) @ leaves[2]
    torch.testing.assert_close(out, expected)
    weighting = torch.randn_like(out)
    grads, expected_grads = (
        torch.autograd.grad((y * weighting).sum(), leaves) for y in (out, expected)
    )
    torch.testing.assert_close(grads, expected_grads)


@pytest.mark.parametrize("name", ["alibi", "cope", "path"])
def test_the_number_of_threads_changes_no_bit(name: str) -> None:
    encoding = model(SERVED[name], train_len=130, max_len=130, d_model=260).encodings[0].double()
    results, threads, kernel = [], torch.get_num_threads(), kernel_of(encoding)
    inputs = layer_inputs(130, 130)
    leaves = [x.requires_grad_() for x in (inputs.q_BHTD, inputs.k_BHSD, inputs.v_BHSD)]
    assert kernel is not None
    try:
        for n in (1, 3):
            torch.set_num_threads(n)
            out = kernel(encoding, *leaves[:2], inputs, Dropout(1, 2, 1 << 22, 4 / 3))
            results.append([out, *torch.autograd.grad(out.sin().sum(), leaves)])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))


@pytest.mark.parametrize("name", ["alibi", "cope", "path"])
def test_what_is_kept_for_the_backward_pass_grows_with_the_length(name: str) -> None:
    sizes = []
    for length in (256, 512):
        built = model(SERVED[name], train_len=length, max_len=length, n_layers=1)
        kept: dict[int, int] = {}

        def pack(x: Tensor, kept: dict[int, int] = kept) -> Tensor:
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        parameters = {p.untyped_storage().data_ptr() for p in built.parameters()}
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            built(tokens(1, length), sequential(length))
        sizes.append(sum(n for place, n in kept.items() if place not in parameters))
    assert sizes[1] <= 2.1 * sizes[0]


class Doubled(CoPE):
    def logits(self, content_BHTS: Tensor, *args: Any) -> Tensor:
        return 2 * super().logits(content_BHTS, *args)


class Absolute(ALiBi):
    def bias(self, pos_q_BT: Tensor, pos_k_BS: Tensor) -> Tensor:
        return 0.1 * pos_k_BS[:, None, None].sin().expand(-1, 2, pos_q_BT.shape[1], -1)


class Renamed(CoPE):
    """CoPE."""


@pytest.mark.parametrize(
    ("variant", "expected"), [(Renamed, True), (Doubled, False), (Absolute, False)]
)
def test_an_overridden_hook_has_no_kernel(
    variant: type[PositionalEncoding], expected: bool, served: list[str]
) -> None:
    section = SECTIONS["cope" if issubclass(variant, CoPE) else "alibi"]
    section = {**section, "_target_": f"{variant.__module__}.{variant.__qualname__}"}
    fast, slow = both(section, 20)
    seen, pos = tokens(2, 20), sequential(20)
    torch.testing.assert_close(fast(seen, pos), slow(seen, pos), rtol=1e-4, atol=1e-5)
    assert bool(served) == expected


@pytest.mark.parametrize(
    "trunk", [{"window": 5}, {"sink": True}, {"normalizer": "entmax"}, {"logn": "learned"}]
)
def test_other_attention_is_left_to_the_plain_code(
    trunk: dict[str, Any], served: list[str]
) -> None:
    fast, slow = both(SERVED["alibi"], 20, **trunk)
    seen, pos = tokens(2, 20), sequential(20)
    assert torch.equal(fast(seen, pos), slow(seen, pos))
    assert not served


def test_each_layer_chooses_by_itself(served: list[str]) -> None:
    fast, slow = both(SERVED["cope"], 20, layers={1: LayerConfig(window=5)})
    seen, pos = tokens(2, 20), sequential(20)
    torch.testing.assert_close(fast(seen, pos), slow(seen, pos), rtol=1e-4, atol=1e-5)
    assert served == ["cope"] * 2  # of three layers


@pytest.mark.usefixtures("float64")
def test_other_positions(served: list[str]) -> None:
    """A bias by distance of positions that leave some out is left to the plain code."""
    for name, expected in (("alibi", []), ("rope", ["distance"] * 3)):
        served.clear()
        fast, slow = both(SERVED[name], 20)
        pos = scattered(2, 20, 60)
        torch.testing.assert_close(fast(tokens(2, 20), pos), slow(tokens(2, 20), pos))
        assert served == expected


def test_another_encoding_takes_its_own_kernel(served: list[str]) -> None:
    fast, _ = both(SERVED["alibi"], 20)
    other = model(SERVED["cope"], train_len=20)
    fast.blocks[0].attention.encoding = other.encodings[0]  # type: ignore[union-attr]
    slow = plain(fast)
    seen, pos = tokens(2, 20), sequential(20)
    torch.testing.assert_close(fast(seen, pos), slow(seen, pos), rtol=1e-4, atol=1e-5)
    assert served == ["cope", "distance", "distance"]
