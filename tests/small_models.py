"""The models of conf/model in a small size, for the tests of all of them."""

from typing import Any

import pytest

from docs import facts
from pe_lab.check import networks
from pe_lab.check.base import Section, model_config
from pe_lab.models.config import ModelConfig

MODELS = facts.names("model")
SMALL = {"n_layers": 2, "n_heads": 2, "d_model": 16, "head_width": 8}
every_model = pytest.mark.parametrize("name", MODELS)


def small(name: str) -> Section:
    """The keys of a model in a small size."""
    section = facts.section(name, "model")
    return section | {key: value for key, value in SMALL.items() if key in section}


def config(name: str, **changes: Any) -> ModelConfig:
    return model_config(small(name), **changes)


def two_parts(name: str) -> bool:
    """Whether the model is for tasks with an input and an output part."""
    return config(name).refuses_task(networks.FLIPFLOP) is not None
