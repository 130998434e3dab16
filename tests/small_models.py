"""The models of conf/model in a small size, for the tests of all of them."""

from typing import Any

import pytest

from docs import facts
from pe_lab.common.instantiate import instantiate
from pe_lab.models.base import ModelConfig
from pe_lab.tasks.flipflop import FlipFlop

MODELS = facts.names("model")
SMALL = {"n_layers": 2, "n_heads": 2, "d_model": 16, "head_width": 8}
FLIPFLOP = FlipFlop(length=16, p_ignore=0.5, loss_on="scored", train_sequences=None, splits={})

every_model = pytest.mark.parametrize("name", MODELS)


def config(name: str, **changes: Any) -> ModelConfig:
    section = facts.section(name, "model")
    small = {key: value for key, value in SMALL.items() if key in section}
    made: ModelConfig = instantiate({**section, **small, **changes}, "model", ModelConfig)
    return made


def two_parts(name: str) -> bool:
    """Whether the model is for tasks with an input and an output part."""
    return config(name).refuses_task(FLIPFLOP) is not None
