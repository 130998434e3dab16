"""What every encoding of conf/pe must keep; a new yaml is tested by existing."""

import copy
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
import torch
from fast import accelerated, plain
from numbers_task import Numbers
from torch import Tensor
from variants import (
    MAX_LEN,
    SECTIONS,
    TRAIN_LEN,
    VARIANTS,
    Section,
    dims,
    model,
    sequential,
    tokens,
)

from docs import facts
from pe_lab.common.instantiate import instantiate
from pe_lab.evaluation.contract import encodings
from pe_lab.evaluation.contract.base import NotClaimedError, loss
from pe_lab.evaluation.contract.suite import FIRST, OF_EACH_CHOICE
from pe_lab.kernels import fused
from pe_lab.models.base import ScoredPositions
from pe_lab.pe.alibi import ALiBi
from pe_lab.pe.base import AttentionInputs
from pe_lab.pe.cope import CoPE
from pe_lab.pe.positions import Positions
from pe_lab.training.plan import build_encodings

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
CHECKS = {**FIRST, **OF_EACH_CHOICE}
CHECKS["no look at the future"] = partial(encodings.no_look_ahead, atol=0.0)
KEYS = [(name, key) for name, section in SECTIONS.items() for key in section if key != "_target_"]


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS.keys())
@every_variant
def test_what_pe_lab_check_holds(section: Section, check: Callable[..., str]) -> None:
    with suppress(NotClaimedError):
        check(section)


@pytest.mark.parametrize("name", SECTIONS)
def test_yaml_and_signature_hold_the_same_keys(name: str) -> None:
    encodings.same_keys(SECTIONS[name])


@pytest.mark.parametrize("name", [n for n, s in SECTIONS.items() if "max_len" in s])
def test_past_max_len_is_an_error_not_a_guess(name: str) -> None:
    built = model({**SECTIONS[name], "max_len": TRAIN_LEN})
    assert {e.max_len for e in built.encodings} <= {None, TRAIN_LEN}
    assert TRAIN_LEN in {e.max_len for e in built.encodings}
    built(tokens(1, TRAIN_LEN), sequential(TRAIN_LEN))
    with pytest.raises((IndexError, RuntimeError), match=r"out of (range|bounds)"):
        built(tokens(1, TRAIN_LEN + 1), sequential(TRAIN_LEN + 1))


@pytest.mark.parametrize(("name", "key"), KEYS)
def test_every_key_changes_something(name: str, key: str) -> None:
    encodings.key_changes(SECTIONS[name], key)


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
        chosen = {k: v for k, v in section.items() if k != "_target_"}
        built = plain(model(section))
        for layer, block in enumerate(built.blocks):
            block.attention.encoding = variant(dims().at_layer(layer), **chosen)  # type: ignore[union-attr]
        fast = accelerated(copy.deepcopy(built))
        for block in fast.blocks:
            kernel = block.attention.kernel  # type: ignore[union-attr]
            found = kernel is not None and kernel.terms in (fused.cope, fused.distance)
            assert found == expected, variant
        seen, pos = tokens(2, TRAIN_LEN), sequential(TRAIN_LEN)
        torch.testing.assert_close(fast(seen, pos), built(seen, pos), rtol=1e-12, atol=1e-12)


@every_encoding
def test_under_every_source_of_positions(section: Section) -> None:
    built, task = model(section), Numbers(splits={}, length=TRAIN_LEN // 2)
    batch = task.sample(np.random.default_rng(1), 2)
    for source, chosen in SOURCES.items():
        positions: Positions = instantiate(chosen, "positions", Positions).bound(task)
        reading = [e for e in built.encodings if e.reads_positions]
        if any(
            len(positions.axes) not in (0, e.axes) or not (positions.increasing or e.any_order)
            for e in reading
        ):
            continue  # refused (test_positions.py)
        pos = positions.of_batch(np.random.default_rng(0), batch, training=True)
        built.zero_grad()
        loss(built(torch.from_numpy(batch.tokens), torch.from_numpy(pos))).backward()
        for name, parameter in built.named_parameters():
            assert parameter.grad is None or parameter.grad.isfinite().all(), (source, name)


@every_variant
def test_sharing_is_one_set_of_parameters(section: Section) -> None:
    serving = [e for e in build_encodings(section, dims()) if e.hooks() - {"embed"}]
    shared = bool(serving) and serving[0].share_layers
    assert len(set(map(id, serving))) == (1 if shared else len(serving))
