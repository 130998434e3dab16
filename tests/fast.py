"""Fast models and their plain equals."""

import copy
from typing import TypeVar

from torch import nn

from pe_lab.kernels import use_kernels

Built = TypeVar("Built", bound=nn.Module)


def accelerated(model: Built, fast: bool = True) -> Built:
    """The same model, made fast."""
    if fast:
        use_kernels(model)
    return model


def plain(model: Built) -> Built:
    """A copy of a model without kernels."""
    made = copy.deepcopy(model)
    for module in made.modules():
        for name in ("attend", "forward"):
            vars(module).pop(name, None)
    return made
