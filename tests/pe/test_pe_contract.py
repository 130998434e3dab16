"""What every encoding of conf/pe must keep; a new yaml is tested by existing."""

import copy
import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from fast import accelerated, plain
from hydra.utils import get_object
from numbers_task import Numbers
from torch import Tensor, nn
from variants import (
    MAX_LEN,
    SECTIONS,
    TRAIN_LEN,
    VARIANTS,
    Section,
    accepted,
    dims,
    model,
    other_values,
    scattered,
    sequential,
    tokens,
)

from docs import facts
from pe_lab.common.instantiate import instantiate
from pe_lab.kernels.fused import DistanceKernel
from pe_lab.models.scored_positions import ScoredPositions
from pe_lab.models.transformer import Transformer
from pe_lab.pe.alibi import ALiBi
from pe_lab.pe.base import AttentionInputs
from pe_lab.pe.cope import CoPE
from pe_lab.pe.positions import Positions
from pe_lab.training.encodings import build_encodings

every_variant = pytest.mark.parametrize("section", VARIANTS.values(), ids=VARIANTS.keys())
every_encoding = pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS.keys())
SOURCES: dict[str, Section] = {
    name: facts.section(name, "positions") for name in facts.names("positions")
}
for source in SOURCES.values():
    if "max" in source:
        source["max"] = MAX_LEN
    if "k_max" in source:
        source["k_max"] = MAX_LEN - TRAIN_LEN - 1
KEYS = [(name, key) for name, section in SECTIONS.items() for key in section if key != "_target_"]


def encoding_parameters(built: Transformer) -> dict[str, nn.Parameter]:
    return {name: p for name, p in built.named_parameters() if ".encoding." in name}


def loss(hidden: Tensor) -> Tensor:
    """A sum over features would not do: the last norm makes it constant."""
    weight = torch.linspace(-1, 1, hidden.shape[-1]).to(hidden)
    return (hidden * weight).sin().sum()


@every_variant
def test_shape_dtype_and_no_look_ahead(section: Section) -> None:
    built = model(section)
    seen = tokens(2, TRAIN_LEN)
    hidden = built(seen, sequential(TRAIN_LEN))
    assert hidden.shape == (2, TRAIN_LEN, 16)
    assert hidden.dtype == torch.float64
    for t in (0, 1, TRAIN_LEN // 2, TRAIN_LEN - 2):
        changed = seen.clone()
        changed[:, t + 1 :] = (changed[:, t + 1 :] + 1) % 11
        again = built(changed, sequential(TRAIN_LEN))
        assert torch.equal(again[:, : t + 1], hidden[:, : t + 1])
        assert not torch.equal(again[:, t + 1 :], hidden[:, t + 1 :])


@every_encoding
def test_float32_and_bf16_autocast_are_finite(section: Section) -> None:
    built = model(section)
    exact = built(tokens(2, TRAIN_LEN), sequential(TRAIN_LEN))
    single = copy.deepcopy(built).float()
    hidden = single(tokens(2, TRAIN_LEN), sequential(TRAIN_LEN))
    assert hidden.dtype == torch.float32
    torch.testing.assert_close(hidden.double(), exact, rtol=1e-4, atol=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        half = single(tokens(2, TRAIN_LEN), sequential(TRAIN_LEN))
        loss(half).backward()
    assert half.isfinite().all()
    for parameter in encoding_parameters(single).values():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()


@pytest.mark.parametrize("name", [n for n, s in SECTIONS.items() if "max_len" in s])
def test_past_max_len_is_an_error_not_a_guess(name: str) -> None:
    built = model({**SECTIONS[name], "max_len": TRAIN_LEN})
    assert {e.max_len for e in built.encodings} <= {None, TRAIN_LEN}
    assert TRAIN_LEN in {e.max_len for e in built.encodings}
    built(tokens(1, TRAIN_LEN), sequential(TRAIN_LEN))
    with pytest.raises((IndexError, RuntimeError), match=r"out of (range|bounds)"):
        built(tokens(1, TRAIN_LEN + 1), sequential(TRAIN_LEN + 1))


@every_variant
def test_four_times_the_training_length_with_a_gradient_for_every_parameter(
    section: Section,
) -> None:
    built = model(section)
    hidden = built(tokens(3, MAX_LEN), sequential(MAX_LEN))
    assert hidden.isfinite().all()
    loss(hidden).backward()
    for name, parameter in encoding_parameters(built).items():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 1e-8, name


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "none"])
def test_differs_from_no_encoding(name: str) -> None:
    seen, pos = tokens(2, TRAIN_LEN), sequential(TRAIN_LEN)
    assert (
        model(VARIANTS[name])(seen, pos) - model(SECTIONS["none"])(seen, pos)
    ).abs().max() > 1e-3


