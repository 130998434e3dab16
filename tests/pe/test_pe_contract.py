"""What every encoding of conf/pe must keep, how its parameters start; a new yaml is tested too."""

import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
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
from pe_lab.check.base import NotClaimedError, loss
from pe_lab.check.networks import encoding_checks, every_key, no_look_ahead, same_keys
from pe_lab.core.errors import UsageError
from pe_lab.core.validation import instantiate
from pe_lab.pe.positions import Positions
from pe_lab.train.encodings import build_encodings

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


# All checks of all variants take a minute: of variants, those not named here are extended tests.
OF_VARIANTS = {"no look at the future", "cached equals uncached", "fast equals plain"}


@pytest.mark.parametrize(
    ("section", "check"),
    [
        pytest.param(
            section,
            check,
            marks=[] if name in SECTIONS or check in OF_VARIANTS else [pytest.mark.extended],
            id=f"{name}-{check}",
        )
        for name, section in VARIANTS.items()
        for check in encoding_checks({})
    ],
)
def test_what_pe_lab_check_holds(section: Section, check: str) -> None:
    checks = encoding_checks(section)
    checks["no look at the future"] = partial(no_look_ahead, partial(model, section), tolerance=0)
    with suppress(NotClaimedError):
        checks[check]()


@pytest.mark.parametrize("name", SECTIONS)
def test_yaml_and_signature_hold_the_same_keys(name: str) -> None:
    same_keys(SECTIONS[name])


@pytest.mark.parametrize("name", [n for n, s in SECTIONS.items() if "max_len" in s])
def test_past_max_len_is_an_error_not_a_guess(name: str) -> None:
    built = model({**SECTIONS[name], "max_len": TRAIN_LEN})
    assert {e.max_len for e in built.encodings} <= {None, TRAIN_LEN}
    assert TRAIN_LEN in {e.max_len for e in built.encodings}
    built(tokens(1, TRAIN_LEN), sequential(TRAIN_LEN))
    with pytest.raises((IndexError, RuntimeError), match=r"out of (range|bounds)"):
        built(tokens(1, TRAIN_LEN + 1), sequential(TRAIN_LEN + 1))


@pytest.mark.parametrize("name", SECTIONS)
def test_every_key_changes_something(name: str) -> None:
    with suppress(NotClaimedError):
        every_key(SECTIONS[name], model)


