"""The one door to ``pe_lab.kernels``. Without that folder the program is right, and slower."""

from importlib.util import find_spec

from torch import nn

from pe_lab.core.console import logger


def use_kernels(model: nn.Module) -> None:
    """Have kernels compute the attention of a model, if there are any."""
    if find_spec("pe_lab.kernels") is None:
        logger.info("no kernels (pe_lab/kernels is missing): train.fast=true changes nothing")
        return
    from pe_lab import kernels

    kernels.use_kernels(model)