def beside(section: Section, key: str) -> Iterator[Section]:
    """As it is, then with one other key changed, in every way that is accepted."""
    yield section
    for other in section.keys() - {key, "_target_"}:
        for value in other_values(section, other):
            if accepted(changed := {**section, other: value}, dims()):
                yield changed


@pytest.mark.parametrize(("name", "key"), KEYS)
def test_every_key_changes_something(name: str, key: str) -> None:
    # Two lengths: at max_len alone, a share of it is a share of the sequence's length.
    read = [(tokens(2, n), sequential(n)) for n in (MAX_LEN, TRAIN_LEN)]
    for section in beside(SECTIONS[name], key):
        # Beside another choice only where it is refused without one.
        tried = [{**section, key: v} for v in other_values(section, key)]
        tried = [changed for changed in tried if accepted(changed, dims())]
        if tried:
            break
    assert tried, f"{name}.{key}: no other value is accepted"
    for changed in tried:
        base, other = model(section), model(changed)
        more = sum(p.numel() for p in other.parameters()) != sum(
            p.numel() for p in base.parameters()
        )
        # There is no dropout: what differs in training or in evaluation is the key's doing.
        assert more or any(
            (other.train(training)(*r) - base.train(training)(*r)).abs().max() > 1e-9
            for training in (True, False)
            for r in read
        ), changed


@pytest.mark.parametrize("name", SECTIONS)
def test_yaml_and_signature_hold_the_same_keys(name: str) -> None:
    hints = dict(get_object(SECTIONS[name]["_target_"]).__init__.__annotations__)
    assert set(hints) - {"dims", "return"} == set(SECTIONS[name]) - {"_target_"}


@every_encoding
def test_state_dict_round_trip(section: Section) -> None:
    built, other = model(section, seed=0), model(section, seed=1)
    seen, pos = tokens(2, TRAIN_LEN), sequential(TRAIN_LEN)
    other.load_state_dict(built.state_dict())
    assert torch.equal(other(seen, pos), built(seen, pos))


@every_variant
def test_fused_equals_eager(section: Section) -> None:
    fused = model(section, trunk={"dropout": 0.2})
    eager = plain(fused)
    seen = tokens(2, TRAIN_LEN)
    places = itertools.product(
        (sequential(TRAIN_LEN), scattered(2, TRAIN_LEN, MAX_LEN)), (True, False)
    )
    for pos, dropping in places:
        outs = [built.train(dropping)(seen, pos, key=3) for built in (fused, eager)]
        torch.testing.assert_close(*outs, rtol=1e-12, atol=1e-12)
        grads = [
            torch.autograd.grad(loss(out), list(built.parameters()), materialize_grads=True)
            for out, built in zip(outs, (fused, eager), strict=True)
        ]
        torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-12)


@every_variant
def test_the_last_layer_at_scored_positions_only(section: Section) -> None:
    built = model(section, trunk={"dropout": 0.2}).train()
    chosen = np.random.default_rng(0).random((3, TRAIN_LEN)) < 0.3
    chosen[:, :4] = False
    chosen[1, 4] = True
    scored = ScoredPositions.of(chosen, torch.device("cpu"))
    assert (scored.first, len(scored.at_N)) == (4, chosen.sum())
    seen, pos = tokens(3, TRAIN_LEN), sequential(TRAIN_LEN)
    outs = [
        built(seen, pos, scored=scored, key=5),
        built(seen, pos, key=5)[torch.from_numpy(chosen)],
    ]
    torch.testing.assert_close(*outs, rtol=1e-12, atol=1e-12)
    grads = [
        torch.autograd.grad(loss(out), list(built.parameters()), materialize_grads=True)
        for out in outs
    ]
    torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-11)


def test_a_variant_does_not_inherit_what_stands_for_hooks_that_it_changes() -> None:
    class Doubled(CoPE):
        def logits(self, content: Tensor, q: Tensor, k: Tensor, inputs: AttentionInputs) -> Tensor:
            return 2 * CoPE.logits(self, content, q, k, inputs)

    class Absolute(ALiBi):
        def bias(self, pos_q: Tensor, pos_k: Tensor) -> Tensor:
            return -self.slopes[:, None, None] * pos_k[:, None, None].double()

    class Renamed(CoPE):
        pass

    class MixedCoPE(type("Mixin", (), {"logits": Doubled.logits}), CoPE):  # type: ignore[misc]
        pass

    class MixedALiBi(type("Mixin", (), {"bias": Absolute.bias}), ALiBi):  # type: ignore[misc]
        pass

    served = {CoPE: True, Renamed: True, Doubled: False, MixedCoPE: False,
              ALiBi: True, Absolute: False, MixedALiBi: False}  # fmt: skip
    for variant, expected in served.items():
        section = SECTIONS["cope" if issubclass(variant, CoPE) else "alibi"]
        keys = {k: v for k, v in section.items() if k != "_target_"}
        built = plain(model(section))
        for layer, block in enumerate(built.blocks):
            block.attention.encoding = variant(dims().at_layer(layer), **keys)  # type: ignore[union-attr]
        fast = accelerated(copy.deepcopy(built))
        for block in fast.blocks:
            assert (block.attention.kernel is not None) == expected, variant  # type: ignore[union-attr]
        seen, pos = tokens(2, TRAIN_LEN), sequential(TRAIN_LEN)
        torch.testing.assert_close(fast(seen, pos), built(seen, pos), rtol=1e-12, atol=1e-12)


