"""``accelerate``, the one call that makes a plain model fast.

It replaces the classes of modules by faster subclasses, in place, as PyTorch's ``fully_shard``
does. Parameters and their names stay the same; numbers stay the same up to rounding. A class that
is not in the table below, such as a user's subclass, is not replaced.
"""

from typing import TypeVar

from torch import nn

from pe_lab.kernels import attention, dispatch, floater
from pe_lab.kernels.cpu.bias_relu import FastFeedForward
from pe_lab.kernels.cpu.dropout import FusedDrop
from pe_lab.models.attention import Attention, MultiHeadAttention
from pe_lab.models.base import Model
from pe_lab.models.encoder_decoder import FullAttention
from pe_lab.models.gau import SharedKeyAttention
from pe_lab.models.transformer import FeedForward
from pe_lab.pe.floater import Slope

Fast = TypeVar("Fast", bound=Model)
FAST: dict[type[nn.Module], type[nn.Module]] = {
    MultiHeadAttention: attention.FastMultiHeadAttention,
    SharedKeyAttention: attention.FastSharedKeyAttention,
    FullAttention: attention.FastFullAttention,
    FeedForward: FastFeedForward,
    Slope: floater.FastSlope,
}


def accelerate(model: Fast) -> Fast:
    """Replace modules and dropout of a model by fast equals, in place; return the model."""
    model.dropout_type = FusedDrop
    for module in model.modules():
        module.__class__ = FAST.get(type(module), type(module))
        if isinstance(module, attention.FastAttention):
            module.choose_kernel()
    return model


def backends(model: Model) -> dict[str, str] | None:
    """The backend of each kind of attention in this model that has a kernel. None: the model is not
    fast, or has no attention."""
    if model.dropout_type is not FusedDrop:
        return None
    found = [m for m in model.modules() if isinstance(m, Attention)]
    kernels = [m.kernel for m in found if isinstance(m, attention.FastAttention)]
    kinds = {kernel.kind for kernel in kernels if kernel is not None}
    return dispatch.backend_names(model.device, kinds) if found else None
