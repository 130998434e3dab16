"""How every parameter starts, as the docstring of its encoding says."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from variants import SECTIONS, VARIANTS, dims

from pe_lab.training.plan import build_encodings

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
        deviation = (high - low) / math.sqrt(12)
        assert float(given.std()) == pytest.approx(deviation, rel=0.3)

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
    missing = given.keys() - STARTS[name].keys()
    assert not missing, f"STARTS[{name!r}] does not say how {sorted(missing)} start"
    for parameter, values in given.items():
        start = CHANGED.get(variant, {}).get(parameter, STARTS[name][parameter])
        try:
            start(values)
        except AssertionError as error:
            raise AssertionError(f"{variant}: {parameter} starts otherwise: {error}") from None


@pytest.mark.parametrize("name", STARTS)
def test_every_entry_is_met(name: str) -> None:
    """An entry for a parameter that no choice has would check nothing."""
    met = {p for variant, n in OF_TABLE if n == name for p in parameters(SEEN[variant])}
    assert met == STARTS[name].keys()
