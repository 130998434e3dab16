"""Fast models and their plain equals."""

import copy
from typing import TypeVar

from pe_lab.kernels.apply import FAST, accelerate
from pe_lab.models.base import Model

Built = TypeVar("Built", bound=Model)
PLAIN = {fast: plain for plain, fast in FAST.items()}


def accelerated(model: Built, fast: bool = True) -> Built:
    """The same model, made fast."""
    return accelerate(model) if fast else model


def plain(model: Built) -> Built:
    """A copy of a fast model, as it was before."""
    made = copy.deepcopy(model)
    for module in made.modules():
        module.__class__ = PLAIN.get(type(module), type(module))
    return made