@every_variant
def test_a_bias_by_distance_is_one(section: Section) -> None:
    for encoding in model(section).encodings:
        if "bias" in encoding.hooks() and encoding.bias_by_distance:
            keys = torch.empty(1, 1, TRAIN_LEN, 1)
            row_HN = DistanceKernel(encoding, biased=True, rotary=None).bias(keys)
            for pos in (sequential(TRAIN_LEN), sequential(TRAIN_LEN, 9)):
                bias_HTS = encoding.bias(pos, pos)[0]  # type: ignore[index]
                for i in range(TRAIN_LEN):
                    expected = row_HN[:, : i + 1].flip(-1)  # type: ignore[index]
                    torch.testing.assert_close(bias_HTS[:, i, : i + 1], expected)


@every_variant
def test_shifted_positions(section: Section) -> None:
    built = model(section).eval()
    seen = tokens(2, TRAIN_LEN)
    here = built(seen, sequential(TRAIN_LEN))
    there = built(seen, sequential(TRAIN_LEN, offset=7))
    if all(encoding.shift_invariant for encoding in built.encodings):
        torch.testing.assert_close(there, here, rtol=1e-10, atol=1e-10)
    else:
        assert (there - here).abs().max() > 1e-3


@every_encoding
def test_positions_of_each_sequence_alone(section: Section) -> None:
    built = model(section)
    seen, pos = tokens(3, TRAIN_LEN), scattered(3, TRAIN_LEN, MAX_LEN)
    together = built(seen, pos)
    alone = torch.cat([built(seen[i : i + 1], pos[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-12)
    shared = built(seen, pos[:1])
    expanded = built(seen, pos[:1].expand(3, -1))
    torch.testing.assert_close(shared, expanded, rtol=1e-12, atol=1e-12)


@every_encoding
def test_under_every_source_of_positions(section: Section) -> None:
    built, task = model(section), Numbers(splits={}, length=TRAIN_LEN // 2)
    batch = task.sample(np.random.default_rng(1), 2)
    for source, keys in SOURCES.items():
        positions: Positions = instantiate(keys, "positions", Positions).bound(task)
        if not positions.increasing and not all(e.any_order for e in built.encodings):
            continue  # refused (test_task_positions.py)
        pos = positions.of_batch(np.random.default_rng(0), batch, training=True)
        built.zero_grad()
        loss(built(torch.from_numpy(batch.tokens), torch.from_numpy(pos))).backward()
        for name, parameter in built.named_parameters():
            assert parameter.grad is None or parameter.grad.isfinite().all(), (source, name)


@every_variant
def test_reads_positions_or_says_that_it_does_not(section: Section) -> None:
    built = model(section)
    seen = tokens(2, TRAIN_LEN)
    here, there = (
        built(seen, pos) for pos in (sequential(TRAIN_LEN), scattered(2, TRAIN_LEN, MAX_LEN))
    )
    if any(encoding.reads_positions for encoding in built.encodings):
        assert (here - there).abs().max() > 1e-6
    else:
        assert torch.equal(here, there)


@every_encoding
def test_dropout_with_post_norm(section: Section) -> None:
    trunk = {"dropout": 0.3, "norm_position": "post", "norm": "rmsnorm"}
    built = model(section, trunk=trunk)
    seen, pos = tokens(2, TRAIN_LEN), sequential(TRAIN_LEN)
    torch.manual_seed(1)
    outs = [built(seen, pos) for _ in range(2)]
    torch.manual_seed(1)
    assert torch.equal(built(seen, pos), outs[0])
    assert not torch.equal(outs[0], outs[1])
    loss(outs[0]).backward()
    for name, parameter in encoding_parameters(built).items():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    built.eval()
    assert torch.equal(built(seen, pos), built(seen, pos))


@every_encoding
def test_small_and_odd_sizes(section: Section) -> None:
    for batch, length, heads in [(1, 1, 2), (1, 7, 2), (3, 13, 1)]:
        hidden = model(section, n_heads=heads)(tokens(batch, length), sequential(length))
        assert hidden.shape == (batch, length, 16)
        assert hidden.isfinite().all()


@every_variant
def test_sharing_is_one_set_of_parameters(section: Section) -> None:
    encodings = build_encodings(section, dims())
    serving = [e for e in encodings if e.hooks() - {"embed"}]
    shared = bool(serving) and serving[0].share_layers
    assert len(set(map(id, serving))) == (1 if shared else len(serving))