@every_encoding
def test_under_every_source_of_positions(section: Section) -> None:
    built, task = model(section), Numbers(splits={}, length=TRAIN_LEN // 2)
    batch = task.sample(np.random.default_rng(1), 2)
    for source, chosen in SOURCES.items():
        positions: Positions = instantiate(chosen, "positions", Positions).bind(task)
        reading = [e for e in built.encodings if e.reads_positions]
        if any(
            len(positions.axes) not in (0, e.axes)
            or not (positions.increasing or e.any_order)
            or not (positions.whole or e.reads_positions is float)
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


@pytest.mark.parametrize(
    ("name", "changes", "sizes", "words"),
    [
        ("rope", {}, {"d_model": 6}, "width 3"),
        ("rope_2d", {}, {"d_model": 12}, "width 6"),
        ("rope", {"logn": "train"}, {"train_len": 1}, "1 token"),
        ("rope", {"fraction": 0.1}, {}, "leaves none"),
        ("rope", {"clip": "hard"}, {"train_len": 6}, "leaves no pair"),
        ("rope", {"learned": True, "clip": "soft"}, {}, "learned=true"),
        ("ntk_old", {}, {"d_model": 4}, "width 2"),
        ("yarn", {"slow": 32}, {}, "slow=32"),
        ("longrope", {"long": [2, 3]}, {}, "4 pairs"),
        ("self_extend", {"window": 12}, {}, "window=12"),
        ("hfwa", {}, {"n_layers": 1}, "one layer of attention"),
        ("t5", {"max_distance": 16}, {}, "max_distance=16"),
        ("cope", {"every": 4}, {}, "none of 3 layers"),
    ],
    ids=str,
)
def test_sizes_that_cannot_work_are_refused(
    name: str, changes: Section, sizes: dict[str, int], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        build_encodings({**SECTIONS[name], **changes}, dims(**sizes))


Start = Callable[[Tensor], None]
WIDTH, HEADS, HEAD, TRAIN, LONG = 128, 32, 4, 100, 500


def constant(value: float) -> Start:
    return lambda given: torch.testing.assert_close(given, torch.full_like(given, value))


def normal(deviation: float) -> Start:
    """A uniform draw would end at 1.73 deviations."""

    def check(given: Tensor) -> None:
        assert float(given.square().mean().sqrt()) == pytest.approx(deviation, rel=0.3)
        assert given.abs().max() > 1.9 * deviation

    return check


def uniform(low: float, high: float) -> Start:
    def check(given: Tensor) -> None:
        assert given.min() >= low - 1e-9
        assert given.max() <= high + 1e-9
        assert given.max() - given.min() > 0.8 * (high - low)
        assert float(given.std()) == pytest.approx((high - low) / math.sqrt(12), rel=0.3)

    return check


def within(bound: float) -> Start:
    return uniform(-bound, bound)


def through(turn: Callable[[Tensor], Tensor], start: Start) -> Start:
    return lambda given: start(turn(given))


def by_base(given: Tensor) -> None:
    """base^(-2 floor(j/2) / (E/2)), the same for every token."""
    row = [10000 ** (-2 * (j // 2) / (WIDTH // 2)) for j in range(WIDTH // 2)]
    torch.testing.assert_close(given, torch.tensor(row).expand_as(given))


def slopes(given: Tensor) -> None:
    powers = 2 ** (-8 * torch.arange(1, HEADS + 1) / HEADS)
    torch.testing.assert_close(given, powers.expand_as(given))


zero, one, linear = constant(0), constant(1), within(1 / math.sqrt(WIDTH))
softplus = torch.nn.functional.softplus
FIRE = {
    "c": constant(0.1),
    "threshold_factor": one,
    "hidden.weight": within(1),
    "hidden.bias": within(1),
    "out.weight": within(1 / math.sqrt(32)),
}
T5 = normal(1 / math.sqrt(WIDTH))
KERPLE = {
    "raw_r1": through(softplus, uniform(0.01, 2)),
    "raw_r2": through(softplus, uniform(0.01, 1)),
}
STARTS: dict[str, dict[str, Start]] = {
    "alibi": {"slopes": slopes},
    "binary": {"weight": within(1 / 3)},
    "complex_order": {"frequencies": by_base},
    "conv": {"conv.weight": within(3**-0.5), "conv.bias": within(3**-0.5)},
    "cope": {
        "position.table": zero,
        "gate_key.weight": linear,
        "gate_key.bias": linear,
        "relative.table": normal(1 / math.sqrt(HEAD)),
        "position.hidden.weight": within(1),
        "position.hidden.bias": within(1),
        "position.out.weight": zero,
    },
    "dape": {
        "hidden.weight": within(1 / math.sqrt(2 * HEADS)),
        "hidden.bias": within(1 / math.sqrt(2 * HEADS)),
        "out.weight": within(1 / math.sqrt(32)),
        **{f"base.{name}": start for name, start in (KERPLE | FIRE).items()},
    },
    "deberta": {
        "relative.weight": normal(0.02),
        "absolute.weight": normal(0.02),
        "project_key.weight": linear,
        "project_query.weight": linear,
        "project_query.bias": zero,
    },
    "fire": FIRE,
    "floater": {
        "start": normal(1),
        "slope.hidden.weight": normal(math.sqrt(2 / (2 * WIDTH + 1))),
        "slope.hidden.bias": zero,
        "slope.out.weight": normal(math.sqrt(2 / (2 * WIDTH + 1))),
        "slope.out.bias": zero,
    },
    "fox": {"gate.weight": linear, "gate.bias": zero},
    "hierarchical": {"table": normal(1)},
    "integer": {"weight": within(1 / math.sqrt(WIDTH + 1))},
    "kerple": KERPLE,
    "learned": {"table": normal(1)},
    "multiplicative": {"table": normal(1)},
    "normalized": {"weight": within(1)},
    "path": {
        "filter": within(3**-0.5),
        "direction.0.weight": linear,
        "direction.1.weight": within(32**-0.5),
        "direction.weight": linear,
        "strength.weight": linear,
        "strength.bias": zero,
        "gate.weight": linear,
        "gate.bias": zero,
    },
    "pope": {"phase": zero},
    "recurrent": {
        "start": normal(1),
        "input_bias": linear,
        "hidden.weight": linear,
        "hidden.bias": linear,
    },
    "relative": {"table": normal(1 / math.sqrt(HEAD))},
    "selective_rope": {
        "down.weight": linear,
        "up.weight": within(1 / 4),
        "convolution.weight": within(1 / 2),
        "gate.weight": linear,
        "gate.bias": linear,
        "log_bias": zero,
    },
    "shaw": {
        "key_table": normal(1 / math.sqrt(HEAD)),
        "value_table": normal(1 / math.sqrt(HEAD)),
    },
    "t5": {"table": T5},
    "tape": {
        "attended": zero,
        "up": zero,
        "down": normal(0.02),
        "gate.weight": normal(0.02),
    },
    "transformer_xl": {
        "project.weight": linear,
        "biases.u": normal(0.02),
        "biases.v": normal(0.02),
    },
    "tupe": {
        "table": normal(0.02),
        "norm.weight": one,
        "norm.bias": zero,
        "query.weight": linear,
        "query.bias": zero,
        "key.weight": linear,
        "relative.table": T5,
    },
}


# Where a choice changes how a parameter starts.
CHANGED: dict[str, dict[str, Start]] = {
    "pope-start=uniform": {"phase": uniform(-2 * math.pi, 0)},
    "binary-bits=53": {"weight": within(53**-0.5)},
    "kerple-form=power": {
        "raw_r1": through(softplus, uniform(0.01, 1)),
        "raw_r2": through(lambda given: 2 * given.sigmoid(), uniform(0.01, 1.99)),
    },
}
SEEN = {**VARIANTS, "path-rank=null": {**SECTIONS["path"], "rank": None}}


def parameters(section: dict[str, Any]) -> dict[str, Tensor]:
    """Those of every layer, each name's values of all layers together."""
    torch.manual_seed(0)
    sizes = {"d_model": WIDTH, "n_heads": HEADS, "train_len": TRAIN, "max_len": LONG}
    found: dict[str, list[Tensor]] = {}
    for encoding in dict.fromkeys(build_encodings(section, dims(**sizes))):
        for name, parameter in encoding.named_parameters():
            found.setdefault(name, []).append(parameter.detach())
    return {name: torch.stack(given) for name, given in found.items()}


OF_TABLE = [(variant, name) for variant in SEEN if (name := variant.split("-")[0]) in STARTS]


@pytest.mark.parametrize(("variant", "name"), OF_TABLE, ids=[variant for variant, _ in OF_TABLE])
def test_starts_as_its_docstring_says(variant: str, name: str) -> None:
    given = parameters(SEEN[variant])
    assert given.keys() <= STARTS[name].keys()
    for parameter, values in given.items():
        start = CHANGED.get(variant, {}).get(parameter, STARTS[name][parameter])
        start(values)
