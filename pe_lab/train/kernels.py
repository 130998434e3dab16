"""The one door to ``pe_lab.kernels``. Without that folder the program is right and slower."""

from importlib.util import find_spec

from pe_lab.core.console import logger
from pe_lab.models.base import Model


def has_kernels() -> bool:
    try:
        return find_spec("pe_lab.kernels.apply") is not None
    except ModuleNotFoundError:
        return False


def accelerate(model: Model) -> None:
    """Apply the kernels to a model, if there are any."""
    if not has_kernels():
        logger.info("no kernels (pe_lab/kernels is missing): train.fast=true changes nothing")
        return
    from pe_lab.kernels import apply

    apply.accelerate(model)


def check_backend() -> None:
    """
    Raises:
        UsageError: ``PE_LAB_BACKEND`` names no backend.
    """
    if has_kernels():
        from pe_lab.kernels import dispatch

        dispatch.check_environment()


def backends(model: Model) -> dict[str, str] | None:
    """The backend of each kind of attention in a model; None where no kernel computes any."""
    if not has_kernels():
        return None
    from pe_lab.kernels import apply

    return apply.backends(model)
